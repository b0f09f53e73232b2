#include "core/engine/speculation.hpp"

#include "core/base/units.hpp"
#include "core/engine/group.hpp"

#include <algorithm>

namespace luna::engine {
namespace {

// A tally's memory: about the last 1 / (1 - kFade) tokens.
constexpr double kFade = 0.95;
// What is believed of a match of each class before any was seen, and the weight of that belief in
// tokens: measured over code edits, repeated text and prose with a small model.
constexpr std::array<double, 5> kPriors = {0.3, 0.45, 0.6, 0.75, 0.9};
constexpr double kPriorTokens = 2.0;
// A row must bring this much more than it is fitted to cost: drafts also draw tokens on the host,
// and the rows of prompts, which the fit has seen too, make no logits.
constexpr double kMargin = 1.5;
// Steps without drafts, because rows seem to fill them, until a draft is tried for what it costs:
// without one the fit would never learn that a few rows more are cheap. Doubled each time in vain.
constexpr std::uint32_t kRetrySteps = DraftPause::kRetrySteps;
constexpr std::uint32_t kRetryStepsMax = DraftPause::kRetryStepsMax;
constexpr double kRetryShare = 0.3;  // what such a draft is bounded by

// A draft model's tokens count as if so much text had matched.
constexpr std::uint32_t kModelMatched = 8;
// Tokens of a draft that is made for what it shows.
constexpr std::uint32_t kRetryTokens = 2;
// Of the time that the rest of the answer takes without drafts: that much may go into computing
// what the draft model has not seen. A good draft model saves half of the time or more.
constexpr double kCatchUpShare = 0.25;
// Rows that the draft model may always compute at once: below, most steps cost the same.
constexpr std::uint32_t kCatchUpRowsMin = 32;
constexpr std::uint32_t kCatchUpRowsMax = 65536;  // what a configuration may ask for

}  // namespace

std::size_t DraftRecord::class_of(std::uint32_t n_matched) {
  if (n_matched < 4) return 0;
  if (n_matched < 6) return 1;
  if (n_matched < 10) return 2;
  return n_matched < 18 ? 3 : 4;
}

void DraftRecord::note(std::uint32_t n_matched, bool was_right) {
  Tally& tally = tallies_[class_of(n_matched)];
  tally.n_tokens = tally.n_tokens * kFade + 1.0;
  tally.n_right = tally.n_right * kFade + (was_right ? 1.0 : 0.0);
}

double DraftRecord::p_right(std::uint32_t n_matched) const {
  const std::size_t c = class_of(n_matched);
  return (tallies_[c].n_right + kPriors[c] * kPriorTokens) / (tallies_[c].n_tokens + kPriorTokens);
}

std::uint32_t n_worth_verifying(double p_right, double row_share, std::uint32_t n_max) {
  std::uint32_t n = 0;
  for (double p = p_right; n < n_max && p > row_share * kMargin; p *= p_right)
    ++n;
  return n;
}

Speculation::Speculation(const SpeculationOptions& options, const Limits& limits)
    : options_(options),
      limits_(limits),
      states_(options.n_draft_max > 0 ? limits.n_slots : 0),
      drafts_(std::size_t{limits.n_slots} * options.n_draft_max) {
  if (options.draft_model == nullptr) return;
  candidates_.reserve(limits.n_slots);
  wishes_.reserve(limits.n_slots);
}

void Speculation::offer(SequenceTable& sequences, Group& group, const DraftModel* model) {
  if (!is_on()) return;
  const StepCosts& costs = group.cost_fit.costs();
  Room room = room_beside(sequences, group);
  const bool is_retry = group.draft_pause.is_over() && room.step_ns > 0.0;
  bool is_blocked = false;
  for (const std::uint32_t slot : sequences.order()) {
    Sequence& sequence = sequences[slot];
    if (sequence.group != &group) continue;
    if (sequence.in_step()) continue;  // its draft is being verified
    sequence.n_draft = 0;
    states_[slot].n_draft = 0;
    const Drafts wish = sequence.request->asked->drafts;
    if (sequence.phase != Phase::decode || wish == Drafts::never) continue;
    if (model != nullptr) {
      copy_draft(slot, sequence, *model);
      fit(sequence, states_[slot].n_draft, room);
      continue;
    }
    if (options_.drafter != nullptr || wish == Drafts::always) {
      make_draft(slot, sequence);
      fit(sequence, states_[slot].n_draft, room);
      continue;
    }
    double share = row_share(sequence, room, costs);
    if (is_retry) share = std::min(share, kRetryShare);
    if (n_worth_verifying(1.0, share, 1) == 0) {
      is_blocked = true;
      continue;
    }
    make_draft(slot, sequence);
    const State& state = states_[slot];
    const double p = state.record.p_right(state.n_matched);
    fit(sequence, n_worth_verifying(p, share, state.n_draft), room);
  }
  if (model == nullptr) group.draft_pause.note(is_blocked, is_retry);
}

void DraftPause::note(bool is_blocked, bool is_retry) {
  if (is_retry) {
    n_blocked = 0;
    n_blocked_max = std::min(2 * n_blocked_max, kRetryStepsMax);
  } else if (is_blocked) {
    ++n_blocked;
  } else {
    n_blocked = 0;
    n_blocked_max = kRetrySteps;
  }
}

Speculation::Room Speculation::room_beside(const SequenceTable& sequences,
                                           const Group& group) const {
  Room room;
  room.n_blocks = group.pool.n_available();
  std::uint64_t n_rows = 0;
  for (const std::uint32_t slot : sequences.order()) {
    const Sequence& sequence = sequences[slot];
    if (sequence.group != &group) continue;
    if (sequence.in_step()) {
      room.n_blocks -= 2;  // those it may want of the next one
    } else if (sequence.phase == Phase::decode) {
      ++n_rows;
      room.load.n_kv_tokens += sequence.n_tokens();
      room.n_blocks -= 2;  // its next one, and a copy of its last
    } else {
      n_rows += sequence.n_prefill - sequence.n_computed;
      // What a prompt was let in for, and what one that waits would be let in for.
      const std::uint32_t n_held = sequence.n_blocks + sequence.hit.n_blocks;
      room.n_blocks -= std::int64_t{sequence.n_prefill / limits_.kv_block_tokens} + 2 - n_held;
    }
  }
  room.load.n_rows =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(n_rows, limits_.n_rows_max));
  room.n_rows = std::min(limits_.n_rows_max - room.load.n_rows, limits_.n_draft_rows_max);
  room.step_ns = group.cost_fit.costs().step_ns(room.load);
  return room;
}

