#include "core/engine/scheduler_gate.hpp"

#include "core/base/units.hpp"

#include <luna/plugin.hpp>

#include <algorithm>

namespace luna::engine {
namespace {

// A policy may ask for a later call, not for a dead engine.
constexpr Nanoseconds kWakeMax = std::chrono::seconds(1);

std::uint32_t row_state(Phase phase) {
  switch (phase) {
    case Phase::waiting:
      return LUNA_REQ_WAITING;
    case Phase::prefill:
      return LUNA_REQ_PREFILL;
    case Phase::decode:
      return LUNA_REQ_DECODE;
  }
  return LUNA_REQ_WAITING;
}

std::optional<pipeline::QueueWait> queue_wait_of(const luna_action& action) {
  if (action.reason != LUNA_REASON_QUEUE_LONG || action.wait_ms == 0) return std::nullopt;
  return pipeline::QueueWait{action.wait_ms, action.wait_ms_max};
}

}  // namespace

std::string_view plan_fault_name(PlanFault fault) {
  constexpr std::array<std::string_view, kPlanFaults> kNames = {"none",
                                                                "call_failed",
                                                                "too_many_actions",
                                                                "unknown_row",
                                                                "unknown_verb",
                                                                "unsupported_verb",
                                                                "unknown_device",
                                                                "row_twice",
                                                                "wrong_state",
                                                                "wrong_token_count",
                                                                "too_many_tokens",
                                                                "too_many_rows",
                                                                "too_few_blocks",
                                                                "changes_nothing",
                                                                "row_in_step"};
  return kNames[static_cast<std::size_t>(fault)];
}

SchedulerGate::SchedulerGate(const plugin::Instance<luna_scheduler_if>& scheduler,
                             const GateLimits& limits,
                             const SequenceTable& sequences,
                             const KvPool& pool)
    : scheduler_(scheduler),
      limits_(limits),
      sequences_(sequences),
      pool_(pool),
      rows_(sequences.n_slots()),
      devices_(limits.n_devices),
      actions_(std::size_t{2} * sequences.n_slots()),  // ASSIGN and RUN of every row
      taken_(sequences.n_slots()),
      changes_(pool.n_blocks()) {}

void SchedulerGate::fill_rows() {
  const auto order = sequences_.order();
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Sequence& sequence = sequences_[order[i]];
    const SequenceRequest& asked = *sequence.request->asked;
    luna_req_row& row = rows_[i];
    row = {};
    row.id = sequence.row_id;
    row.arrival_ns = static_cast<std::uint64_t>(asked.arrival.count());
    if (asked.deadline) row.deadline_ns = static_cast<std::uint64_t>(asked.deadline->count());
    row.state = row_state(sequence.phase);
    row.priority = asked.priority;
    row.tenant = asked.tenant;
    row.stage = asked.stage;
    row.n_prompt = sequence.is_ending ? sequence.n_computed : sequence.n_prefill;
    row.n_computed = sequence.n_computed;
    row.n_cached = sequence.phase == Phase::waiting ? sequence.n_computed : sequence.n_cached;
    row.n_generated = sequence.n_generated();
    row.n_generated_max = asked.stop.n_generated_max;
    // As if nothing had been pruned, so that a policy's sums of tokens and blocks agree.
    row.n_kv_blocks = sequence.n_blocks + sequence.n_pruned / limits_.kv_block_tokens;
    row.n_preempted = sequence.n_preempted;
    for (std::uint32_t b = 0; b < sequence.n_blocks; ++b)
      if (pool_.n_references(sequence.blocks[b]) == 1) ++row.n_kv_blocks_freed;
    const std::uint32_t tail = sequence.next_slot() / limits_.kv_block_tokens;
    const bool copies = tail < sequence.n_blocks && pool_.n_references(sequence.blocks[tail]) > 1;
    row.n_kv_blocks_copied = copies ? 1 : 0;
    // Whoever uses a block with a key uses those before it.
    const auto found = std::span<const std::uint32_t>(sequence.blocks, sequence.hit.n_blocks);
    const auto is_used = [this](std::uint32_t block) { return pool_.n_references(block) > 0; };
    row.n_kv_blocks_shared = static_cast<std::uint32_t>(
        std::partition_point(found.begin(), found.end(), is_used) - found.begin());
    row.n_draft = sequence.n_draft;
    row.n_steps = sequence.n_steps;
    row.moving_to = LUNA_NO_DEVICE;
    row.last_step_ns = static_cast<std::uint64_t>(sequence.last_step_at.count());
  }
}

