// Groups of devices: who belongs to which, and what each has to do.
#include "core/base/log.hpp"
#include "core/engine/engine_impl.hpp"
#include "core/engine/group_check.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace luna::engine {

using telemetry::bump;

Result<GroupId> Engine::add_group(const model::CompiledModel& model) {
  Impl& impl = *impl_;
  LUNA_TRY(check_model(model, impl.step_limits));
  LUNA_TRY(check_copy(impl.pattern, model));
  if (impl.draft_model) {
    return Error{Code::unsupported,
                 "model " + model.name + ": beside a draft model there is one group of devices"};
  }
  if (impl.n_groups.fetch_add(1) >= impl.n_groups_max) {
    impl.n_groups.fetch_sub(1);
    return Error{Code::exhausted,
                 "model " + model.name + ": " + std::to_string(impl.n_groups_max) +
                     " groups of devices are there, no more may be"};
  }
  const auto n_devices = static_cast<std::uint32_t>(model.shards.size());
  const GroupNumbers numbers{.id = GroupId{impl.next_group.fetch_add(1)},
                             .place = 0,
                             .first_device = impl.next_device.fetch_add(n_devices)};
  auto group = std::make_unique<Group>(model, impl.group_options, numbers, impl.wake);
  if (impl.tell(std::move(group))) return numbers.id;
  impl.n_groups.fetch_sub(1);
  return Error{Code::unavailable, "the engine has been stopped"};
}

void Engine::retire_group(GroupId id, RetireMode mode) {
  impl_->tell(Retirement{id, mode});
}

void Engine::relieve_group(GroupId id) {
  impl_->tell(Relief{id});
}

void Engine::Impl::settle(Sequence& sequence) {
  const std::uint32_t n_blocks = sequence.n_blocks_max(limits.kv_block_tokens);
  const bool fits = std::ranges::any_of(groups.all(), [&](const auto& group) {
    return !group->is_leaving && could_hold(*group, n_blocks);
  });
  if (!fits && !std::exchange(sequence.is_held, true)) sequence.held_since = parts.clock.now();
  sequence.is_held = !fits;
  Group* const only = groups.only();
  if (fits && only != nullptr) sequence.group = only;
}

void Engine::Impl::settle_waiting(bool anew) {
  for (const std::uint32_t slot : sequences.order()) {
    Sequence& sequence = sequences[slot];
    if (!sequences.is_live(slot) || sequence.phase != Phase::waiting) continue;
    if (sequence.group != nullptr && !anew) continue;
    sequences.assign(slot, nullptr);
    settle(sequence);
  }
  plan_due = true;
}

// What was copied meanwhile goes on, and what is computed anew waits where it goes.
bool Engine::Impl::go_on_moving() {
  const bool any = moves.go_on(sequences);
  for (const std::uint32_t slot : moves.to_recompute()) {
    Group* const to = sequences[slot].moving_to;
    sequences[slot].note(Disturbance::moved);
    preempt(slot);
    sequences.assign(slot, to);
    to->prefixes.adopt(sequences[slot]);
    bump(parts.stats.n_moves_recomputed, 1);
  }
  return any || !moves.to_recompute().empty();
}

void Engine::Impl::recompute(std::uint32_t slot) {
  sequences[slot].note(Disturbance::recomputed);
  preempt(slot);
}

void Engine::Impl::preempt(std::uint32_t slot) {
  moves.withdraw(sequences[slot]);
  slices.abandon(sequences[slot]);
  sequences.preempt(slot);
  settle(sequences[slot]);
  // It is computed from its beginning to its end, or another time.
  if (LiveRequest& request = *sequences[slot].request; request.is_replay) {
    request.cancelled = true;
    sequences[slot].note(Disturbance::recomputed);
    return;
  }
  bump(parts.stats.n_preempted, 1);
}

// What any thread has told of groups, at a moment when no round of drafts is under way.
void Engine::Impl::obey_group_commands() {
  for (std::unique_ptr<Group>& group : arrivals)
    admit(std::move(group));
  arrivals.clear();
  for (const Retirement& retirement : retirements)
    if (Group* const group = groups.find(retirement.group); group != nullptr)
      retire_group(*group, retirement.mode);
  retirements.clear();
  for (const Relief& relief : reliefs)
    if (Group* const group = groups.find(relief.group); group != nullptr)
      group->n_to_relieve = n_holding(*group);
  reliefs.clear();
}

