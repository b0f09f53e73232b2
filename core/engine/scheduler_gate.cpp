#include "core/engine/scheduler_gate.hpp"

#include "core/base/units.hpp"

#include <luna/plugin.hpp>

#include <algorithm>

namespace luna::engine {
namespace {

// Those of check_action() that are not refused anywhere; SLICE is where the groups are linked.
constexpr std::uint32_t kVerbs = 1U << LUNA_VERB_RUN | 1U << LUNA_VERB_ASSIGN |
                                 1U << LUNA_VERB_MOVE | 1U << LUNA_VERB_PREEMPT |
                                 1U << LUNA_VERB_REJECT;

// A policy may ask for a later call, not for a dead engine.
constexpr Nanoseconds kWakeMax = std::chrono::seconds(1);

// Ranges of tokens that lie elsewhere: more than devices of today hold. Beyond it the table grows
// once.
constexpr std::size_t kSliceRows = 8192;

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
                                                                "row_in_step",
                                                                "no_group",
                                                                "no_room_for_step",
                                                                "cannot_move",
                                                                "unequal_groups"};
  return kNames[static_cast<std::size_t>(fault)];
}

SchedulerGate::SchedulerGate(const plugin::Instance<luna_scheduler_if>& scheduler,
                             const GateLimits& limits,
                             const SequenceTable& sequences,
                             Groups& groups,
                             const KvMoves& moves,
                             const KvSlices& slices)
    : scheduler_(&scheduler),
      limits_(limits),
      sequences_(sequences),
      groups_(groups),
      moves_(moves),
      slices_(slices),
      slots_(sequences.n_slots()),
      rows_(sequences.n_slots()),
      // ASSIGN and RUN of every row
      actions_(std::size_t{2} * sequences.n_slots() + KvSlices::kMovesMax),
      taken_(sequences.n_slots()),
      moved_(sequences.n_slots()),
      assigned_(sequences.n_slots()) {
  if (limits.n_groups_max > 1)
    prefixes_.reserve(std::size_t{sequences.n_slots()} * limits.n_groups_max);
  if (limits.n_groups_max > 1) slice_rows_.reserve(kSliceRows);
}

void SchedulerGate::replace(const plugin::Instance<luna_scheduler_if>& scheduler) {
  scheduler_ = &scheduler;
  if (recorder_ != nullptr) recorder_->end(RecordEnd::policy_replaced);
}

void SchedulerGate::fill_rows() {
  n_rows_ = 0;
  prefixes_.clear();
  slice_rows_.clear();
  for (const auto& group : groups_.all())
    group->n_queued = group->n_running = 0;
  for (const std::uint32_t slot : sequences_.order()) {
    const Sequence& sequence = sequences_[slot];
    if (sequence.is_held) continue;
    slots_[n_rows_] = slot;
    fill_row(sequence, rows_[n_rows_]);
    if (Group* group = sequence.group; group != nullptr) {
      ++(sequence.phase == Phase::waiting ? group->n_queued : group->n_running);
    } else {
      fill_prefixes(n_rows_, sequence);
    }
    if (sequence.n_away > 0 || sequence.n_moving > 0) fill_slices(n_rows_, sequence);
    ++n_rows_;
  }
}

