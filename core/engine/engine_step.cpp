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
  if (parts.turns == nullptr) return take_turn();
  waits_for_turn = false;
  const bool worked = take_turn();
  const bool runs = groups.n_steps_in_flight() > 0;
  parts.turns->settle(parts.turns_member, runs, waits_for_turn, parts.clock.now());
  return worked;
}

// On the same devices.
bool Engine::Impl::has_busy_neighbours() const {
  return parts.turns != nullptr && parts.turns->have_others_work(parts.turns_member);
}

bool Engine::Impl::is_its_turn() {
  waits_for_turn = parts.turns != nullptr && !parts.turns->may_begin(parts.turns_member);
  if (!waits_for_turn) return true;
  plan.wake_at.reset();  // the plan is due already
  note_progress(parts.clock.now());
  return false;
}

bool Engine::Impl::take_turn() {
  bool worked = drain_inbox();
  if (!is_drafting()) obey_group_commands();
  worked |= finish_steps();
  worked |= slices.settle(sequences);
  worked |= go_on_moving();
  worked |= part_with_groups();
  if (groups.are_full()) return worked;
  if (is_drafting()) {
    if (!draft_model->is_done()) return worked;
    go_on_drafting(parts.clock.now());
    if (is_drafting()) return true;
    worked = true;
  }
  const Nanoseconds now = parts.clock.now();
  if (replay != nullptr && has_busy_neighbours()) replay->cancelled = true;
  worked |= apply_ends(now);
  if (draft_model) draft_model->sweep(sequences);
  plan_due |= worked || (plan.wake_at && *plan.wake_at <= now);
  if (sequences.order().empty()) {
    plan.clear();  // a wish to be woken has no object any more
    queue.end(sequences);
  } else if (plan_due && has_plannable() && is_its_turn()) {
    plan_due = false;
    note_progress(now);
    update_gauges();  // a policy that never answers is seen to hold up work
    if (!begin_drafts()) plan_step(now);
    worked = true;
  }
  update_gauges();
  if (std::exchange(published, false)) wake_readers();
  return worked;
}

bool Engine::Impl::has_plannable() const {
  const auto order = sequences.order();
  return std::any_of(order.begin(), order.end(), [this](std::uint32_t slot) {
    return sequences[slot].is_plannable();
  });
}

std::optional<Nanoseconds> Engine::Impl::next_wake() const {
  // The end of a step is the next thing to happen.
  if (groups.are_full() || is_drafting()) return std::nullopt;
  std::optional<Nanoseconds> wake_at;
  if (has_plannable()) wake_at = plan.wake_at;
  for (const std::uint32_t slot : sequences.order()) {
    const Sequence& sequence = sequences[slot];
    if (sequence.in_step()) continue;  // it ends with its steps
    const Nanoseconds given_up_at = sequence.held_since + recovery_timeout;
    if (sequence.is_held && (!wake_at || given_up_at < *wake_at)) wake_at = given_up_at;
    const std::optional<Nanoseconds> deadline = sequences[slot].request->asked->deadline;
    if (deadline && (!wake_at || *deadline < *wake_at)) wake_at = deadline;
  }
  return wake_at;
}

bool Engine::Impl::drain_inbox() {
  bool heard = false;
  while (std::optional<Command> command = inbox.try_pop()) {
    heard = true;
    if (auto* submitted = std::get_if<std::unique_ptr<LiveRequest>>(&*command))
      obey(std::move(*submitted));
    if (const auto* cancel = std::get_if<Cancel>(&*command)) obey(*cancel);
    if (auto* group = std::get_if<std::unique_ptr<Group>>(&*command))
      arrivals.push_back(std::move(*group));
    if (const auto* retirement = std::get_if<Retirement>(&*command))
      retirements.push_back(*retirement);
    if (const auto* relief = std::get_if<Relief>(&*command)) reliefs.push_back(*relief);
    if (std::holds_alternative<DropCached>(*command))
      for (const auto& group : groups.all())
        group->pool.drop_cached();
  }
  return heard;
}

