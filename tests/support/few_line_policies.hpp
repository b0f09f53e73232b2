// Policies of a few lines, on the C++ base class.
#pragma once

#include "core/plugin/instance.hpp"

#include <luna/scheduler.hpp>

#include <algorithm>
#include <memory>

namespace luna::test {

/// The policy of scheduler.hpp's head: it knows nothing of blocks, nor of groups.
struct ShortestFirst final : Scheduler {
  void plan(const Snapshot& rows, Plan& out) override {
    auto& order = out.order();
    std::ranges::stable_sort(order, {}, [&](std::uint32_t i) {
      return rows[i].n_remaining() - 0.5 * rows[i].waited_ms();
    });
    for (const std::uint32_t i : order)
      if (!out.take(i)) break;
  }
};
/// The same over all groups at once; it assigns nothing itself.
struct ShortestOfAll final : Scheduler {
  static constexpr bool kPlansAllGroups = true;
  void plan(const Snapshot& rows, Plan& out) override {
    auto& order = out.order();
    std::ranges::stable_sort(order, {}, [&](std::uint32_t i) { return rows[i].n_remaining(); });
    for (const std::uint32_t i : order)
      out.take(i);
  }
};

/// A policy without settings, built into the test.
template <typename T>
plugin::Instance<luna_scheduler_if> instance_of() {
  static constexpr luna_scheduler_if kTable = make_scheduler_table<T>({});
  return {&kTable, new SchedulerInstance<T>(std::make_unique<T>()), "test"};
}

}  // namespace luna::test