void SchedulerGate::fill_row(const Sequence& sequence, luna_req_row& row) {
  const SequenceRequest& asked = *sequence.request->asked;
  row = {};
  row.id = sequence.row_id;
  row.arrival_ns = static_cast<std::uint64_t>(asked.arrival.count());
  if (asked.deadline) row.deadline_ns = static_cast<std::uint64_t>(asked.deadline->count());
  row.state = row_state(sequence.phase);
  row.priority = asked.priority;
  row.tenant = asked.tenant;
  row.stage = asked.stage;
  const bool computes_no_more = sequence.is_ending || sequence.is_paused;
  row.n_prompt = computes_no_more ? sequence.n_computed : sequence.n_prefill;
  row.n_computed = sequence.n_computed;
  row.n_cached = sequence.phase == Phase::waiting ? sequence.n_computed : sequence.n_cached;
  row.n_generated = sequence.n_generated();
  row.n_generated_max = asked.stop.n_generated_max;
  row.n_preempted = sequence.n_preempted;
  row.n_draft = sequence.n_draft;
  // One that waits for the rest of its KV is as one in a step.
  row.n_steps = sequence.n_steps + (sequence.is_paused ? 1 : 0);
  row.moving_to =
      sequence.moving_to == nullptr ? LUNA_NO_DEVICE : sequence.moving_to->numbers.first_device;
  row.last_step_ns = static_cast<std::uint64_t>(sequence.last_step_at.count());
  row.device = LUNA_NO_DEVICE;
  if (sequence.group == nullptr) return;
  if (sequence.guests != nullptr) {
    const SliceRange range = sliceable(sequence, limits_.kv_block_tokens);
    row.slice_first_token = range.first;
    row.slice_end_token = range.end;
  }
  const KvPool& pool = sequence.group->pool;
  row.device = sequence.group->numbers.first_device;
  // As if nothing had been pruned, so that a policy's sums of tokens and blocks agree.
  row.n_kv_blocks = sequence.n_blocks + sequence.n_pruned / limits_.kv_block_tokens;
  row.n_kv_blocks_freed = pool.n_exclusive(sequence.slot);
  const std::uint32_t tail = sequence.next_slot() / limits_.kv_block_tokens;
  const bool copies = tail < sequence.n_blocks && pool.n_references(sequence.blocks[tail]) > 1;
  row.n_kv_blocks_copied = copies ? 1 : 0;
  // Whoever uses a block with a key uses those before it.
  const auto found = std::span<const std::uint32_t>(sequence.blocks, sequence.hit.n_blocks);
  const auto is_used = [&pool](std::uint32_t block) { return pool.n_references(block) > 0; };
  row.n_kv_blocks_shared = static_cast<std::uint32_t>(
      std::partition_point(found.begin(), found.end(), is_used) - found.begin());
}

void SchedulerGate::fill_prefixes(std::uint32_t row, const Sequence& sequence) {
  for (const auto& group : groups_.all()) {
    const PrefixHit hit = group->prefixes.peek(sequence);
    if (hit.n_blocks == 0) continue;
    prefixes_.push_back({.row = row,
                         .device = group->numbers.first_device,
                         .n_tokens = hit.n_blocks * limits_.kv_block_tokens,
                         .n_kv_blocks_shared = group->prefixes.n_shared(hit)});
  }
}

// What lies elsewhere, then what is on its way: each in the order of its tokens.
void SchedulerGate::fill_slices(std::uint32_t row, const Sequence& sequence) {
  const std::uint32_t n_tokens = limits_.kv_block_tokens;
  std::uint32_t n_left = sequence.n_away;
  const Group* last = nullptr;
  for (std::uint32_t b = 0; n_left > 0; ++b) {
    const Group* const holder = sequence.holder_of(b);
    const bool goes_on = holder == last;
    last = holder;
    if (holder == sequence.group) continue;
    --n_left;
    if (!goes_on)
      slice_rows_.push_back({row, holder->numbers.first_device, b * n_tokens, 0, 0, 0.0F});
    slice_rows_.back().n_tokens += n_tokens;
    slice_rows_.back().mass += sequence.masses[b];
  }
  for (const SliceMove& move : slices_.moves()) {
    if (!move.is_of(sequence)) continue;
    slice_rows_.push_back({row,
                           move.to->numbers.first_device,
                           move.first_block * n_tokens,
                           move.n_blocks() * n_tokens,
                           1,
                           0.0F});
  }
}