// Sequences that hold KV of the group.
std::uint32_t Engine::Impl::n_holding(const Group& group) const {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(sequences.order(), [&](std::uint32_t slot) {
        return sequences[slot].group == &group && sequences[slot].phase != Phase::waiting;
      }));
}

void Engine::Impl::admit(std::unique_ptr<Group> group) {
  for (std::size_t d = 0; d < group->device_stats.size(); ++d)
    group->device_stats[d] = parts.stats.count_device(group->model.shards[d].device_name);
  Group& added = *group;
  groups.add(std::move(group));
  parts.stats.open_group(added.numbers.place, added.device_stats);
  parts.stats.is_lost.store(false, std::memory_order_relaxed);
  note_capacity();
  settle_waiting(true);
}

void Engine::Impl::retire_group(Group& group, RetireMode mode) {
  if (mode == RetireMode::at_once) {
    close(group);
    return;
  }
  group.is_leaving = true;
  group.is_emptying = mode == RetireMode::moving;
  group.gives_no_kv = false;
  note_capacity();
  for (const std::uint32_t slot : sequences.order()) {
    if (sequences[slot].moving_to == &group) moves.withdraw(sequences[slot]);
    if (sequences[slot].group != &group || sequences[slot].phase != Phase::waiting) continue;
    sequences.assign(slot, nullptr);
    settle(sequences[slot]);
  }
  settle_waiting(false);
}

// The roomiest group that takes the KV of a sequence; null: none does.
Group* Engine::Impl::refuge_of(const Sequence& sequence) const {
  Group* refuge = nullptr;
  for (const auto& group : groups.all()) {
    if (group->is_leaving || group->takes_no_kv || group->n_to_relieve > 0 ||
        !group->can_hold(sequence.n_blocks_max(limits.kv_block_tokens)))
      continue;
    if (!KvMoves::can_move(sequence, *group) || group->pool.n_available() < sequence.n_blocks)
      continue;
    if (refuge == nullptr || group->pool.n_available() > refuge->pool.n_available())
      refuge = group.get();
  }
  return refuge;
}

// Begins as many moves as there may be at a time; who can go nowhere with its KV goes without.
void Engine::Impl::send_away(const Group& group) {
  for (const std::uint32_t slot : sequences.order()) {
    Sequence& sequence = sequences[slot];
    const bool stays = !sequences.is_live(slot) || sequence.group != &group ||
                       sequence.phase == Phase::waiting || sequence.moving_to != nullptr;
    if (stays) continue;
    Group* const refuge = refuge_of(sequence);
    if (refuge != nullptr && moves.can_begin(sequence))
      moves.begin(sequence, *refuge, step_limits.n_rows_max);
    else if ((refuge == nullptr || sequence.n_away > 0) && !sequence.in_step())
      preempt(slot);
  }
}

// Likewise, but who can go nowhere stays, and the group does.
void Engine::Impl::relieve(Group& group) {
  bool is_waiting = false;  // for another move to end
  for (const std::uint32_t slot : sequences.order()) {
    Sequence& sequence = sequences[slot];
    const bool stays = !sequences.is_live(slot) || sequence.group != &group ||
                       sequence.phase == Phase::waiting || sequence.moving_to != nullptr;
    Group* const refuge = stays || group.n_to_relieve == 0 ? nullptr : refuge_of(sequence);
    if (refuge == nullptr) continue;
    if (!moves.can_begin(sequence)) {
      is_waiting = true;
      continue;
    }
    moves.begin(sequence, *refuge, step_limits.n_rows_max);
    --group.n_to_relieve;
  }
  if (!is_waiting) group.n_to_relieve = 0;
}

// Its steps in flight are its last.
void Engine::Impl::close(Group& group) {
  group.is_leaving = true;
  group.is_closing = true;
  note_capacity();
  vacate(group);
  settle_waiting(false);
}