void SchedulerGate::fill_devices(std::span<const DeviceLoad> loads, const SnapshotTime& time) {
  std::uint32_t n_queued = 0;
  for (const std::uint32_t slot : sequences_.order())
    if (sequences_[slot].phase == Phase::waiting) ++n_queued;
  for (std::uint32_t d = 0; d < devices_.size(); ++d) {
    luna_device_row& row = devices_[d];
    row = {};
    row.device = d;
    row.kv_bytes_total = pool_.n_blocks() * limits_.kv_block_bytes / limits_.n_devices;
    // The prefix cache holds only what nobody wants.
    row.kv_bytes_free = pool_.n_available() * limits_.kv_block_bytes / limits_.n_devices;
    row.n_kv_blocks_free = pool_.n_available();
    row.n_kv_blocks_total = pool_.n_blocks();
    row.n_kv_blocks_reserve = limits_.n_kv_blocks_reserve;
    row.busy_ratio = loads[d].busy_ratio;
    row.n_queued = n_queued;
    row.latency_ns_p95 = time.latency_ns_p95;
    row.step_ns_fixed = static_cast<float>(time.step_costs.fixed_ns);
    row.step_ns_per_row = static_cast<float>(time.step_costs.per_row_ns);
    row.step_ns_per_kv_token = static_cast<float>(time.step_costs.per_kv_token_ns);
  }
}

PlanFault SchedulerGate::ask(const SnapshotTime& time,
                             std::span<const DeviceLoad> loads,
                             StepPlan& plan) {
  fill_rows();
  fill_devices(loads, time);
  luna_snapshot snapshot{};
  snapshot.struct_size = sizeof(snapshot);
  snapshot.req_stride = sizeof(luna_req_row);
  snapshot.device_stride = sizeof(luna_device_row);
  snapshot.link_stride = sizeof(luna_link_row);
  snapshot.slice_stride = sizeof(luna_slice_row);
  snapshot.n_reqs = static_cast<std::uint32_t>(sequences_.order().size());
  snapshot.n_devices = limits_.n_devices;
  snapshot.n_rows_max = limits_.n_rows_max;
  snapshot.n_seqs_max = limits_.n_seqs_max;
  snapshot.kv_block_tokens = limits_.kv_block_tokens;
  snapshot.step = time.step;
  snapshot.now_ns = static_cast<std::uint64_t>(time.now.count());
  snapshot.reqs = rows_.data();
  snapshot.devices = devices_.data();
  snapshot.n_steps_in_flight = time.n_steps_in_flight;
  snapshot.n_steps_in_flight_max = limits_.n_steps_max;

  answer_ = {};
  answer_.struct_size = sizeof(answer_);
  answer_.n_actions_max = static_cast<std::uint32_t>(actions_.size());
  answer_.actions = actions_.data();
  err_ = make_err();
  plan.clear();
  fault_row_ = 0;
  const luna_status status = scheduler_->plan(scheduler_.self(), &snapshot, &answer_, &err_);
  if (recorder_ != nullptr) {
    luna_plan noted = answer_;  // the plugin was given the table
    noted.n_actions_max = static_cast<std::uint32_t>(actions_.size());
    noted.actions = actions_.data();
    recorder_->record(snapshot, noted, status);
  }
  if (status < 0) return PlanFault::call_failed;
  const PlanFault fault = check(plan);
  if (fault != PlanFault::none) return fault;
  if (answer_.wake_at_ns != 0) {
    const auto latest = static_cast<std::uint64_t>((time.now + kWakeMax).count());
    plan.wake_at = Nanoseconds(std::min(answer_.wake_at_ns, latest));
  }
  // A time that has come wakes nobody: without it the loop does not turn for nothing.
  if (plan.wake_at && *plan.wake_at <= time.now) plan.wake_at.reset();
  const bool goes_on = !plan.is_empty() || plan.wake_at || time.n_steps_in_flight > 0;
  return goes_on ? PlanFault::none : PlanFault::changes_nothing;
}

PlanFault SchedulerGate::check(StepPlan& plan) {
  // The plugin was given the table, so it is read again from our own pointers.
  if (answer_.n_actions > actions_.size()) return PlanFault::too_many_actions;
  std::fill(taken_.begin(), taken_.end(), std::uint8_t{0});
  n_tokens_ = 0;
  for (std::uint32_t a = 0; a < answer_.n_actions; ++a) {
    fault_row_ = actions_[a].row;
    if (const PlanFault fault = check_action(actions_[a], plan); fault != PlanFault::none)
      return fault;
  }
  return check_blocks(plan);
}