void SchedulerGate::fill_devices() {
  devices_.clear();
  for (const auto& group : groups_.all()) {
    const KvPool& pool = group->pool;
    const StepCosts& costs = group->cost_fit.costs();
    luna_device_row row{};
    row.group = group->numbers.place;
    row.kv_bytes_total = pool.n_blocks() * group->model.kv_block_bytes / group->n_devices();
    // The prefix cache holds only what nobody wants.
    row.kv_bytes_free = pool.n_available() * group->model.kv_block_bytes / group->n_devices();
    row.n_kv_blocks_free = pool.n_available();
    row.n_kv_blocks_total = pool.n_blocks();
    row.n_kv_blocks_reserve = group->n_kv_blocks_reserve;
    row.n_queued = group->n_queued;
    row.n_running = group->n_running;
    row.n_steps_in_flight = group->lanes.n_in_flight();
    row.n_steps_in_flight_max = group->lanes.n_max();
    row.is_leaving = group->is_leaving ? 1 : 0;
    row.slice_set = slice_set_of(*group);
    row.latency_ns_p95 = static_cast<std::uint64_t>(group->latency_p95().count());
    row.step_ns_fixed = static_cast<float>(costs.fixed_ns);
    row.step_ns_per_row = static_cast<float>(costs.per_row_ns);
    row.step_ns_per_kv_token = static_cast<float>(costs.per_kv_token_ns);
    for (std::uint32_t d = 0; d < group->n_devices(); ++d) {
      row.device = group->numbers.first_device + d;
      row.busy_ratio = group->loads[d].busy_ratio;
      row.attention = group->attention[d];
      devices_.push_back(row);
    }
  }
}

// Numbered by the first group of each set. What is linked has equal layouts, and steps of one count
// of devices (may_slice).
std::uint32_t SchedulerGate::slice_set_of(const Group& group) const {
  if (!limits_.slices || group.model.slice_set == nullptr) return 0;
  const auto all = groups_.all();
  const auto first = std::ranges::find_if(
      all, [&group](const auto& other) { return other->model.slice_set == group.model.slice_set; });
  return static_cast<std::uint32_t>(first - all.begin()) + 1;
}

luna_snapshot SchedulerGate::snapshot(const SnapshotTime& time) const {
  luna_snapshot snapshot{};
  snapshot.struct_size = sizeof(snapshot);
  snapshot.req_stride = sizeof(luna_req_row);
  snapshot.device_stride = sizeof(luna_device_row);
  snapshot.link_stride = sizeof(luna_link_row);
  snapshot.slice_stride = sizeof(luna_slice_row);
  snapshot.prefix_stride = sizeof(luna_prefix_row);
  snapshot.n_reqs = n_rows_;
  snapshot.n_devices = static_cast<std::uint32_t>(devices_.size());
  snapshot.n_slices = static_cast<std::uint32_t>(slice_rows_.size());
  snapshot.slices = slice_rows_.data();
  snapshot.n_prefixes = static_cast<std::uint32_t>(prefixes_.size());
  snapshot.n_rows_max = limits_.n_rows_max;
  snapshot.n_seqs_max = limits_.n_seqs_max;
  snapshot.kv_block_tokens = limits_.kv_block_tokens;
  snapshot.step = time.step;
  snapshot.now_ns = static_cast<std::uint64_t>(time.now.count());
  snapshot.reqs = rows_.data();
  snapshot.devices = devices_.data();
  snapshot.prefixes = prefixes_.data();
  snapshot.verbs = kVerbs | (limits_.slices ? 1U << LUNA_VERB_SLICE : 0U);
  snapshot.n_steps_in_flight = groups_.n_steps_in_flight();
  snapshot.n_steps_in_flight_max = groups_.n_steps_max();
  return snapshot;
}