// Whoever is in no step of a closing group waits for another.
void Engine::Impl::vacate(Group& group) {
  for (const std::uint32_t slot : sequences.order()) {
    Sequence& sequence = sequences[slot];
    if (!sequences.is_live(slot)) continue;
    if (sequence.moving_to == &group) moves.withdraw(sequence);
    if (sequence.group != &group) continue;
    if (sequence.in_step()) {
      sequence.is_ending = true;
    } else if (sequence.phase == Phase::waiting) {
      sequences.assign(slot, nullptr);
      settle(sequence);
    } else {
      recompute(slot);
    }
  }
}

// With what of it others may hold, where the policy slices.
bool Engine::Impl::could_hold(const Group& group, std::uint32_t n_blocks) const {
  return group.can_hold(n_blocks) ||
         (may_outgrow_group && groups.n_blocks_around(group) >= n_blocks);
}

// Sequences of other groups that lie in a leaving one, some of their blocks, are computed anew.
// Returns whether there are any yet.
bool Engine::Impl::evict_guests(const Group& group) {
  bool any = slices.uses(group);
  for (const std::uint32_t slot : sequences.order()) {
    Sequence& sequence = sequences[slot];
    if (!sequences.is_live(slot) || !sequence.lies_in(&group)) continue;
    if (sequence.in_step()) {
      any = true;
    } else {
      recompute(slot);
    }
  }
  return any;
}

bool Engine::Impl::part_with_groups() {
  bool any = false;
  for (const auto& group : groups.all())
    if (group->n_to_relieve > 0 && !group->is_leaving) relieve(*group);
  for (std::size_t g = groups.all().size(); g-- > 0;) {
    Group& group = *groups.all()[g];
    if (!group.is_leaving) continue;
    if (group.is_emptying && !group.is_closing) {
      // A copy that failed would fail again.
      if (group.gives_no_kv)
        close(group);
      else
        send_away(group);
    }
    const bool has_guests = evict_guests(group);
    if (has_guests || !group.lanes.is_idle()) continue;
    const auto order = sequences.order();
    const bool is_empty = std::ranges::none_of(
        order, [&](std::uint32_t slot) { return sequences[slot].group == &group; });
    if (!is_empty || moves.uses(group)) continue;
    let_go(group);
    any = true;
  }
  return any;
}

void Engine::Impl::let_go(Group& group) {
  const GroupEnd end{.group = group.numbers.id, .failed_device = group.failed_device};
  telemetry::GroupStats& stats = parts.stats.groups[group.numbers.place];
  for (auto* gauge : {&stats.n_running,
                      &stats.n_waiting,
                      &stats.n_steps_in_flight,
                      &stats.n_kv_blocks_used,
                      &stats.n_kv_blocks_cached,
                      &stats.n_kv_blocks_free})
    gauge->store(0, std::memory_order_relaxed);
  parts.stats.close_group(group.numbers.place);
  n_submits_gone += group.lanes.n_submits();
  groups.remove(group).reset();
  note_capacity();
  settle_waiting(false);
  n_groups.fetch_sub(1);
  if (parts.on_group_gone != nullptr) {
    parts.on_group_gone(parts.group_context, end);
  } else if (groups.is_empty()) {
    parts.stats.is_lost.store(true, std::memory_order_relaxed);
  }
}

// Whether what a group holds can go on elsewhere.
bool Engine::Impl::can_lose(const Group& group) const {
  if (parts.on_group_gone != nullptr) return true;
  return std::ranges::any_of(groups.all(), [&group](const auto& other) {
    return other.get() != &group && !other->is_closing;
  });
}

void Engine::Impl::note_capacity() {
  const auto relaxed = std::memory_order_relaxed;
  parts.stats.n_steps_in_flight_max.store(groups.n_steps_max(), relaxed);
  // While there is none, what was there last says what may come.
  std::uint32_t n = groups.n_blocks_max();
  if (n > 0) n_blocks_alone.store(n, relaxed);
  if (may_outgrow_group)
    for (const auto& group : groups.all())
      if (!group->is_leaving) n = std::max(n, groups.n_blocks_around(*group));
  if (n > 0) n_blocks_max.store(n, relaxed);
}

bool Engine::Impl::finish_steps() {
  bool any = false;
  for (const auto& group : groups.all()) {
    if (group->lanes.is_idle() || !group->lanes.oldest().runner.is_done()) continue;
    finish_step(*group);
    any = true;
  }
  return any;
}