void Engine::Impl::obey(std::unique_ptr<LiveRequest> submitted) {
  // From here to retire() the table's sequences own it.
  const auto n_prompt = static_cast<std::uint32_t>(submitted->asked->prompt.size());
  // What is computed for nobody makes room at once.
  if (submitted->is_replay) {
    replay = submitted.get();
    replay->cancelled = !sequences.order().empty();
  } else if (replay != nullptr) {
    replay->cancelled = true;
  }
  settle(sequences.add(*submitted.release(), pruning.n_pruned(n_prompt)));
}

void Engine::Impl::obey(Cancel cancel) {
  for (const std::uint32_t slot : sequences.order()) {
    LiveRequest& request = *sequences[slot].request;
    if (request.asked->id == cancel.id) request.cancelled = true;
  }
}

// The client's wish and the clock. Who is in a step ends with it, and gets no other.
bool Engine::Impl::apply_ends(Nanoseconds now) {
  bool ended = false;
  for (const std::uint32_t slot : sequences.order()) {
    Sequence& sequence = sequences[slot];
    const LiveRequest& request = *sequence.request;
    const bool late = request.asked->deadline && *request.asked->deadline <= now;
    const bool given_up = sequence.is_held && sequence.held_since + recovery_timeout <= now;
    if (!request.cancelled && !late && !given_up) continue;
    if (sequence.in_step()) {
      sequence.is_ending = true;
      continue;
    }
    const pipeline::StreamEnd& end = late ? kTooLate : kNoDevices;
    end_sequence(slot, request.cancelled ? kCancelled : end);
    ended = true;
  }
  if (ended) sequences.drop_removed();
  return ended;
}

