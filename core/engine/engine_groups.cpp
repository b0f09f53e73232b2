// Groups of devices: who belongs to which, and what each has to do.
#include "core/engine/engine_impl.hpp"

#include <algorithm>

namespace luna::engine {

using telemetry::bump;

void Engine::Impl::settle(Sequence& sequence) {
  if (Group* const only = groups.only(); only != nullptr) sequence.group = only;
}

void Engine::Impl::preempt(std::uint32_t slot) {
  sequences.preempt(slot);
  settle(sequences[slot]);
  bump(parts.stats.n_preempted, 1);
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
bool Engine::Impl::leaves_room() const {
  return std::ranges::any_of(groups.all(), [this](const auto& group) {
    return group->books.n_runs > 0 && !group->lanes.is_full() && has_plannable(*group);
  });
}

void Engine::Impl::update_gauges() {
  std::uint64_t n_running = 0;
  for (const auto& group : groups.all())
    group->n_running = group->n_queued = 0;
  for (const std::uint32_t slot : sequences.order()) {
    const bool runs = sequences[slot].phase != Phase::waiting;
    if (runs) ++n_running;
    if (Group* const group = sequences[slot].group; group != nullptr)
      ++(runs ? group->n_running : group->n_queued);
  }
  const auto set = [](std::atomic<std::uint64_t>& gauge, std::uint64_t value) {
    gauge.store(value, std::memory_order_release);  // after the progress: see is_alive
  };
  set(parts.stats.n_running, n_running);
  set(parts.stats.n_waiting, sequences.order().size() - n_running);
  set(parts.stats.n_steps_in_flight, groups.n_steps_in_flight());
  update_group_gauges();
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
    set(stats.n_steps, group->n_steps);
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