bool Engine::Impl::has_plannable(const Group& group) const {
  const auto order = sequences.order();
  return std::any_of(order.begin(), order.end(), [&](std::uint32_t slot) {
    return sequences[slot].group == &group && sequences[slot].is_plannable();
  });
}

// Whether the plan that was carried out ran rows of a group that could begin another step now.
/// What lies elsewhere has got its share of the row's attention. Blocks that have gone on meanwhile
/// are told the mean of those that they went with.
void Engine::Impl::take_masses(const StepLane& lane,
                               const StepBatch::Entry& entry,
                               Sequence& sequence) {
  const model::ModelConfig& config = sequence.group->model.config;
  const double n_attends = double{1} * config.n_layers * config.n_heads;
  lane.batch.for_slice_masses(entry, [&](const StepBatch::SliceMass& slice) {
    const double share = slice.attention / n_attends;
    for (std::uint32_t b = slice.first_block; b < slice.first_block + slice.n_blocks; ++b)
      if (sequence.holder_of(b) != sequence.group)
        sequence.masses[b] = static_cast<float>(share / slice.n_blocks);
    const Group* const holder = sequence.holder_of(slice.first_block);
    if (holder != sequence.group)
      bump(parts.stats.groups[holder->numbers.place].guest_attention,
           static_cast<std::uint64_t>(share * telemetry::kAttentionUnits + 0.5));
  });
}

bool Engine::Impl::leaves_room() const {
  return std::ranges::any_of(groups.all(), [this](const auto& group) {
    return group->books.n_runs > 0 && group->has_room() && has_plannable(*group);
  });
}

void Engine::Impl::update_gauges() {
  std::uint64_t n_running = 0;
  std::uint64_t n_held = 0;
  for (const auto& group : groups.all())
    group->n_running = group->n_queued = 0;
  for (const std::uint32_t slot : sequences.order()) {
    const bool runs = sequences[slot].phase != Phase::waiting;
    if (runs) ++n_running;
    if (sequences[slot].is_held) ++n_held;
    if (Group* const group = sequences[slot].group; group != nullptr)
      ++(runs ? group->n_running : group->n_queued);
  }
  const auto set = [](std::atomic<std::uint64_t>& gauge, std::uint64_t value) {
    gauge.store(value, std::memory_order_release);  // after the progress: see is_alive
  };
  set(parts.stats.n_held, n_held);
  set(parts.stats.n_running, n_running);
  set(parts.stats.n_waiting, sequences.order().size() - n_running);
  set(parts.stats.n_steps_in_flight, groups.n_steps_in_flight());
  update_group_gauges();
  set(parts.stats.n_kv_moves, slices.n_moved());
  set(parts.stats.n_kv_move_failures, slices.n_failed());
  if (draft_model) set(parts.stats.n_draft_kv_blocks_used, draft_model->n_blocks_used());
}

void Engine::Impl::update_group_gauges() {
  const auto set = [](std::atomic<std::uint64_t>& gauge, std::uint64_t value) {
    gauge.store(value, std::memory_order_relaxed);
  };
  std::uint64_t n_used = 0;
  std::uint64_t n_cached = 0;
  std::uint64_t n_free = 0;
  std::uint64_t n_evicted = 0;
  for (const auto& group : groups.all()) {
    telemetry::GroupStats& stats = parts.stats.groups[group->numbers.place];
    set(stats.n_running, group->n_running);
    set(stats.n_waiting, group->n_queued);
    set(stats.n_steps_in_flight, group->lanes.n_in_flight());
    set(stats.n_kv_blocks_used, group->pool.n_used());
    set(stats.n_kv_blocks_cached, group->pool.n_cached());
    set(stats.n_kv_blocks_free, group->pool.n_free());
    n_used += group->pool.n_used();
    n_cached += group->pool.n_cached();
    n_free += group->pool.n_free();
    n_evicted += group->pool.n_evicted();
  }
  set(parts.stats.n_kv_blocks_used, n_used);
  set(parts.stats.n_kv_blocks_cached, n_cached);
  set(parts.stats.n_kv_blocks_free, n_free);
  set(parts.stats.n_kv_blocks_evicted, n_evicted);
}

}  // namespace luna::engine
