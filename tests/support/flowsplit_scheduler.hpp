// The policy `flowsplit` as an instance for engines of tests, built into the test.
#pragma once

#include "core/plugin/instance.hpp"
#include "plugins/scheduler_flowsplit/flow_policy.hpp"

#include <luna/scheduler.hpp>

#include <memory>
#include <utility>

namespace luna::test {

/// The settings that are shipped.
inline scheduler_flowsplit::FlowOptions shipped_flow_options() {
  scheduler_flowsplit::FlowOptions options;
  options.target_itl_ms = 100;
  options.ageing_ms = 1000;
  options.fair_tenants = true;
  options.adaptive_batch = true;
  return options;
}

inline plugin::Instance<luna_scheduler_if> flowsplit_scheduler(
    const scheduler_flowsplit::FlowOptions& options = shipped_flow_options()) {
  using scheduler_flowsplit::FlowPolicy;
  static constexpr luna_scheduler_if kTable = make_scheduler_table<FlowPolicy>({});
  auto policy = std::make_unique<FlowPolicy>(options);
  return {&kTable, new SchedulerInstance<FlowPolicy>(std::move(policy)), "flowsplit"};
}

}  // namespace luna::test
