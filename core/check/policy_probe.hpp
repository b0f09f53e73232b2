// A scheduler plugin as the engine asks it, with watched arguments.
#pragma once

#include "core/check/fleet.hpp"
#include "core/check/guarded_memory.hpp"
#include "core/check/subject.hpp"

#include <luna/abi/scheduler.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace luna::check {

/// How a probe hands the tables over.
struct Lending {
  bool read_only = false;       ///< in pages that cannot be written
  bool taken_away = false;      ///< and that are gone when the plan is there
  std::uint32_t pad_bytes = 0;  ///< of each row and table, behind what this build knows
};

/// Owns an instance; its plan() is what a Fleet calls. [main]
class PolicyProbe {
 public:
  /// nullptr: the run was told why. `subject` outlives it.
  static std::unique_ptr<PolicyProbe> make(CaseRun& run, Subject& subject, Lending lending = {});

  /// Whether the policy lays rows over several groups.
  [[nodiscard]] bool slices() const;
  /// One call. What is wrong with the way it answers is told to the run.
  luna_status plan(const luna_snapshot& snapshot, luna_plan& plan, luna_err& err);
  [[nodiscard]] Fleet::PlanCall call() {
    return [this](const luna_snapshot& snapshot, luna_plan& answer, luna_err& err) {
      return plan(snapshot, answer, err);
    };
  }
  /// Counts what plan() takes from the heap from now on. AllocationWatch is installed.
  void watch_allocations() { watches_allocations_ = true; }
  [[nodiscard]] std::uint64_t n_allocations() const { return n_allocations_; }
  /// Processor time of the last plan.
  [[nodiscard]] double plan_us() const { return plan_us_; }

 private:
  PolicyProbe(CaseRun& run, Subject& subject, Lending lending)
      : run_(run), subject_(subject), lending_(lending) {}
  luna_status ask(const luna_snapshot& snapshot, luna_plan& plan, luna_err& err);
  std::unique_ptr<GuardedMemory> lend(const luna_snapshot& snapshot) const;

  CaseRun& run_;
  Subject& subject_;
  const Lending lending_;
  plugin::Instance<luna_scheduler_if> policy_;
  std::vector<luna_action> room_;
  std::deque<std::unique_ptr<GuardedMemory>> gone_;
  bool watches_allocations_ = false;
  std::uint64_t n_allocations_ = 0;
  double plan_us_ = 0.0;
};

}  // namespace luna::check