// Tokens that the step brings in the time of one row more. Prompts count as well as answers.
double Speculation::row_share(const Sequence& sequence,
                              const Room& room,
                              const StepCosts& costs) const {
  if (room.step_ns <= 0.0) return 1.0;  // nothing has been measured
  const double row_ns = costs.per_row_ns + costs.per_kv_token_ns * sequence.n_tokens();
  return room.load.n_rows * row_ns / room.step_ns;
}

Speculation::State& Speculation::state_of(std::uint32_t slot, const Sequence& sequence) {
  State& state = states_[slot];
  if (state.row_id != sequence.row_id)
    state = {.row_id = sequence.row_id, .n_idle_max = kRetrySteps};
  return state;
}

// Tokens that may be drafted: the step's own token comes after them, and must be allowed too.
std::uint32_t Speculation::n_left(const Sequence& sequence) {
  return sequence.request->asked->stop.n_generated_max - sequence.n_generated() - 1;
}

void Speculation::make_draft(std::uint32_t slot, Sequence& sequence) {
  State& state = state_of(slot, sequence);
  state.n_draft = 0;
  state.n_noted = 0;
  const SequenceRequest& asked = *sequence.request->asked;
  const std::uint32_t n_max = std::min(options_.n_draft_max, n_left(sequence));
  if (n_max == 0) return;
  const std::span<pipeline::TokenId> draft(
      drafts_.data() + std::size_t{slot} * options_.n_draft_max, n_max);
  Choice& choice = sequence.choice();
  const SplitText text{asked.prompt, choice.generated};
  if (options_.drafter != nullptr) {
    state.n_draft = std::min(options_.drafter(options_.drafter_context, text, draft), n_max);
    return;
  }
  const std::optional<NgramMatch> match =
      choice.look_up(text, options_.lengths, sequence.request->prompt_ngrams);
  if (!match) return;
  continue_match(text, *match, draft);
  state.n_draft = n_max;
  state.n_matched = match->n_tokens;
}

