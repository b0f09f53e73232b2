// One group of devices as a policy sees it when it plans a step there.
#pragma once

#include <luna/scheduler.hpp>
#include <luna/step_cost.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

namespace luna::scheduling {

/// Which decoding rows' turn it is, from step to step of one group (DecodeTurns). A value.
struct TurnCredit {
  double credit_ns = 0.0;  ///< time that the long ones have not used yet
  std::uint64_t last_served_id = 0;
};

/// Valid during plan(), as the snapshot is.
struct GroupRows {
  const Snapshot& rows;
  const GroupBooks& books;              ///< of the plan being made
  StepCost cost;                        ///< fitted to its steps
  std::uint32_t n_steps_in_flight = 0;  ///< before this plan's; below the next
  std::uint32_t n_steps_max = 1;
  std::span<const std::uint32_t> held;   ///< rows that hold KV there, the most senior first
  std::span<const std::uint32_t> queue;  ///< rows that may compute prompt there, in their order
  TurnCredit& turns;

  /// Steps that could be planned now, this one included.
  [[nodiscard]] std::uint32_t n_steps_free() const {
    return n_steps_max - std::min(n_steps_in_flight, n_steps_max - 1);
  }
};

/// What is to be computed again of rows that had begun to answer: they lost their KV to a failure
/// or to others, and their clients wait for the next token. A value.
struct StalledWork {
  bool is_some = false;
  double ns = 0.0;

  static StalledWork of(const GroupRows& group) {
    StalledWork work;
    for (const std::uint32_t i : group.queue) {
      const Row row = group.rows[i];
      if (row->n_generated == 0) continue;
      work.is_some = true;
      work.ns += group.cost.chunk_ns(row, row.n_wanted());
    }
    return work;
  }
};

}  // namespace luna::scheduling
