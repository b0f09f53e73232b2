// The machine of core/check/fleet.hpp, driven by a policy class for a test.
#pragma once

#include "core/check/fleet.hpp"

#include <luna/scheduler.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

namespace luna::test {

using check::FleetGroup;
using check::FleetJob;
using check::FleetOptions;

/// Every breach of a rule fails the test.
template <typename Policy>
class FleetRig : public check::Fleet {
 public:
  FleetRig(std::unique_ptr<Policy> policy, FleetOptions with)
      : Fleet(std::move(with),
              [this](const luna_snapshot& s, luna_plan& plan, luna_err& err) {
                return SchedulerInstance<Policy>::plan(&policy_, &s, &plan, &err);
              }),
        policy_(std::move(policy)) {}
  FleetRig(const FleetRig&) = delete;
  FleetRig& operator=(const FleetRig&) = delete;
  ~FleetRig() {
    for (const check::FleetBreach& breach : breaches)
      ADD_FAILURE() << "plan " << breach.plan << ": " << breach.breach.text;
  }

  void run(std::size_t n_turns_max = 300'000) {
    EXPECT_TRUE(Fleet::run(n_turns_max)) << n_live() << " left, first " << describe_first();
  }
  void run_until(const std::function<bool()>& condition, std::size_t n_turns_max = 300'000) {
    for (std::size_t n = 0; n < n_turns_max && !condition(); ++n)
      if (!turn()) break;
    EXPECT_TRUE(condition());
  }

 private:
  SchedulerInstance<Policy> policy_;
};

}  // namespace luna::test
