#include "core/engine/draft_model.hpp"

#include "core/base/assert.hpp"
#include "core/base/units.hpp"

#include <algorithm>
#include <cmath>

namespace luna::engine {
namespace {

// A sequence that found no block gives back what it has and leaves the others so many rounds:
// asking at each would compute its text again and again, to be cut off at the same place.
constexpr std::uint64_t kBlockedRounds = 64;
// A device that failed so often will not recover; each failure cost the draft KV of all.
constexpr std::uint32_t kFailuresMax = 3;

}  // namespace

DraftModel::DraftModel(const model::CompiledModel& model,
                       const Clock& clock,
                       WakeSignal& wake,
                       const Limits& limits)
    : model_(model),
      clock_(clock),
      limits_(limits),
      limits_of_step_(model.limits),
      block_table_stride_(div_ceil(model.limits.n_positions_max, model.kv_block_tokens)),
      pool_(model.n_kv_blocks),
      runner_(model, wake),
      states_(limits.n_slots),
      blocks_(std::size_t{limits.n_slots} * block_table_stride_),
      drafts_(std::size_t{limits.n_slots} * limits.n_draft_max),
      rows_(limits_of_step_, model.kv_block_tokens) {
  holders_.reserve(limits.n_slots);
  round_.reserve(limits_of_step_.n_seqs_max);
  entries_.reserve(limits_of_step_.n_seqs_max);
}

bool DraftModel::is_usable() const {
  return n_failures_ < kFailuresMax && !runner_.has_aborted();
}

std::uint32_t DraftModel::n_draft_max(std::uint32_t slot, const Sequence& sequence) const {
  const State& state = states_[slot];
  if (!is_usable()) return 0;
  if (state.row_id == sequence.row_id && n_rounds_ < state.blocked_until) return 0;
  // The draft's last token is not computed.
  const std::uint32_t n_tokens = sequence.n_tokens();
  if (n_tokens > limits_of_step_.n_positions_max) return 0;
  return std::min(limits_.n_draft_max, limits_of_step_.n_positions_max - n_tokens + 1);
}

std::uint32_t DraftModel::n_missing(std::uint32_t slot, const Sequence& sequence) const {
  const State& state = states_[slot];
  const std::uint32_t n_known =
      state.row_id == sequence.row_id
          ? std::min(state.n_computed, state.n_base + n_agreed(slot, sequence))
          : 0;
  return sequence.n_tokens() - n_known;
}

// Tokens of the draft that were then drawn, from the first on.
std::uint32_t DraftModel::n_agreed(std::uint32_t slot, const Sequence& sequence) const {
  const State& state = states_[slot];
  const std::uint32_t n = std::min(state.n_draft, sequence.n_tokens() - state.n_base);
  const pipeline::TokenId* draft = tokens_of(slot);
  std::uint32_t i = 0;
  while (i < n && sequence.token(state.n_base + i) == draft[i])
    ++i;
  return i;
}

bool DraftModel::begin(const SequenceTable& sequences,
                       std::span<const DraftWish> wishes,
                       std::uint32_t n_rows_max) {
  LUNA_ASSERT(!is_running());
  LUNA_ASSERT(wishes.size() <= limits_of_step_.n_seqs_max);
  ++n_rounds_;
  round_.clear();
  for (const DraftWish& wish : wishes)
    if (prepare(wish, sequences[wish.slot])) round_.push_back(wish.slot);
  if (round_.empty()) return false;
  // One row each, at least.
  n_rows_max_ =
      std::clamp(n_rows_max, static_cast<std::uint32_t>(round_.size()), limits_of_step_.n_rows_max);
  submit(sequences);
  return true;
}

// Brings the state of a sequence up to its text, and makes room for its draft.
bool DraftModel::prepare(const DraftWish& wish, const Sequence& sequence) {
  State& state = states_[wish.slot];
  if (state.row_id != sequence.row_id) {
    LUNA_ASSERT(state.row_id == 0);  // swept
    state = {.row_id = sequence.row_id};
    holders_.push_back(wish.slot);
  }
  // The last token is computed in any case: what follows it is wanted.
  state.n_computed = std::min(
      {state.n_computed, state.n_base + n_agreed(wish.slot, sequence), sequence.n_tokens() - 1});
  state.n_base = sequence.n_tokens();
  state.n_draft = 0;
  state.n_wanted = std::min(wish.n_draft, n_draft_max(wish.slot, sequence));
  if (state.n_wanted > 0 && take_blocks(wish.slot)) return true;
  return false;
}

// All blocks that the text and its draft need, when it begins; later as many as there are.
bool DraftModel::take_blocks(std::uint32_t slot) {
  State& state = states_[slot];
  const std::uint32_t n_needed =
      div_ceil(state.n_base + state.n_wanted - 1, model_.kv_block_tokens);
  const std::uint32_t n_more = n_needed - std::min(n_needed, state.n_blocks);
  std::uint32_t* const blocks = blocks_.data() + std::size_t{slot} * block_table_stride_;
  if (n_more <= pool_.n_available()) {
    for (std::uint32_t i = 0; i < n_more; ++i)
      blocks[state.n_blocks++] = *pool_.allocate();
    return true;
  }
  const std::uint32_t n_places = state.n_blocks * model_.kv_block_tokens;
  if (n_places >= state.n_base) {
    state.n_wanted = std::min(state.n_wanted, n_places - state.n_base + 1);
    return true;
  }
  release(slot);
  state.blocked_until = n_rounds_ + kBlockedRounds;
  return false;
}

// The state stays somebody's: what is known of it beside blocks outlives them.
void DraftModel::release(std::uint32_t slot) {
  State& state = states_[slot];
  const std::uint32_t* const blocks = blocks_.data() + std::size_t{slot} * block_table_stride_;
  while (state.n_blocks > 0)
    pool_.release(blocks[--state.n_blocks]);
  state.n_computed = 0;
  state.n_draft = 0;
}

void DraftModel::release_all() {
  for (const std::uint32_t slot : holders_)
    release(slot);
}

void DraftModel::sweep(const SequenceTable& sequences) {
  LUNA_ASSERT(!is_running());
  const auto end = std::remove_if(holders_.begin(), holders_.end(), [&](std::uint32_t slot) {
    const Sequence& sequence = sequences[slot];
    const bool decodes = sequences.is_live(slot) && sequence.row_id == states_[slot].row_id &&
                         sequence.phase == Phase::decode;
    if (decodes) return false;
    release(slot);
    states_[slot] = {};
    return true;
  });
  holders_.erase(end, holders_.end());
}

void DraftModel::submit(const SequenceTable& sequences) {
  entries_.clear();
  rows_.clear();
  auto n_left = n_rows_max_;
  auto n_after = static_cast<std::uint32_t>(round_.size());
  for (const std::uint32_t slot : round_) {
    const State& state = states_[slot];
    --n_after;  // a row for each of them
    const std::uint32_t n_due = state.n_base + state.n_draft - state.n_computed;
    const std::uint32_t n_tokens = std::min(n_due, n_left - n_after);
    n_left -= n_tokens;
    add_rows(slot, sequences[slot], n_tokens);
    if (n_tokens < n_due) continue;
    entries_.back().out_row = rows_.n_out_rows();
    rows_.add_output(0, LUNA_OUT_CANDIDATES);
  }
  luna_step step{};
  step.struct_size = sizeof(step);
  rows_.fill(step);
  ++n_steps_;
  submitted_ = clock_.now();
  runner_.submit(step);
}

void DraftModel::add_rows(std::uint32_t slot, const Sequence& sequence, std::uint32_t n_tokens) {
  const State& state = states_[slot];
  const std::uint32_t* const blocks = blocks_.data() + std::size_t{slot} * block_table_stride_;
  rows_.add({.blocks = {blocks, state.n_blocks},
             .first_position = state.n_computed,
             .first_slot = state.n_computed,
             .n_tokens = n_tokens},
            [&](std::uint32_t i) {
              const std::uint32_t position = state.n_computed + i;
              return position < state.n_base ? sequence.token(position)
                                             : tokens_of(slot)[position - state.n_base];
            });
  entries_.push_back({.slot = slot, .n_tokens = n_tokens, .out_row = std::nullopt});
}

DraftModel::Progress DraftModel::go_on(const SequenceTable& sequences) {
  const StepRunner::Outcome outcome = runner_.collect();
  if (!outcome.ok) return fail(outcome);
  cost_fit_.add(rows_.load(), clock_.now() - submitted_);
  // Two rows: the last token of a draft that was right, and the target's own.
  is_measured_ |= rows_.load().n_rows <= 2 * entries_.size();
  round_.clear();
  for (const Entry& entry : entries_) {
    State& state = states_[entry.slot];
    state.n_computed += entry.n_tokens;
    // One that has more to compute leaves the round: the target's step goes first.
    if (!entry.out_row || !take_token(entry)) continue;
    if (state.n_draft < state.n_wanted) round_.push_back(entry.slot);
  }
  if (round_.empty()) return Progress::ended;
  submit(sequences);
  return Progress::goes_on;
}

// The best candidate of the entry's last row. A model that gives no number drafts no token.
bool DraftModel::take_token(const Entry& entry) {
  const std::size_t row_size = std::size_t{model_.n_candidates} + 1;
  const model::Candidate& best = model_.outputs.front().candidates[*entry.out_row * row_size];
  if (!std::isfinite(best.logit) || best.token_id >= model_.config.vocab_size) return false;
  State& state = states_[entry.slot];
  tokens_of(entry.slot)[state.n_draft++] = best.token_id;
  return true;
}

// What the step wrote cannot be told: all KV is forgotten.
DraftModel::Progress DraftModel::fail(const StepRunner::Outcome& outcome) {
  ++n_failures_;
  failure_ = outcome;
  round_.clear();
  release_all();
  return Progress::failed;
}

std::span<const pipeline::TokenId> DraftModel::draft(std::uint32_t slot,
                                                     const Sequence& sequence) const {
  const State& state = states_[slot];
  if (state.row_id != sequence.row_id || state.n_base != sequence.n_tokens()) return {};
  return {tokens_of(slot), state.n_draft};
}

std::string_view DraftModel::audit() const {
  std::uint32_t n_held = 0;
  for (const State& state : states_) {
    n_held += state.n_blocks;
    if (state.n_blocks > 0 && state.row_id == 0) return "draft KV belongs to no sequence";
    if (state.n_computed > state.n_blocks * model_.kv_block_tokens)
      return "draft KV lies beyond its blocks";
  }
  if (n_held != pool_.n_used()) return "the blocks of the draft KV are miscounted";
  for (const std::uint32_t slot : holders_) {
    const std::uint32_t* const blocks = blocks_.data() + std::size_t{slot} * block_table_stride_;
    for (std::uint32_t b = 0; b < states_[slot].n_blocks; ++b)
      if (pool_.n_references(blocks[b]) != 1) return "a block of the draft KV is used twice";
  }
  return {};
}

}  // namespace luna::engine
