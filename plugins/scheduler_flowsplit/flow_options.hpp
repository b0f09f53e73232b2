// The policy's settings; plugin.cpp declares them.
#pragma once

#include "plugins/scheduler_flowsplit/group_judge.hpp"

#include <luna/plugin.hpp>
#include <luna/result.hpp>

#include <cstdint>
#include <string>

namespace luna::scheduler_flowsplit {

/// A zero switches a rule off, but for thresholds.
struct FlowOptions {
  // Within a group, as in the policy `static`.
  std::int64_t target_itl_ms = 0;
  std::int64_t ageing_ms = 0;
  std::int64_t max_queue_ms = 0;
  bool fair_tenants = false;
  bool adaptive_batch = false;
  // Between groups.
  Thresholds thresholds{};
  std::int64_t interval_ms = 200;
  bool streaming_mode = false;

  /// Errors  as FlowPolicy::create
  static Result<FlowOptions> of(const Settings& settings) {
    FlowOptions options;
    options.target_itl_ms = settings.integer("target_itl_ms");
    options.ageing_ms = settings.integer("ageing_ms");
    options.max_queue_ms = settings.integer("max_queue_ms");
    options.fair_tenants = settings.flag("fair_tenants");
    options.adaptive_batch = settings.flag("adaptive_batch");
    options.thresholds.low = settings.number("low");
    options.thresholds.high = settings.number("high");
    options.thresholds.idle = settings.number("idle");
    options.thresholds.n_queued_max = static_cast<std::uint32_t>(settings.integer("max_queue"));
    options.interval_ms = settings.integer("interval_ms");
    options.streaming_mode = settings.flag("streaming_mode");
    const Thresholds& shares = options.thresholds;
    if (shares.low > shares.high || shares.idle > shares.high)
      return Error{Code::invalid_argument,
                   "high = " + std::to_string(shares.high) + ": must be at least low = " +
                       std::to_string(shares.low) + " and idle = " + std::to_string(shares.idle)};
    return options;
  }
  [[nodiscard]] std::uint64_t interval_ns() const {
    return static_cast<std::uint64_t>(interval_ms) * 1'000'000U;
  }
};

}  // namespace luna::scheduler_flowsplit
