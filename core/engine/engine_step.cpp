// The turns of the engine's loop.
#include "core/base/assert.hpp"
#include "core/base/log.hpp"
#include "core/engine/engine_impl.hpp"
#include "core/engine/sequence_ends.hpp"

#include <algorithm>
#include <utility>

namespace luna::engine {
namespace {

using telemetry::bump;
using telemetry::seconds;

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

}  // namespace

bool Engine::Impl::advance() {
  bool worked = drain_inbox();
  if (runner.is_busy()) {
    if (!runner.is_done()) return worked;
    finish_step();
    worked = true;
  }
  if (is_drafting()) {
    if (!draft_model->is_done()) return worked;
    go_on_drafting(parts.clock.now());
    if (is_drafting()) return true;
    worked = true;
  }
  const Nanoseconds now = parts.clock.now();
  worked |= apply_ends(now);
  if (draft_model) draft_model->sweep(sequences);
  plan_due |= worked || (plan.wake_at && *plan.wake_at <= now);
  if (sequences.order().empty()) {
    plan.clear();  // a wish to be woken has no object any more
    queue.end(sequences);
  } else if (std::exchange(plan_due, false)) {
    note_progress(now);
    update_gauges();  // a policy that never answers is seen to hold up work
    if (!begin_drafts()) plan_step(now);
    worked = true;
  }
  update_gauges();
  if (std::exchange(published, false)) wake_readers();
  return worked;
}

std::optional<Nanoseconds> Engine::Impl::next_wake() const {
  // The step's end is the next thing to happen.
  if (runner.is_busy() || is_drafting()) return std::nullopt;
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
      const auto n_prompt = static_cast<std::uint32_t>(command->submitted->asked->prompt.size());
      sequences.add(*command->submitted.release(), pruning.n_pruned(n_prompt));
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

// Whether a round of the draft model has begun: the step's plan waits for its end. No step runs,
// and until that end no sequence changes.
bool Engine::Impl::begin_drafts() {
  if (!draft_model || std::exchange(drafted, true)) return false;
  const Speculation::Round round =
      speculation.choose(sequences, pool, cost_fit.costs(), *draft_model);
  if (round.wishes.empty()) return false;
  draft_started = parts.clock.now();
  return draft_model->begin(sequences, round.wishes, round.n_rows_max);
}

void Engine::Impl::go_on_drafting(Nanoseconds now) {
  note_progress(now);
  const DraftModel::Progress progress = draft_model->go_on(sequences);
  parts.stats.n_draft_steps.store(draft_model->n_steps(), std::memory_order_relaxed);
  if (progress == DraftModel::Progress::goes_on) return;
  parts.stats.draft_seconds.observe(seconds(parts.clock.now() - draft_started));
  if (progress != DraftModel::Progress::failed) return;
  bump(parts.stats.n_draft_failures, 1);
  const StepRunner::Outcome& failure = draft_model->failure();
  logger("engine")->error(
      "draft step failed, its sequences go on without device={} last={} "
      "text=\"{}\"",
      failure.device,
      !draft_model->is_usable(),
      failure.message);
}

void Engine::Impl::plan_step(Nanoseconds now) {
  std::array<Nanoseconds, 10> latencies = last_latencies;
  const auto n = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(n_latencies, 10));
  std::sort(latencies.begin(), latencies.begin() + n);
  const Nanoseconds p95 =
      n > 0 ? latencies[static_cast<std::size_t>((n * 95 + 99) / 100 - 1)] : Nanoseconds{0};
  const SnapshotTime time{.step = n_steps,
                          .now = now,
                          .latency_ns_p95 = static_cast<std::uint64_t>(p95.count()),
                          .step_costs = cost_fit.costs()};
  find_prefixes();
  speculation.offer(sequences, pool, time.step_costs, draft_model ? &*draft_model : nullptr);
  const PlanFault fault = gate.ask(time, loads, plan);
  bump(parts.stats.n_plan_calls, 1);
  const Nanoseconds planned = parts.clock.now();
  parts.stats.plan_seconds.observe(seconds(planned - now));
  if (fault != PlanFault::none) {
    refuse_plan(fault);
    return;
  }
  n_refused = 0;
  queue.begin(now);
  for (const PlannedReject& rejected : plan.rejected)
    end_sequence(rejected.slot, rejection(rejected));
  for (const std::uint32_t slot : plan.preempted) {
    sequences.preempt(slot, pool);
    bump(parts.stats.n_preempted, 1);
  }
  sequences.drop_removed();
  start_step(now, planned);
  queue.end(sequences);
  // A plan that only made room is followed by another one at once.
  plan_due = plan.runs.empty() && !plan.wake_at;
  if (n_steps % kAuditSteps == 0 && !audit_kv().empty()) bump(parts.stats.n_kv_audit_failures, 1);
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
  queue.let_in(sequence.n_prefill);
  parts.stats.queue_seconds.observe(seconds(now - request.asked->arrival));
}

void Engine::Impl::start_step(Nanoseconds now, Nanoseconds planned) {
  batch.clear();
  // All prefixes are held before a block is allocated, which may take one from the cache.
  for (const PlannedRun& run : plan.runs) {
    if (sequences[run.slot].phase == Phase::waiting) start_prompt(sequences[run.slot], now);
  }
  for (const PlannedRun& run : plan.runs)
    add_to_batch(run);
  if (batch.is_empty()) return;
  step_started = now;
  ++n_steps;
  bump(parts.stats.n_steps, 1);
  const Nanoseconds prepared = parts.clock.now();
  runner.submit(batch.step());
  step_submitted = parts.clock.now();
  const auto ns = [](Nanoseconds t) { return static_cast<std::uint64_t>(t.count()); };
  record = {.step = n_steps,
            .started_ns = ns(now),
            .plan_ns = ns(planned - now),
            .prepare_ns = ns(prepared - planned),
            .submit_ns = ns(step_submitted - prepared),
            .n_rows = batch.load().n_rows,
            .n_seqs = batch.entries().size(),
            .n_out_rows = batch.n_out_rows(),
            .n_kv_tokens = batch.load().n_kv_tokens};
  const std::uint64_t n_draft_submits = draft_model ? draft_model->n_submits() : 0;
  parts.stats.n_submit_calls.store(runner.n_submits() + n_draft_submits, std::memory_order_relaxed);
}

void Engine::Impl::add_to_batch(const PlannedRun& run) {
  Sequence& sequence = sequences[run.slot];
  std::span<const pipeline::TokenId> draft;
  sequence.trace.n_beside_max =
      std::max(sequence.trace.n_beside_max, static_cast<std::uint32_t>(plan.runs.size() - 1));
  if (sequence.phase == Phase::prefill) {
    ++sequence.trace.n_prompt_steps;
    bump(sequence.n_preempted == 0 ? parts.stats.n_prompt_tokens : parts.stats.n_recomputed_tokens,
         run.n_tokens);
  } else if (sequence.n_draft > 0) {
    draft = speculation.draft(run.slot);
  }
  const StepBatch::Entry& entry = batch.add(run, sequence, pool, draft);
  bump(parts.stats.n_draft_tokens, entry.n_draft);
  sequence.trace.n_drafted += entry.n_draft;
  for (std::uint32_t i = 0; i < entry.n_out_rows(); ++i)
    batch.set_out_flags(*entry.out_row + i, output_flags(sequence, i));
}

void Engine::Impl::finish_step() {
  const StepRunner::Outcome outcome = runner.collect();
  const Nanoseconds now = parts.clock.now();
  drafted = false;
  measure_step(now);
  if (!outcome.ok) {
    fail_step(outcome);
  } else {
    for (const StepBatch::Entry& entry : batch.entries()) {
      Sequence& sequence = sequences[entry.slot];
      sequence.n_computed += entry.n_tokens - entry.n_draft;
      if (entry.prunes) sequences.prune(entry.slot, limits.kv_block_tokens, pool);
      if (sequence.n_computed >= sequence.n_prefill) sequence.phase = Phase::decode;
      if (entry.out_row && !sequence.request->cancelled) produce(entry, now);
      // After the token was drawn: what gave no number is not kept.
      if (sequences.is_live(entry.slot)) prefixes.keep(sequence);
    }
    record_step(parts.clock.now());
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

void Engine::Impl::record_step(Nanoseconds sampled) {
  const auto ns = [](Nanoseconds t) { return static_cast<std::uint64_t>(t.count()); };
  for (std::size_t d = 0; d < loads.size(); ++d)
    record.busy_ns = std::max(record.busy_ns, runner.busy_ns(d));
  record.devices_ns = ns(step_ended - step_submitted);
  record.sample_ns = ns(sampled - step_ended);
  record.total_ns = ns(sampled - step_started);
  record.since_last_ns = ns(sampled - std::exchange(step_sampled, sampled));
  parts.stats.steps.append(record);
  cost_fit.add(batch.load(), sampled - step_started);
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

void Engine::Impl::note_progress(Nanoseconds now) {
  parts.stats.last_progress_ns.store(static_cast<std::uint64_t>(now.count()),
                                     std::memory_order_relaxed);
}

void Engine::Impl::wake_readers() {
  const Nanoseconds start = parts.clock.now();
  parts.on_published(parts.context);
  if (runner.is_busy())  // they run beside the step that has just begun
    record.publish_ns = static_cast<std::uint64_t>((parts.clock.now() - start).count());
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
  if (draft_model) set(parts.stats.n_draft_kv_blocks_used, draft_model->n_blocks_used());
}

}  // namespace luna::engine