PlanFault SchedulerGate::ask(const SnapshotTime& time, StepPlan& plan) {
  fill_rows();
  fill_devices();
  const luna_snapshot tables = snapshot(time);
  answer_ = {};
  answer_.struct_size = sizeof(answer_);
  answer_.n_actions_max = static_cast<std::uint32_t>(actions_.size());
  answer_.actions = actions_.data();
  err_ = make_err();
  plan.clear();
  fault_row_ = 0;
  const Nanoseconds asked_at = clock_ != nullptr ? clock_->now() : Nanoseconds(0);
  const luna_scheduler_if& policy = scheduler_->table();
  const luna_status status = policy.plan(scheduler_->self(), &tables, &answer_, &err_);
  if (clock_ != nullptr) call_time_ = clock_->now() - asked_at;
  if (recorder_ != nullptr) {
    luna_plan noted = answer_;  // the plugin was given the table
    noted.n_actions_max = static_cast<std::uint32_t>(actions_.size());
    noted.actions = actions_.data();
    recorder_->record(tables, noted, status);
  }
  if (status < 0) return PlanFault::call_failed;
  const PlanFault fault = check(plan);
  for (const PlannedAssign& assigned : plan.assigned)
    assigned_[assigned.slot] = nullptr;
  if (fault != PlanFault::none) return fault;
  if (answer_.wake_at_ns != 0) {
    const auto latest = static_cast<std::uint64_t>((time.now + kWakeMax).count());
    plan.wake_at = Nanoseconds(std::min(answer_.wake_at_ns, latest));
  }
  // A time that has come wakes nobody: without it the loop does not turn for nothing.
  if (plan.wake_at && *plan.wake_at <= time.now) plan.wake_at.reset();
  // Nor does it for a row that is handed round.
  const bool acts = !plan.runs.empty() || !plan.preempted.empty() || !plan.rejected.empty() ||
                    !plan.moves.empty() || !plan.slices.empty();
  // The end of a step or of a copy brings the next plan.
  const bool awaits =
      plan.wake_at || tables.n_steps_in_flight > 0 || slices_.is_copying() || moves_.is_moving();
  const bool goes_on = acts || n_new_assigns_ > 0 || awaits;
  return goes_on ? PlanFault::none : PlanFault::changes_nothing;
}

PlanFault SchedulerGate::check(StepPlan& plan) {
  // The plugin was given the table, so it is read again from our own pointers.
  if (answer_.n_actions > actions_.size()) return PlanFault::too_many_actions;
  std::fill_n(taken_.begin(), n_rows_, std::uint8_t{0});
  std::fill_n(moved_.begin(), n_rows_, std::uint8_t{0});
  n_new_assigns_ = 0;
  for (const auto& group : groups_.all())
    group->books.begin();
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
    case LUNA_VERB_MOVE:
    case LUNA_VERB_PREEMPT:
    case LUNA_VERB_REJECT:
    case LUNA_VERB_SLICE:
      break;
    case LUNA_VERB_ROLE:
      return PlanFault::unsupported_verb;
    default:
      return PlanFault::unknown_verb;
  }
  if (action.row >= n_rows_) return PlanFault::unknown_row;
  if (action.verb == LUNA_VERB_ASSIGN) return check_assign(action, plan);
  if (action.verb == LUNA_VERB_MOVE) return check_move(action, plan);
  if (action.verb == LUNA_VERB_SLICE) return check_slice(action, plan);
  const std::uint32_t slot = slots_[action.row];
  const Sequence& sequence = sequences_[slot];
  const bool goes_on = action.verb == LUNA_VERB_RUN && sequence.n_wanted() > 0;
  if ((sequence.in_step() || sequence.is_paused) && !goes_on) return PlanFault::row_in_step;
  const bool leaves = action.verb != LUNA_VERB_RUN && moved_[action.row] != 0;
  if (taken_[action.row] != 0 || leaves) return PlanFault::row_twice;
  taken_[action.row] = static_cast<std::uint8_t>(action.verb);
  if (action.verb == LUNA_VERB_RUN) return check_run(action, plan);
  if (action.verb == LUNA_VERB_REJECT) {
    plan.rejected.push_back({slot, action.reason, queue_wait_of(action)});
    return PlanFault::none;
  }
  if (sequence.phase == Phase::waiting) return PlanFault::wrong_state;
  plan.preempted.push_back(slot);
  return PlanFault::none;
}

PlanFault SchedulerGate::check_assign(const luna_action& action, StepPlan& plan) {
  const std::uint32_t slot = slots_[action.row];
  const Sequence& sequence = sequences_[slot];
  Group* const group = groups_.of_device(action.device);
  if (group == nullptr || group->is_leaving) return PlanFault::unknown_device;
  if (sequence.phase != Phase::waiting) return PlanFault::wrong_state;
  if (assigned_[slot] != nullptr || taken_[action.row] != 0) return PlanFault::row_twice;
  const std::uint32_t n_blocks = sequence.n_blocks_max(limits_.kv_block_tokens);
  if (!group->can_hold(n_blocks) && (!limits_.slices || groups_.n_blocks_around(*group) < n_blocks))
    return PlanFault::too_few_blocks;
  if (group == sequence.group) return PlanFault::none;
  if (sequence.group == nullptr) ++n_new_assigns_;
  assigned_[slot] = group;
  plan.assigned.push_back({slot, group});
  return PlanFault::none;
}

