// Tokens out of a step's rows, and the ends of sequences.
#include "core/engine/engine_impl.hpp"
#include "core/engine/row_hash.hpp"
#include "core/engine/sequence_ends.hpp"

#include <algorithm>
#include <utility>

namespace luna::engine {
namespace {

using pipeline::FinishReason;
using pipeline::StreamEnd;
using telemetry::bump;
using telemetry::EndCode;
using telemetry::seconds;

EndCode end_code(const StreamEnd& end) {
  switch (end.reason) {
    case FinishReason::stop:
      return EndCode::ok;
    case FinishReason::length:
      return EndCode::length;
    case FinishReason::cancelled:
      return EndCode::cancelled;
    case FinishReason::failed:
      if (end.code == Code::timeout) return EndCode::cancelled;
      if (end.code == Code::exhausted) return EndCode::rejected;
      return end.code == Code::invalid_argument ? EndCode::client_error : EndCode::server_error;
  }
  return EndCode::server_error;
}

}  // namespace

void Engine::Impl::produce(const StepLane& lane, const StepBatch::Entry& entry, Nanoseconds now) {
  LiveRequest& request = *sequences[entry.slot].request;
  if (std::exchange(request.forked, true) || request.choices.size() == 1) {
    verify(lane, entry, now);
    return;
  }
  const LogitsRow row = output_row(lane, *entry.out_row);
  // All choices draw their first token from the prompt's last row.
  const std::span<const std::uint32_t> others = sequences.fork(entry.slot);
  draw_token(entry.slot, row, now);
  for (const std::uint32_t slot : others) {
    draw_token(slot, row, now);
    // At once: the first gives keys to the blocks that they share.
    if (sequences.is_live(slot)) sequences[slot].group->prefixes.keep(sequences[slot]);
  }
}

// Every token is drawn, by what it would be drawn by without a draft. As long as it is the draft's,
// the next row was computed from the right tokens, and its KV is there; the KV of the others is
// written again before any row may attend to it.
void Engine::Impl::verify(const StepLane& lane, const StepBatch::Entry& entry, Nanoseconds now) {
  Sequence& sequence = sequences[entry.slot];
  for (std::uint32_t i = 0;; ++i) {
    const bool goes_on = draw_token(entry.slot, output_row(lane, *entry.out_row + i), now);
    if (!goes_on) return;
    const pipeline::TokenId drawn = sequence.choice().generated.back();
    speculation.note(entry.slot, drawn);
    if (i == entry.n_draft || drawn != speculation.draft(entry.slot)[i]) return;
    ++sequence.n_computed;
    bump(parts.stats.n_draft_tokens_accepted, 1);
  }
}

std::uint32_t Engine::Impl::output_flags(const Sequence& sequence, std::uint32_t n_ahead) const {
  const SequenceRequest& asked = *sequence.request->asked;
  const std::uint32_t flags = sampler.output_flags(draw_context(sequence, n_ahead), asked.logprobs);
  return asked.hash_logits ? flags | LUNA_OUT_LOGITS : flags;
}

LogitsRow Engine::Impl::output_row(const StepLane& lane, std::uint32_t out_row) const {
  const std::uint32_t flags = lane.batch.out_flags(out_row);
  LogitsRow row;
  if ((flags & LUNA_OUT_LOGITS) != 0) {
    const std::size_t n = limits.vocab_size;
    row.logits = {lane.outputs.logits + out_row * n, n};
  }
  if ((flags & LUNA_OUT_CANDIDATES) != 0) {
    const std::size_t n = n_candidates;
    row.candidates = {lane.outputs.candidates + out_row * (n + 1), n};
    row.log_sum_exp = lane.outputs.candidates[out_row * (n + 1) + n].logit;
  }
  return row;
}

// n_ahead  tokens of the draft that will have been drawn before; what they are it does not know
DrawContext Engine::Impl::draw_context(const Sequence& sequence, std::uint32_t n_ahead) {
  const LiveRequest& request = *sequence.request;
  return {.params = request.asked->sampling,
          .prompt = request.asked->prompt,
          .output = sequence.choice().generated,
          .allowed = request.allowed_ids,
          .masked = request.masked_ids(sequence.n_generated() + n_ahead),
          .choice_idx = request.first_choice + sequence.choice_idx};
}

// Returns whether the sequence goes on.
bool Engine::Impl::draw_token(std::uint32_t slot, const LogitsRow& row, Nanoseconds now) {
  Sequence& sequence = sequences[slot];
  const SequenceRequest& asked = *sequence.request->asked;
  if (asked.hash_logits) sequence.trace.logits_hash = hash_row(sequence.trace.logits_hash, row);
  const Draw draw = sampler.draw(row, draw_context(sequence, 0));
  if (draw.outcome != DrawOutcome::drawn) {
    const bool not_finite = draw.outcome == DrawOutcome::not_finite;
    end_sequence(slot, not_finite ? kNotFinite : kNothingAllowed);
    return false;
  }
  float logprob = 0.0F;
  std::span<const pipeline::TokenLogprob> top;
  if (asked.logprobs.enabled) {
    logprob = Sampler::logprob(row, draw.token_id);
    top = sampler.top_logprobs(row, asked.logprobs.n_top);
  }
  Choice& choice = sequence.choice();
  const bool first = choice.generated.empty();
  const auto reason =
      choice.accept(draw.token_id, sequence.request->ends_with(draw.token_id), logprob, top);
  if (sequence.request->is_replay) {
    // Nobody waits for its tokens.
  } else if (!first) {
    parts.stats.itl_seconds.observe(seconds(now - sequence.last_token_at));
  } else if (sequence.choice_idx == 0) {
    parts.stats.ttft_seconds.observe(seconds(now - asked.arrival));
  }
  sequence.last_token_at = now;
  if (reason) {
    end_sequence(slot, {.reason = *reason});
  } else {
    publish(*sequence.request, choice);
  }
  return !reason;
}

void Engine::Impl::publish(const LiveRequest& request, Choice& choice) {
  if (request.is_replay) return;
  bump(parts.stats.n_generated_tokens, choice.publish());
  published = true;
}

void Engine::Impl::end_sequence(std::uint32_t slot, const StreamEnd& end) {
  LiveRequest& request = *sequences[slot].request;
  request.end_code = std::max(request.end_code, end_code(end));
  StreamEnd told = end;
  told.n_cached = request.n_cached;
  told.trace = sequences[slot].trace;
  told.trace.n_preempted = sequences[slot].n_preempted;
  const auto close = [&](Choice& choice) {
    choice.finish(told);
    publish(request, choice);
    --request.n_open;
  };
  if (request.forked) {
    close(sequences[slot].choice());
  } else {
    // The other choices have no sequence yet: they share the fate of the first.
    for (Choice& choice : request.choices)
      close(choice);
  }
  Group* const group = sequences[slot].group;
  if (group != nullptr && end.reason != FinishReason::failed) group->prefixes.keep(sequences[slot]);
  moves.withdraw(sequences[slot]);
  slices.abandon(sequences[slot]);
  sequences.remove(slot);
  if (request.n_open == 0) retire(request, group);
}

void Engine::Impl::end_all(const StreamEnd& end) {
  for (const std::uint32_t slot : sequences.order())
    if (!sequences[slot].in_step()) end_sequence(slot, end);
  sequences.drop_removed();
}

// The request's memory is freed by another thread; nothing may touch it afterwards.
void Engine::Impl::retire(LiveRequest& request, Group* group) {
  if (!request.is_replay) count_end(request, group);
  if (replay == &request) replay = nullptr;
  if (output_check && output_check->take(request)) return;
  request.next = finished.load(std::memory_order_relaxed);
  while (!finished.compare_exchange_weak(
      request.next, &request, std::memory_order_release, std::memory_order_relaxed)) {}
}

void Engine::Impl::count_end(const LiveRequest& request, Group* group) {
  const Nanoseconds latency = parts.clock.now() - request.asked->arrival;
  if (group != nullptr) group->note_latency(latency);
  parts.stats.e2e_seconds.observe(seconds(latency));
  bump(parts.stats.n_ended[static_cast<std::size_t>(request.end_code)], 1);
  const auto n_sequences = static_cast<std::uint32_t>(request.choices.size());
  if (!request.started) n_queued.fetch_sub(n_sequences);
  n_live.fetch_sub(n_sequences);
}

}  // namespace luna::engine
