// The turns of the engine's loop.
#include "core/base/assert.hpp"
#include "core/base/log.hpp"
#include "core/engine/engine_impl.hpp"

#include <algorithm>
#include <utility>

namespace luna::engine {
namespace {

using pipeline::FinishReason;
using pipeline::StreamEnd;
using telemetry::EndCode;

// A policy may err once; one that errs this often in a row will not recover.
constexpr std::uint32_t kRefusalsMax = 8;
// The books are counted again at every step where asserts are on; where they are off, so seldom
// that a pool of a million blocks (a millisecond to count) costs a step nothing that one could
// measure.
#ifdef NDEBUG
constexpr std::uint64_t kAuditSteps = 256;
#else
constexpr std::uint64_t kAuditSteps = 1;
#endif

constexpr StreamEnd kCancelled{.reason = FinishReason::cancelled};
constexpr StreamEnd kTooLate{.reason = FinishReason::failed,
                             .code = Code::timeout,
                             .error = "the request's deadline passed before it was finished"};
constexpr StreamEnd kRejected{.reason = FinishReason::failed,
                              .code = Code::exhausted,
                              .error = "the scheduler refused the request"};
constexpr StreamEnd kNoPlan{.reason = FinishReason::failed,
                            .code = Code::internal,
                            .error = "the scheduler gave no legal plan, several times in a row"};
constexpr StreamEnd kDeviceFailed{.reason = FinishReason::failed,
                                  .code = Code::unavailable,
                                  .error = "a device failed during the step"};
constexpr StreamEnd kNotFinite{.reason = FinishReason::failed,
                               .code = Code::internal,
                               .error = "the model's output is not a number"};
constexpr StreamEnd kNothingAllowed{.reason = FinishReason::failed,
                                    .code = Code::invalid_argument,
                                    .error = "masks and biases leave no token to draw"};

KvPool make_pool(const model::CompiledModel& model, const EngineOptions& options) {
  if (!options.prefix_cache) return KvPool(model.n_kv_blocks);
  return KvPool(PrefixTree::Options{.n_blocks = model.n_kv_blocks,
                                    .block_tokens = model.kv_block_tokens,
                                    .hash_seed = options.prefix_hash_seed,
                                    .hash = hash_words});
}

double seconds(Nanoseconds t) {
  return std::chrono::duration<double>(t).count();
}

void bump(std::atomic<std::uint64_t>& counter, std::uint64_t by) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

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

Engine::Impl::Impl(const EngineParts& engine_parts,
                   const RequestLimits& request_limits,
                   const model::StepLimits& limits_of_a_step,
                   const EngineOptions& options)
    : parts(engine_parts),
      limits(request_limits),
      step_limits(limits_of_a_step),
      n_waiting_max(options.n_waiting_max),
      // A submit and a few cancels of every sequence.
      inbox(std::size_t{4} * (options.n_waiting_max + step_limits.n_seqs_max)),
      pool(make_pool(parts.model, options)),
      prefixes(pool),
      // Those in the queue and those of a step; more that hold KV are not let in.
      sequences(
          options.n_waiting_max + step_limits.n_seqs_max,
          (step_limits.n_positions_max + limits.kv_block_tokens - 1) / limits.kv_block_tokens),
      audit(pool.n_blocks()),
      gate(parts.scheduler,
           {.n_rows_max = step_limits.n_rows_max,
            .n_seqs_max = step_limits.n_seqs_max,
            .kv_block_tokens = limits.kv_block_tokens,
            .kv_block_bytes = parts.model.kv_block_bytes,
            .n_devices = static_cast<std::uint32_t>(parts.model.shards.size())},
           sequences,
           pool),
      plan(sequences.n_slots(), step_limits.n_seqs_max),
      batch(step_limits, limits.kv_block_tokens),
      runner(parts.model, wake),
      sampler(limits.vocab_size, parts.model.n_candidates),
      loads(parts.model.shards.size()) {
  update_gauges();
}

bool Engine::Impl::advance() {
  bool worked = drain_inbox();
  if (runner.is_busy()) {
    if (!runner.is_done()) return worked;
    finish_step();
    worked = true;
  }
  const Nanoseconds now = parts.clock.now();
  worked |= apply_ends(now);
  plan_due |= worked || (plan.wake_at && *plan.wake_at <= now);
  if (sequences.order().empty()) {
    plan.clear();  // a wish to be woken has no object any more
  } else if (std::exchange(plan_due, false)) {
    note_progress(now);
    update_gauges();  // a policy that never answers is seen to hold up work
    plan_step(now);
    worked = true;
  }
  update_gauges();
  if (std::exchange(published, false)) parts.on_published(parts.context);
  return worked;
}

std::optional<Nanoseconds> Engine::Impl::next_wake() const {
  if (runner.is_busy()) return std::nullopt;  // its end is the next thing to happen
  std::optional<Nanoseconds> wake_at = plan.wake_at;
  for (const std::uint32_t slot : sequences.order()) {
    const std::optional<Nanoseconds> deadline = sequences[slot].request->asked->deadline;
    if (deadline && (!wake_at || *deadline < *wake_at)) wake_at = deadline;
  }
  return wake_at;
}

bool Engine::Impl::drain_inbox() {
  bool heard = false;
  while (std::optional<Command> command = inbox.try_pop()) {
    heard = true;
    if (command->submitted != nullptr) {
      // From here to retire() the table's sequences own it.
      sequences.add(*command->submitted.release());
      continue;
    }
    for (const std::uint32_t slot : sequences.order()) {
      LiveRequest& request = *sequences[slot].request;
      if (request.asked->id == command->cancelled_id) request.cancelled = true;
    }
  }
  return heard;
}

// The client's wish and the clock. No step runs.
bool Engine::Impl::apply_ends(Nanoseconds now) {
  bool ended = false;
  for (const std::uint32_t slot : sequences.order()) {
    const LiveRequest& request = *sequences[slot].request;
    const bool late = request.asked->deadline && *request.asked->deadline <= now;
    if (!request.cancelled && !late) continue;
    end_sequence(slot, request.cancelled ? kCancelled : kTooLate);
    ended = true;
  }
  if (ended) sequences.drop_removed();
  return ended;
}

// What others have computed since the last plan, a prompt need not compute.
void Engine::Impl::find_prefixes() {
  for (const std::uint32_t slot : sequences.order()) {
    Sequence& sequence = sequences[slot];
    if (sequence.phase == Phase::waiting) prefixes.look_up(sequence);
    if (sequence.phase == Phase::prefill) count_cached(sequence, prefixes.skip(sequence));
  }
}

void Engine::Impl::count_cached(Sequence& sequence, std::uint32_t n_tokens) {
  sequence.n_cached += n_tokens;
  if (sequence.n_preempted > 0) return;
  sequence.request->n_cached += n_tokens;
  bump(parts.stats.n_prompt_tokens, n_tokens);
  bump(parts.stats.n_cached_tokens, n_tokens);
}

void Engine::Impl::plan_step(Nanoseconds now) {
  std::array<Nanoseconds, 10> latencies = last_latencies;
  const auto n = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(n_latencies, 10));
  std::sort(latencies.begin(), latencies.begin() + n);
  const Nanoseconds p95 =
      n > 0 ? latencies[static_cast<std::size_t>((n * 95 + 99) / 100 - 1)] : Nanoseconds{0};
  const SnapshotTime time{
      .step = n_steps, .now = now, .latency_ns_p95 = static_cast<std::uint64_t>(p95.count())};
  find_prefixes();
  const PlanFault fault = gate.ask(time, loads, plan);
  bump(parts.stats.n_plan_calls, 1);
  parts.stats.plan_seconds.observe(seconds(parts.clock.now() - now));
  if (fault != PlanFault::none) {
    refuse_plan(fault);
    return;
  }
  n_refused = 0;
  for (const std::uint32_t slot : plan.rejected)
    end_sequence(slot, kRejected);
  for (const std::uint32_t slot : plan.preempted) {
    sequences.preempt(slot, pool);
    bump(parts.stats.n_preempted, 1);
  }
  sequences.drop_removed();
  start_step(now);
  // A plan that only made room is followed by another one at once.
  plan_due = plan.runs.empty() && !plan.wake_at;
  if (n_steps % kAuditSteps == 0 && !audit.run(pool, sequences).empty())
    bump(parts.stats.n_kv_audit_failures, 1);
}

void Engine::Impl::refuse_plan(PlanFault fault) {
  bump(parts.stats.n_plans_rejected, 1);
  plan.clear();
  plan_due = true;
  if (!std::exchange(fault_told[static_cast<std::size_t>(fault)], true)) {
    logger("engine")->error("plan refused policy={} fault={} row={} text=\"{}\"",
                            parts.scheduler.name(),
                            plan_fault_name(fault),
                            gate.fault_row(),
                            gate.fault_text());
  }
  if (++n_refused < kRefusalsMax) return;
  n_refused = 0;
  end_all(kNoPlan);
}

// A waiting sequence gets its cached prefix and is in the step from now on.
void Engine::Impl::start_prompt(Sequence& sequence, Nanoseconds now) {
  sequence.phase = Phase::prefill;
  const std::uint32_t n_cached = prefixes.take(sequence);
  count_cached(sequence, n_cached);
  LiveRequest& request = *sequence.request;
  if (std::exchange(request.started, true)) return;
  bump(n_cached > 0 ? parts.stats.n_prefix_hits : parts.stats.n_prefix_misses, 1);
  n_queued.fetch_sub(static_cast<std::uint32_t>(request.choices.size()));
  parts.stats.queue_seconds.observe(seconds(now - request.asked->arrival));
}

void Engine::Impl::start_step(Nanoseconds now) {
  batch.clear();
  // All prefixes are held before a block is allocated, which may take one from the cache.
  for (const PlannedRun& run : plan.runs) {
    if (sequences[run.slot].phase == Phase::waiting) start_prompt(sequences[run.slot], now);
  }
  for (const PlannedRun& run : plan.runs) {
    Sequence& sequence = sequences[run.slot];
    const LiveRequest& request = *sequence.request;
    if (sequence.phase == Phase::prefill) {
      bump(
          sequence.n_preempted == 0 ? parts.stats.n_prompt_tokens : parts.stats.n_recomputed_tokens,
          run.n_tokens);
    }
    batch.add(
        run, sequence, pool, sampler.output_flags(draw_context(sequence), request.asked->logprobs));
  }
  if (batch.is_empty()) return;
  step_started = now;
  ++n_steps;
  bump(parts.stats.n_steps, 1);
  runner.submit(batch.step());
  parts.stats.n_submit_calls.store(runner.n_submits(), std::memory_order_relaxed);
}

void Engine::Impl::finish_step() {
  const StepRunner::Outcome outcome = runner.collect();
  const Nanoseconds now = parts.clock.now();
  measure_step(now);
  if (!outcome.ok) {
    fail_step(outcome);
  } else {
    for (const StepBatch::Entry& entry : batch.entries()) {
      Sequence& sequence = sequences[entry.slot];
      sequence.n_computed += entry.n_tokens;
      if (sequence.n_computed >= sequence.n_prefill) sequence.phase = Phase::decode;
      if (entry.out_row && !sequence.request->cancelled) produce(entry, now);
      // After the token was drawn: what gave no number is not kept.
      if (sequences.is_live(entry.slot)) prefixes.keep(sequence);
    }
  }
  batch.clear();
  sequences.drop_removed();
}

void Engine::Impl::measure_step(Nanoseconds now) {
  parts.stats.step_seconds.observe(seconds(now - step_started));
  note_progress(now);
  const auto elapsed = static_cast<float>((now - step_ended).count());
  for (std::size_t d = 0; d < loads.size(); ++d) {
    const auto busy = static_cast<float>(runner.busy_ns(d));
    loads[d].busy_ratio = elapsed > 0.0F ? std::min(busy / elapsed, 1.0F) : 0.0F;
  }
  step_ended = now;
}

// What the step wrote cannot be told: its sequences end, the others go on.
void Engine::Impl::fail_step(const StepRunner::Outcome& outcome) {
  if (!std::exchange(step_failure_told, true)) {
    logger("engine")->error(
        "step failed device={} step={} text=\"{}\"", outcome.device, n_steps, outcome.message);
  }
  // What was let go stays so: the peers of a failed device wait for nobody ever again.
  if (runner.has_aborted()) parts.stats.is_lost.store(true, std::memory_order_relaxed);
  for (const StepBatch::Entry& entry : batch.entries())
    end_sequence(entry.slot, kDeviceFailed);
}

void Engine::Impl::produce(const StepBatch::Entry& entry, Nanoseconds now) {
  const LogitsRow row = output_row(*entry.out_row);
  LiveRequest& request = *sequences[entry.slot].request;
  if (std::exchange(request.forked, true) || request.choices.size() == 1) {
    draw_token(entry.slot, row, now);
    return;
  }
  // All choices draw their first token from the prompt's last row.
  const std::span<const std::uint32_t> others = sequences.fork(entry.slot, pool);
  draw_token(entry.slot, row, now);
  for (const std::uint32_t slot : others)
    draw_token(slot, row, now);
}

LogitsRow Engine::Impl::output_row(std::uint32_t out_row) const {
  const model::CompiledModel& model = parts.model;
  const std::uint32_t flags = batch.out_flags(out_row);
  LogitsRow row;
  if ((flags & LUNA_OUT_LOGITS) != 0) {
    const std::size_t n = limits.vocab_size;
    row.logits = {model.logits + out_row * n, n};
  }
  if ((flags & LUNA_OUT_CANDIDATES) != 0) {
    const std::size_t n = model.n_candidates;
    row.candidates = {model.candidates + out_row * (n + 1), n};
    row.log_sum_exp = model.candidates[out_row * (n + 1) + n].logit;
  }
  return row;
}

DrawContext Engine::Impl::draw_context(const Sequence& sequence) {
  const LiveRequest& request = *sequence.request;
  return {.params = request.asked->sampling,
          .prompt = request.asked->prompt,
          .output = sequence.choice().generated,
          .allowed = request.allowed_ids,
          .masked = request.masked_ids(sequence.n_generated()),
          .choice_idx = sequence.choice_idx};
}

void Engine::Impl::draw_token(std::uint32_t slot, const LogitsRow& row, Nanoseconds now) {
  Sequence& sequence = sequences[slot];
  const SequenceRequest& asked = *sequence.request->asked;
  const Draw draw = sampler.draw(row, draw_context(sequence));
  if (draw.outcome != DrawOutcome::drawn) {
    const bool not_finite = draw.outcome == DrawOutcome::not_finite;
    end_sequence(slot, not_finite ? kNotFinite : kNothingAllowed);
    return;
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
  if (!first) {
    parts.stats.itl_seconds.observe(seconds(now - sequence.last_token_at));
  } else if (sequence.choice_idx == 0) {
    parts.stats.ttft_seconds.observe(seconds(now - asked.arrival));
  }
  sequence.last_token_at = now;
  if (reason) {
    end_sequence(slot, {.reason = *reason});
  } else {
    publish(choice);
  }
}

void Engine::Impl::publish(Choice& choice) {
  bump(parts.stats.n_generated_tokens, choice.publish());
  published = true;
}

void Engine::Impl::end_sequence(std::uint32_t slot, const StreamEnd& end) {
  LiveRequest& request = *sequences[slot].request;
  request.end_code = std::max(request.end_code, end_code(end));
  StreamEnd told = end;
  told.n_cached = request.n_cached;
  const auto close = [&](Choice& choice) {
    choice.finish(told);
    publish(choice);
    --request.n_open;
  };
  if (request.forked) {
    close(sequences[slot].choice());
  } else {
    // The other choices have no sequence yet: they share the fate of the first.
    for (Choice& choice : request.choices)
      close(choice);
  }
  if (end.reason != FinishReason::failed) prefixes.keep(sequences[slot]);
  sequences.remove(slot, pool);
  if (request.n_open == 0) retire(request);
}

void Engine::Impl::end_all(const StreamEnd& end) {
  for (const std::uint32_t slot : sequences.order())
    end_sequence(slot, end);
  sequences.drop_removed();
}

// The request's memory is freed by another thread; nothing may touch it afterwards.
void Engine::Impl::retire(LiveRequest& request) {
  const Nanoseconds latency = parts.clock.now() - request.asked->arrival;
  last_latencies[n_latencies++ % last_latencies.size()] = latency;
  parts.stats.e2e_seconds.observe(seconds(latency));
  bump(parts.stats.n_ended[static_cast<std::size_t>(request.end_code)], 1);
  const auto n_sequences = static_cast<std::uint32_t>(request.choices.size());
  if (!request.started) n_queued.fetch_sub(n_sequences);
  n_live.fetch_sub(n_sequences);
  request.next = finished.load(std::memory_order_relaxed);
  while (!finished.compare_exchange_weak(
      request.next, &request, std::memory_order_release, std::memory_order_relaxed)) {}
}

void Engine::Impl::note_progress(Nanoseconds now) {
  parts.stats.last_progress_ns.store(static_cast<std::uint64_t>(now.count()),
                                     std::memory_order_relaxed);
}

void Engine::Impl::update_gauges() {
  std::uint64_t n_running = 0;
  for (const std::uint32_t slot : sequences.order())
    if (sequences[slot].phase != Phase::waiting) ++n_running;
  const auto set = [](std::atomic<std::uint64_t>& gauge, std::uint64_t value) {
    gauge.store(value, std::memory_order_release);  // after the progress: see is_alive
  };
  set(parts.stats.n_running, n_running);
  set(parts.stats.n_waiting, sequences.order().size() - n_running);
  set(parts.stats.n_kv_blocks_used, pool.n_used());
  set(parts.stats.n_kv_blocks_cached, pool.n_cached());
  set(parts.stats.n_kv_blocks_free, pool.n_free());
  set(parts.stats.n_kv_blocks_evicted, pool.n_evicted());
}

}  // namespace luna::engine