void Speculation::copy_draft(std::uint32_t slot,
                             const Sequence& sequence,
                             const DraftModel& model) {
  State& state = state_of(slot, sequence);
  const std::span<const pipeline::TokenId> draft = model.draft(slot, sequence);
  std::copy(
      draft.begin(),
      draft.end(),
      drafts_.begin() + static_cast<std::ptrdiff_t>(std::size_t{slot} * options_.n_draft_max));
  state.n_draft = static_cast<std::uint32_t>(draft.size());
  state.n_noted = 0;
  state.n_matched = kModelMatched;
}

Speculation::Round Speculation::choose(const SequenceTable& sequences,
                                       Group& group,
                                       const DraftModel& model) {
  candidates_.clear();
  wishes_.clear();
  const StepCosts& costs = group.cost_fit.costs();
  const Room room = room_beside(sequences, group);
  // Prompts fill steps, and a draft would hold them up: policies leave drafts out beside them.
  const bool any_prompt = std::ranges::any_of(sequences.order(), [&](std::uint32_t slot) {
    return sequences[slot].phase != Phase::decode;
  });
  bool any_always = false;
  for (const std::uint32_t slot : sequences.order()) {
    const Sequence& sequence = sequences[slot];
    if (sequence.phase != Phase::decode || sequence.request->cancelled) continue;
    const bool is_always = sequence.request->asked->drafts == Drafts::always;
    any_always |= is_always;
    if (is_always || !any_prompt) add_candidate(slot, sequence, room, costs, model);
  }
  const StepCosts& draft_costs = model.costs();
  const bool is_retry = choose_lengths(room, model, group.draft_pause);
  std::uint32_t n_rows = 0;
  for (const DraftCandidate& candidate : candidates_) {
    const std::uint32_t n = std::min(candidate.n, room.n_rows - std::min(room.n_rows, n_rows));
    if (n == 0 || wishes_.size() == model.n_seqs_max()) continue;
    wishes_.push_back({.slot = candidate.slot, .n_draft = n});
    n_rows += n;  // what could not be verified is not drafted
  }
  // What a trial finds must be a draft, not a part of the text.
  if (any_always || is_retry) return {.wishes = wishes_, .n_rows_max = kCatchUpRowsMax};
  // A first step about as long as the target's: its own bound on rows is the draft model's.
  const double n_rows_worth =
      draft_costs.per_row_ns > 0.0 ? room.step_ns / draft_costs.per_row_ns : 0.0;
  const auto n_rows_max = static_cast<std::uint32_t>(
      std::clamp(n_rows_worth, double{kCatchUpRowsMin}, double{kCatchUpRowsMax}));
  return {.wishes = wishes_, .n_rows_max = n_rows_max};
}

