// Tables of a busy server, for timing one plan.
#pragma once

#include "core/check/policy_probe.hpp"

#include <luna/abi/scheduler.h>

#include <cstdint>
#include <vector>

namespace luna::check {

/// One device, some rows that decode, one that is in its prompt, all others waiting.
class DecisionScene {
 public:
  DecisionScene(std::uint32_t n_rows, std::uint64_t seed);

  /// Processor time of each plan, in microseconds, sorted. Empty: one failed.
  std::vector<double> time_plans(PolicyProbe& probe, std::uint32_t n_plans);

 private:
  std::vector<luna_req_row> rows_;
  luna_device_row device_{};
  std::vector<luna_action> actions_;
};

}  // namespace luna::check
