// A policy that moves sequences between groups of devices, for no reason at all.
#pragma once

#include "core/plugin/instance.hpp"

#include <luna/scheduler.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <utility>

namespace luna::test {

/// Runs everything in order of arrival, and moves a row whenever `moves` says so: to the group that
/// comes behind its own. Rows begin in their turns, or where they are told.
struct Mover final : Scheduler {
  static constexpr bool kPlansAllGroups = true;
  explicit Mover(std::function<bool(Row)> wish, std::optional<std::size_t> first = std::nullopt)
      : moves(std::move(wish)), first_group(first) {}

  void plan(const Snapshot& rows, Plan& out) override {
    for (std::uint32_t i = 0; i < rows.n_rows(); ++i) {
      if (rows[i].is_unassigned())
        out.assign(i, out.groups()[first_group.value_or(rows[i]->id) % out.groups().size()].device);
      if (rows[i].is_plannable()) out.take(i);
      if (rows[i].is_waiting() || !moves(rows[i])) continue;
      const auto here = static_cast<std::size_t>(out.group_of(i) - out.groups().data());
      out.move(i, out.groups()[(here + 1) % out.groups().size()].device);
    }
  }
  std::function<bool(Row)> moves;
  std::optional<std::size_t> first_group;
};

inline plugin::Instance<luna_scheduler_if> mover(
    std::function<bool(Row)> wish, std::optional<std::size_t> first_group = std::nullopt) {
  static constexpr luna_scheduler_if kTable = [] {
    luna_scheduler_if table{};
    table.head.struct_size = sizeof(table);
    table.head.destroy = [](void* self) { delete static_cast<SchedulerInstance<Mover>*>(self); };
    table.plan = SchedulerInstance<Mover>::plan;
    return table;
  }();
  auto policy = std::make_unique<Mover>(std::move(wish), first_group);
  return {&kTable, new SchedulerInstance<Mover>(std::move(policy)), "mover"};
}

/// Every row, now and then.
inline std::function<bool(Row)> at_times(std::uint32_t seed, std::uint32_t one_in) {
  return [random = std::mt19937(seed), one_in](Row) mutable { return random() % one_in == 0; };
}

}  // namespace luna::test