PlanFault SchedulerGate::check_action(const luna_action& action, StepPlan& plan) {
  switch (action.verb) {
    case LUNA_VERB_RUN:
    case LUNA_VERB_ASSIGN:
    case LUNA_VERB_PREEMPT:
    case LUNA_VERB_REJECT:
      break;
    case LUNA_VERB_SLICE:
    case LUNA_VERB_MOVE:
    case LUNA_VERB_ROLE:
      return PlanFault::unsupported_verb;
    default:
      return PlanFault::unknown_verb;
  }
  const auto order = sequences_.order();
  if (action.row >= order.size()) return PlanFault::unknown_row;
  const std::uint32_t slot = order[action.row];
  if (action.verb == LUNA_VERB_ASSIGN) {
    // All devices hold one copy of the model together: there is one group to assign to.
    if (action.device >= limits_.n_devices) return PlanFault::unknown_device;
    return sequences_[slot].phase == Phase::waiting ? PlanFault::none : PlanFault::wrong_state;
  }
  const bool goes_on = action.verb == LUNA_VERB_RUN && sequences_[slot].n_wanted() > 0;
  if (sequences_[slot].in_step() && !goes_on) return PlanFault::row_in_step;
  if (taken_[action.row] != 0) return PlanFault::row_twice;
  taken_[action.row] = 1;
  if (action.verb == LUNA_VERB_RUN) return check_run(action, plan);
  if (action.verb == LUNA_VERB_REJECT) {
    plan.rejected.push_back({slot, action.reason, queue_wait_of(action)});
    return PlanFault::none;
  }
  if (sequences_[slot].phase == Phase::waiting) return PlanFault::wrong_state;
  plan.preempted.push_back(slot);
  return PlanFault::none;
}

PlanFault SchedulerGate::check_run(const luna_action& action, StepPlan& plan) {
  const std::uint32_t slot = sequences_.order()[action.row];
  if (action.n_tokens == 0 || action.n_tokens > sequences_[slot].n_wanted())
    return PlanFault::wrong_token_count;
  if (plan.runs.size() == limits_.n_seqs_max) return PlanFault::too_many_rows;
  if (action.n_tokens > limits_.n_rows_max - n_tokens_) return PlanFault::too_many_tokens;
  n_tokens_ += action.n_tokens;
  // Fewer than the policy gave break none of its sums.
  plan.runs.push_back({slot, std::min(action.n_tokens, sequences_[slot].n_step_tokens_max())});
  return PlanFault::none;
}

// As the plan leaves them, so far.
std::int64_t SchedulerGate::references(std::uint32_t block) const {
  return std::int64_t{pool_.n_references(block)} + changes_[block];
}

// Notes that a row of the plan gives its references back.
void SchedulerGate::withdraw(std::uint32_t slot) {
  const Sequence& sequence = sequences_[slot];
  for (std::uint32_t b = 0; b < sequence.n_blocks; ++b) {
    --changes_[sequence.blocks[b]];
    if (references(sequence.blocks[b]) == 0) ++n_blocks_left_;
  }
}

// Notes that a waiting row of the plan takes what it found in the prefix cache.
void SchedulerGate::lend(std::uint32_t slot) {
  const Sequence& sequence = sequences_[slot];
  for (std::uint32_t b = 0; b < sequence.hit.n_blocks; ++b) {
    if (references(sequence.blocks[b]) == 0) --n_blocks_left_;
    ++changes_[sequence.blocks[b]];
  }
}

PlanFault SchedulerGate::check_blocks(const StepPlan& plan) {
  std::fill(changes_.begin(), changes_.end(), 0);
  n_blocks_left_ = pool_.n_available();
  for (const PlannedReject& rejected : plan.rejected)
    withdraw(rejected.slot);
  for (const std::uint32_t slot : plan.preempted)
    withdraw(slot);
  // All of them before the first block is given away, as the step does.
  for (const PlannedRun& run : plan.runs)
    lend(run.slot);
  const auto all = sequences_.order();
  const bool holders = std::any_of(all.begin(), all.end(), [this](std::uint32_t slot) {
    return sequences_[slot].phase != Phase::waiting;
  });
  for (const PlannedRun& run : plan.runs) {
    const Sequence& sequence = sequences_[run.slot];
    const std::uint32_t n_blocks =
        div_ceil(sequence.next_slot() + run.n_tokens, limits_.kv_block_tokens);
    // A draft that was rejected may have left more than the tokens need.
    const std::uint32_t n_had = sequence.n_blocks + sequence.hit.n_blocks;
    std::uint32_t n_needed = n_blocks > n_had ? n_blocks - n_had : 0;
    const std::uint32_t tail = sequence.next_slot() / limits_.kv_block_tokens;
    if (tail < sequence.n_blocks) {
      const std::uint32_t block = sequence.blocks[tail];
      if (references(block) > 1) {
        ++n_needed;  // copied before it is written
        --changes_[block];
      }
    }
    const bool is_start = holders && sequence.phase == Phase::waiting;
    if (n_needed + (is_start ? limits_.n_kv_blocks_reserve : 0) > n_blocks_left_) {
      const auto order = sequences_.order();
      fault_row_ = static_cast<std::uint32_t>(std::find(order.begin(), order.end(), run.slot) -
                                              order.begin());
      return PlanFault::too_few_blocks;
    }
    n_blocks_left_ -= n_needed;
  }
  return PlanFault::none;
}

}  // namespace luna::engine