void Speculation::add_candidate(std::uint32_t slot,
                                const Sequence& sequence,
                                const Room& room,
                                const StepCosts& costs,
                                const DraftModel& model) {
  const Drafts wish = sequence.request->asked->drafts;
  const std::uint32_t n_max =
      std::min({options_.n_draft_max, n_left(sequence), model.n_draft_max(slot, sequence)});
  if (n_max == 0 || wish == Drafts::never) return;
  const StepCosts& draft_costs = model.costs();
  const double n_kv_tokens = sequence.n_tokens();
  DraftCandidate candidate{.slot = slot, .n_max = n_max};
  if (wish == Drafts::always) {
    candidate.n = n_max;
    candidate.n_max = 0;  // nothing is left to decide
  } else {
    // What the draft model has to compute first must come in again by the end of the answer.
    const double catch_up_ns = draft_costs.per_row_ns * model.n_missing(slot, sequence);
    if (catch_up_ns > kCatchUpShare * room.step_ns * n_left(sequence)) return;
    candidate.p_right = state_of(slot, sequence).record.p_right(kModelMatched);
    candidate.row_ns = costs.per_row_ns + draft_costs.per_row_ns +
                       (costs.per_kv_token_ns + draft_costs.per_kv_token_ns) * n_kv_tokens;
  }
  candidates_.push_back(candidate);
}

// Returns whether one is drafted for only for what it shows.
bool Speculation::choose_lengths(const Room& room, const DraftModel& model, DraftPause& pause) {
  if (room.step_ns <= 0.0) return false;  // nothing has been measured
  if (model.is_measured())
    choose_draft_lengths(candidates_, room.step_ns / room.load.n_rows, model.costs().fixed_ns);
  const auto is_open = [](const DraftCandidate& candidate) { return candidate.n_max > 0; };
  const auto open = std::find_if(candidates_.begin(), candidates_.end(), is_open);
  if (open == candidates_.end()) return false;
  const bool any = std::any_of(candidates_.begin(), candidates_.end(), [](const auto& candidate) {
    return candidate.n_max > 0 && candidate.n > 0;
  });
  const bool is_retry = !any && (!model.is_measured() || pause.is_over());
  if (is_retry) open->n = std::min(open->n_max, kRetryTokens);
  pause.note(!any, is_retry);
  retry_idle(any);
  return is_retry;
}

// One that is left out while others are drafted for.
void Speculation::retry_idle(bool any_drafts) {
  for (DraftCandidate& candidate : candidates_) {
    State& state = states_[candidate.slot];
    if (candidate.n_max == 0 || !any_drafts) continue;
    if (candidate.n > 0) {
      state.n_idle = 0;
      state.n_idle_max = kRetrySteps;
    } else if (++state.n_idle >= state.n_idle_max) {
      candidate.n = std::min(candidate.n_max, kRetryTokens);
      state.n_idle = 0;
      state.n_idle_max = std::min(2 * state.n_idle_max, kRetryStepsMax);
    }
  }
}

// Bounds the offer by rows and blocks, and takes them from the room.
void Speculation::fit(Sequence& sequence, std::uint32_t n_wanted, Room& room) const {
  std::uint32_t n = std::min(n_wanted, room.n_rows);
  const std::uint32_t n_next = sequence.n_computed + 1;
  const std::int64_t n_held =
      std::max(sequence.n_blocks, div_ceil(n_next, limits_.kv_block_tokens));
  std::int64_t n_more = div_ceil(n_next + n, limits_.kv_block_tokens) - n_held;
  if (n_more > std::max<std::int64_t>(room.n_blocks, 0)) {
    n = std::min(n, static_cast<std::uint32_t>(n_held) * limits_.kv_block_tokens - n_next);
    n_more = 0;
  }
  sequence.n_draft = n;
  room.n_rows -= n;
  room.n_blocks -= std::max<std::int64_t>(n_more, 0);
}

void Speculation::note(std::uint32_t slot, pipeline::TokenId drawn) {
  if (!is_on()) return;
  State& state = states_[slot];
  if (state.n_noted == state.n_draft) return;
  const bool was_right = draft(slot)[state.n_noted] == drawn;
  state.record.note(state.n_matched, was_right);
  if (was_right)
    ++state.n_noted;
  else
    state.n_noted = state.n_draft;  // nothing can be said of the rest
}

}  // namespace luna::engine