PlanFault SchedulerGate::check_move(const luna_action& action, StepPlan& plan) {
  if (action.arg != 0) return PlanFault::unsupported_verb;  // a stage
  const std::uint32_t slot = slots_[action.row];
  const Sequence& sequence = sequences_[slot];
  Group* const to = groups_.of_device(action.device);
  if (to == nullptr || to->is_leaving) return PlanFault::unknown_device;
  if (sequence.phase == Phase::waiting) return PlanFault::wrong_state;
  const bool leaves = taken_[action.row] != 0 && taken_[action.row] != LUNA_VERB_RUN;
  if (leaves || moved_[action.row] != 0) return PlanFault::row_twice;
  if (!to->can_hold(sequence.n_blocks_max(limits_.kv_block_tokens)))
    return PlanFault::too_few_blocks;
  const bool is_sliced = sequence.n_away > 0 || sequence.n_moving > 0;
  if (sequence.moving_to != nullptr || is_sliced || !KvMoves::can_move(sequence, *to))
    return PlanFault::cannot_move;
  moved_[action.row] = 1;
  // A policy cannot know of all that is in the way for a moment.
  if (!moves_.can_begin(sequence) || plan.moves.size() >= moves_.n_free()) return PlanFault::none;
  plan.moves.push_back({slot, to});
  return PlanFault::none;
}

PlanFault SchedulerGate::check_slice(const luna_action& action, StepPlan& plan) {
  const std::uint32_t slot = slots_[action.row];
  const Sequence& sequence = sequences_[slot];
  if (sequence.guests == nullptr) return PlanFault::unsupported_verb;  // there is one group
  Group* const to = groups_.of_device(action.device);
  if (to == nullptr || (to->is_leaving && to != sequence.group)) return PlanFault::unknown_device;
  if (sequence.phase == Phase::waiting) return PlanFault::wrong_state;
  const SliceRange range = sliceable(sequence, limits_.kv_block_tokens);
  const std::uint64_t end = std::uint64_t{action.first_token} + action.n_tokens;
  if (action.n_tokens == 0 || action.first_token % LUNA_PARTITION_TOKENS != 0 ||
      end % LUNA_PARTITION_TOKENS != 0 || action.first_token < range.first || end > range.end)
    return PlanFault::wrong_token_count;
  if (to != sequence.group && !may_slice(*sequence.group, *to)) return PlanFault::unequal_groups;
  const PlannedSlice planned{slot,
                             action.first_token / limits_.kv_block_tokens,
                             action.n_tokens / limits_.kv_block_tokens,
                             to};
  if (!lies_together(sequence, planned)) return PlanFault::wrong_state;
  for (const PlannedSlice& other : plan.slices)
    if (other.slot == slot && other.first_block < planned.end_block() &&
        planned.first_block < other.end_block())
      return PlanFault::row_twice;
  // A policy cannot know how long steps read what was copied.
  if (plan.slices.size() < slices_.n_free()) plan.slices.push_back(planned);
  return PlanFault::none;
}

// In one group, not the one that it goes to; nobody else uses it, and it is not being copied.
bool SchedulerGate::lies_together(const Sequence& sequence, const PlannedSlice& planned) {
  const Group* const from = sequence.holder_of(planned.first_block);
  if (from == planned.to) return false;
  for (std::uint32_t b = planned.first_block; b < planned.end_block(); ++b)
    if (sequence.holder_of(b) != from || from->pool.n_references(sequence.blocks[b]) != 1)
      return false;
  return true;
}

SchedulerGate::Place SchedulerGate::place_of(std::uint32_t slot) const {
  const Sequence& sequence = sequences_[slot];
  if (Group* const group = assigned_[slot]; group != nullptr)
    return {group, group->prefixes.peek(sequence)};
  return {sequence.group, sequence.hit};
}