// What others have computed since the last plan, a prompt need not compute. One of no group is
// looked up when a policy is told of it.
void Engine::Impl::find_prefixes() {
  for (const std::uint32_t slot : sequences.order()) {
    Sequence& sequence = sequences[slot];
    if (sequence.in_step() || sequence.group == nullptr) continue;
    if (sequence.moving_to != nullptr) continue;
    PrefixReuse& prefixes = sequence.group->prefixes;
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
  if (!draft_model || groups.is_empty() || std::exchange(drafted, true)) return false;
  const Speculation::Round round =
      speculation.choose(sequences, *groups.all().front(), *draft_model);
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
  find_prefixes();
  for (const auto& group : groups.all())
    if (group->has_room())
      speculation.offer(sequences, *group, draft_model ? &*draft_model : nullptr);
  const PlanFault fault = gate.ask({.step = n_steps, .now = now}, plan);
  bump(parts.stats.n_plan_calls, 1);
  const Nanoseconds planned = parts.clock.now();
  parts.stats.plan_seconds.observe(seconds(planned - now));
  const bool is_late = gate.call_time() > plan_budget;
  if (is_late) note_late_plan();
  const bool keeps_failing = policy_watch.note(fault != PlanFault::none || is_late);
  if (fault != PlanFault::none) {
    refuse_plan(fault);
    // One that errs so often in a row is no policy for those that wait.
    const bool is_hopeless = ++n_refused >= kRefusalsMax;
    if ((is_hopeless || keeps_failing) && replace_policy(plan_fault_name(fault))) return;
    if (is_hopeless) end_unplanned();
    return;
  }
  n_refused = 0;
  queue.begin(now);
  carry_out(now, planned);
  queue.end(sequences);
  // A plan that only made room is followed by another one at once, and so is one that leaves a lane
  // empty and rows that could fill it.
  const bool made_room = plan.runs.empty() && !plan.is_empty() && !plan.wake_at;
  plan_due = made_room || (!plan.runs.empty() && leaves_room());
  if (keeps_failing) replace_policy("late");
  if (n_steps % kAuditSteps == 0 && !audit_kv().empty()) bump(parts.stats.n_kv_audit_failures, 1);
}

void Engine::Impl::carry_out(Nanoseconds now, Nanoseconds planned) {
  for (const PlannedAssign& assigned : plan.assigned) {
    sequences.assign(assigned.slot, assigned.group);
    assigned.group->prefixes.adopt(sequences[assigned.slot]);
  }
  for (const PlannedReject& rejected : plan.rejected)
    end_sequence(rejected.slot, rejection(rejected));
  for (const std::uint32_t slot : plan.preempted)
    preempt(slot);
  sequences.drop_removed();
  // All prefixes are held before a block is allocated, for a move too: it may take one from the
  // cache.
  for (const PlannedRun& run : plan.runs)
    if (sequences[run.slot].phase == Phase::waiting) start_prompt(sequences[run.slot], now);
  for (const PlannedMove& move : plan.moves)
    moves.begin(sequences[move.slot], *move.to, step_limits.n_rows_max);
  for (const PlannedSlice& slice : plan.slices)
    slices.begin(sequences[slice.slot], slice);
  for (const auto& group : groups.all())
    if (group->books.n_runs > 0) start_step(*group, now, planned);
}

void Engine::Impl::refuse_plan(PlanFault fault) {
  bump(parts.stats.n_plans_rejected, 1);
  plan.clear();
  plan_due = true;
  if (!std::exchange(fault_told[static_cast<std::size_t>(fault)], true)) {
    logger("engine")->error("plan refused policy={} fault={} row={} text=\"{}\"",
                            gate.policy(),
                            plan_fault_name(fault),
                            gate.fault_row(),
                            gate.fault_text());
  }
}

void Engine::Impl::note_late_plan() {
  bump(parts.stats.n_plans_late, 1);
  if (std::exchange(late_plan_told, true)) return;
  logger("engine")->warn(
      "plan late policy={} ms={} budget_ms={}",
      gate.policy(),
      std::chrono::duration_cast<std::chrono::milliseconds>(gate.call_time()).count(),
      std::chrono::duration_cast<std::chrono::milliseconds>(plan_budget).count());
}

// The next plan is the fallback's. What is in steps ends with them, what runs goes on from where it
// is: a policy is shown all that there is to know. False: no other is written.
bool Engine::Impl::replace_policy(std::string_view reason) {
  if (n_fallbacks_used == parts.fallbacks.size()) return false;
  const auto& fallback = parts.fallbacks[n_fallbacks_used++];
  logger("engine")->warn("policy replaced policy={} by={} reason={} faults={} of={}",
                         gate.policy(),
                         fallback.name(),
                         reason,
                         policy_watch.n_faults(),
                         PolicyWatch::kPlans);
  gate.replace(fallback);
  bump(parts.stats.n_policies_replaced, 1);
  policy_watch.reset();
  n_refused = 0;
  fault_told = {};
  late_plan_told = false;
  plan_due = true;
  return true;
}

// Nobody plans them.
void Engine::Impl::end_unplanned() {
  n_refused = 0;
  for (const std::uint32_t slot : sequences.order())
    if (!sequences[slot].in_step() && !sequences[slot].is_held) end_sequence(slot, kNoPlan);
  sequences.drop_removed();
  plan_due = groups.n_steps_in_flight() == 0;  // else the end of a step brings the next plan
}

// A waiting sequence gets its cached prefix and is in the step from now on.
void Engine::Impl::start_prompt(Sequence& sequence, Nanoseconds now) {
  sequence.phase = Phase::prefill;
  const std::uint32_t n_cached = sequence.group->prefixes.take(sequence);
  count_cached(sequence, n_cached);
  LiveRequest& request = *sequence.request;
  if (std::exchange(request.started, true) || request.is_replay) return;
  bump(n_cached > 0 ? parts.stats.n_prefix_hits : parts.stats.n_prefix_misses, 1);
  n_queued.fetch_sub(static_cast<std::uint32_t>(request.choices.size()));
  queue.let_in(sequence.n_prefill);
  parts.stats.queue_seconds.observe(seconds(now - request.asked->arrival));
}

void Engine::Impl::start_step(Group& group, Nanoseconds now, Nanoseconds planned) {
  StepLanes& lanes = group.lanes;
  StepLane& lane = lanes.next();
  for (const PlannedRun& run : plan.runs)
    if (sequences[run.slot].group == &group) add_to_batch(run, group, lane.batch);
  lane.started = now;
  ++n_steps;
  ++group.n_steps;
  bump(parts.stats.n_steps, 1);
  bump(parts.stats.groups[group.numbers.place].n_steps, 1);
  const Nanoseconds prepared = parts.clock.now();
  lane.runner.submit(lane.batch.step());
  lane.submitted = parts.clock.now();
  lanes.note_started();
  const auto ns = [](Nanoseconds t) { return static_cast<std::uint64_t>(t.count()); };
  lane.record = {.step = n_steps,
                 .group = group.numbers.place,
                 .lane = (group.n_steps - 1) % lanes.n_max(),
                 .n_in_flight = lanes.n_in_flight(),
                 .started_ns = ns(now),
                 .plan_ns = ns(planned - now),
                 .prepare_ns = ns(prepared - planned),
                 .submit_ns = ns(lane.submitted - prepared),
                 .n_rows = lane.batch.load().n_rows,
                 .n_seqs = lane.batch.entries().size(),
                 .n_out_rows = lane.batch.n_out_rows(),
                 .n_kv_tokens = lane.batch.load().n_kv_tokens};
  std::uint64_t n_submits = n_submits_gone;
  n_submits += draft_model ? draft_model->n_submits() : 0;
  for (const auto& one : groups.all())
    n_submits += one->lanes.n_submits();
  parts.stats.n_submit_calls.store(n_submits, std::memory_order_relaxed);
}

void Engine::Impl::add_to_batch(const PlannedRun& run, Group& group, StepBatch& batch) {
  Sequence& sequence = sequences[run.slot];
  std::span<const pipeline::TokenId> draft;
  sequence.trace.n_beside_max = std::max(sequence.trace.n_beside_max, group.books.n_runs - 1);
  sequence.trace.n_steps_beside_max =
      std::max(sequence.trace.n_steps_beside_max, group.lanes.n_in_flight());
  if (sequence.phase == Phase::prefill) {
    ++sequence.trace.n_prompt_steps;
    if (!sequence.request->is_replay)
      bump(
          sequence.n_preempted == 0 ? parts.stats.n_prompt_tokens : parts.stats.n_recomputed_tokens,
          run.n_tokens);
  } else if (sequence.n_draft > 0) {
    draft = speculation.draft(run.slot);
  }
  const StepBatch::Entry& entry = batch.add(run, sequence, group.pool, draft);
  bump(parts.stats.n_draft_tokens, entry.n_draft);
  sequence.trace.n_drafted += entry.n_draft;
  for (std::uint32_t i = 0; i < entry.n_out_rows(); ++i)
    batch.set_out_flags(*entry.out_row + i, output_flags(sequence, i));
  ++sequence.n_steps;
  sequence.n_computed += entry.n_tokens - entry.n_draft;
  sequence.n_unfinished += entry.n_tokens - entry.n_draft;
}

void Engine::Impl::leave_step(const StepBatch::Entry& entry, Nanoseconds now) {
  Sequence& sequence = sequences[entry.slot];
  --sequence.n_steps;
  sequence.n_unfinished -= entry.n_tokens - entry.n_draft;
  sequence.last_step_at = now;
}

void Engine::Impl::finish_step(Group& group) {
  StepLane& lane = group.lanes.oldest();
  const StepRunner::Outcome outcome = lane.runner.collect();
  const Nanoseconds now = parts.clock.now();
  drafted = false;
  measure_step(group, lane, now);
  for (const StepBatch::Entry& entry : lane.batch.entries())
    leave_step(entry, now);
  if (!outcome.ok || lane.is_spoiled) {
    fail_step(group, lane, outcome);
  } else {
    group.n_failures = 0;
    take_results(group, lane, now);
    record_step(group, lane, parts.clock.now());
  }
  group.lanes.note_ended();
  if (group.is_closing) vacate(group);
  sequences.drop_removed();
}

void Engine::Impl::take_results(Group& group, const StepLane& lane, Nanoseconds now) {
  for (const StepBatch::Entry& entry : lane.batch.entries()) {
    Sequence& sequence = sequences[entry.slot];
    if (sequence.is_lost) {
      after_failure(group, entry.slot);
      continue;
    }
    sequence.n_failures = 0;
    if (sequence.n_away > 0) take_masses(lane, entry, sequence);
    if (entry.prunes) sequences.prune(entry.slot, limits.kv_block_tokens);
    if (sequence.n_finished() >= sequence.n_prefill) sequence.phase = Phase::decode;
    if (entry.out_row && !sequence.request->cancelled) produce(lane, entry, now);
    // After the token was drawn: what gave no number is not kept.
    if (sequences.is_live(entry.slot)) group.prefixes.keep(sequence);
  }
}

void Engine::Impl::measure_step(Group& group, const StepLane& lane, Nanoseconds now) {
  parts.stats.step_seconds.observe(seconds(now - lane.started));
  note_progress(now);
  if (parts.turns != nullptr)
    parts.turns->note_step(parts.turns_member, static_cast<std::uint64_t>(lane.busy_max().count()));
  const auto elapsed = static_cast<float>((now - group.step_ended).count());
  for (std::size_t d = 0; d < group.loads.size(); ++d) {
    if (telemetry::DeviceStats* const stats = group.device_stats[d]; stats != nullptr)
      bump(stats->busy_ns, lane.runner.busy_ns(d));
    const auto busy = static_cast<float>(lane.runner.busy_ns(d));
    group.loads[d].busy_ratio = elapsed > 0.0F ? std::min(busy / elapsed, 1.0F) : 0.0F;
  }
  group.step_ended = now;
}

void Engine::Impl::record_step(Group& group, StepLane& lane, Nanoseconds sampled) {
  const auto ns = [](Nanoseconds t) { return static_cast<std::uint64_t>(t.count()); };
  telemetry::StepRecord& record = lane.record;
  record.n_devices = std::min(group.loads.size(), record.device_busy_ns.size());
  for (std::size_t d = 0; d < record.n_devices; ++d)
    record.device_busy_ns[d] = lane.runner.busy_ns(d);
  record.busy_ns = ns(lane.busy_max());
  record.devices_ns = ns(group.step_ended - lane.submitted);
  record.sample_ns = ns(sampled - group.step_ended);
  record.total_ns = ns(sampled - lane.started);
  record.since_last_ns = ns(sampled - std::exchange(group.step_sampled, sampled));
  parts.stats.steps.append(record);
  group.cost_fit.add(lane.batch.load(),
                     round_time(lane, group.lanes.n_max(), sampled - lane.started));
}

void Engine::Impl::note_progress(Nanoseconds now) {
  parts.stats.last_progress_ns.store(static_cast<std::uint64_t>(now.count()),
                                     std::memory_order_relaxed);
}

void Engine::Impl::wake_readers() {
  const Nanoseconds start = parts.clock.now();
  parts.on_published(parts.context);
  const auto published_ns = static_cast<std::uint64_t>((parts.clock.now() - start).count());
  // They run beside the step that has just begun.
  for (const auto& group : groups.all())
    if (!group->lanes.is_idle()) group->lanes.newest().record.publish_ns += published_ns;
}

}  // namespace luna::engine