PlanFault SchedulerGate::check_run(const luna_action& action, StepPlan& plan) {
  const std::uint32_t slot = slots_[action.row];
  const Sequence& sequence = sequences_[slot];
  const Place place = place_of(slot);
  if (place.group == nullptr) return PlanFault::no_group;
  if (!place.group->has_room()) return PlanFault::no_room_for_step;
  std::uint32_t n_wanted = sequence.n_wanted();
  std::uint32_t n_tokens = action.n_tokens;
  if (assigned_[slot] != nullptr) {
    // What its new group knows of it, a policy is told of rows without one only.
    n_wanted = sequence.n_prefill;
    n_tokens = std::min(n_tokens, n_wanted - place.hit.n_blocks * limits_.kv_block_tokens);
  }
  if (action.n_tokens == 0 || action.n_tokens > n_wanted) return PlanFault::wrong_token_count;
  PlanBooks& books = place.group->books;
  if (books.n_runs == limits_.n_seqs_max) return PlanFault::too_many_rows;
  if (n_tokens > limits_.n_rows_max - books.n_tokens) return PlanFault::too_many_tokens;
  ++books.n_runs;
  books.n_tokens += n_tokens;
  // Fewer than the policy gave break none of its sums.
  plan.runs.push_back({slot, std::min(n_tokens, sequence.n_step_tokens_max())});
  return PlanFault::none;
}

PlanFault SchedulerGate::check_blocks(const StepPlan& plan) {
  for (const PlannedReject& rejected : plan.rejected)
    if (const Sequence& sequence = sequences_[rejected.slot]; sequence.n_blocks > 0)
      withdraw(sequence);
  for (const std::uint32_t slot : plan.preempted)
    withdraw(sequences_[slot]);
  // All of them before the first block is given away, as the step does.
  for (const PlannedRun& run : plan.runs) {
    if (sequences_[run.slot].phase != Phase::waiting) continue;
    const Place place = place_of(run.slot);
    place.group->books.lend(place.hit);
  }
  for (const PlannedRun& run : plan.runs) {
    const Sequence& sequence = sequences_[run.slot];
    const bool is_start = sequence.phase == Phase::waiting;
    const Place place = is_start ? place_of(run.slot) : Place{sequence.group, {}};
    // A row that starts leaves the reserve to those that hold KV.
    const std::uint32_t n_reserve =
        is_start && place.group->n_running > 0 ? place.group->n_kv_blocks_reserve : 0;
    if (place.group->books.take(sequence, place.hit.n_blocks, run.n_tokens, n_reserve)) continue;
    note_fault(run.slot);
    return PlanFault::too_few_blocks;
  }
  for (const PlannedMove& move : plan.moves) {
    if (move.to->books.take(sequences_[move.slot].n_blocks, 0)) continue;
    note_fault(move.slot);
    return PlanFault::too_few_blocks;
  }
  return check_slices(plan);
}

// What else becomes of the rows, and the blocks.
PlanFault SchedulerGate::check_slices(const StepPlan& plan) {
  for (const PlannedSlice& slice : plan.slices) {
    const auto is_it = [&](std::uint32_t slot) { return slot == slice.slot; };
    const bool leaves = std::ranges::any_of(plan.preempted, is_it) ||
                        std::ranges::any_of(plan.rejected, is_it, &PlannedReject::slot) ||
                        std::ranges::any_of(plan.moves, is_it, &PlannedMove::slot);
    if (!leaves && slice.to->books.take(slice.n_blocks, 0)) continue;
    note_fault(slice.slot);
    return leaves ? PlanFault::row_twice : PlanFault::too_few_blocks;
  }
  return PlanFault::none;
}

// A row gives all its blocks back, wherever they lie.
void SchedulerGate::withdraw(const Sequence& sequence) {
  for (const auto& group : groups_.all())
    if (group.get() == sequence.group || sequence.n_away > 0)
      group->books.withdraw(sequence, group.get());
}

void SchedulerGate::note_fault(std::uint32_t slot) {
  const auto rows = std::span(slots_).first(n_rows_);
  fault_row_ = static_cast<std::uint32_t>(std::find(rows.begin(), rows.end(), slot) - rows.begin());
}

}  // namespace luna::engine
