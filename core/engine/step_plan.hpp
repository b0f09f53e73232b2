// What a step does: the scheduler's answer after it was checked.
#pragma once

#include "core/base/clock.hpp"
#include "core/pipeline/token_stream.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace luna::engine {

struct Group;

/// One sequence's share of a step.
struct PlannedRun {
  std::uint32_t slot;      ///< in the SequenceTable
  std::uint32_t n_tokens;  ///< to compute, from its first token without KV
};

/// A sequence that ends with an error.
struct PlannedReject {
  std::uint32_t slot;
  std::uint16_t reason;                                    ///< LUNA_REASON_*, or the policy's own
  std::optional<pipeline::QueueWait> wait = std::nullopt;  ///< LUNA_REASON_QUEUE_LONG, if told
};

/// A waiting sequence that goes to a group.
struct PlannedAssign {
  std::uint32_t slot;
  Group* group;
};

/// A sequence that goes to another group with its KV.
struct PlannedMove {
  std::uint32_t slot;
  Group* to;
};

/// Blocks of a sequence that go to another group, or come back.
struct PlannedSlice {
  std::uint32_t slot;
  std::uint32_t first_block;
  std::uint32_t n_blocks;
  Group* to;

  [[nodiscard]] std::uint32_t end_block() const { return first_block + n_blocks; }
};

/// A value, reused; carried out as assigned, rejected, pre-empted, moves, slices, then runs in
/// order, those of each group in a step of its own.
struct StepPlan {
  /// n_runs_max  of all groups together
  explicit StepPlan(std::uint32_t n_slots, std::uint32_t n_runs_max) {
    assigned.reserve(n_slots);
    moves.reserve(n_slots);
    rejected.reserve(n_slots);
    preempted.reserve(n_slots);
    runs.reserve(n_runs_max);
  }
  void clear() {
    assigned.clear();
    moves.clear();
    rejected.clear();
    preempted.clear();
    runs.clear();
    slices.clear();
    wake_at.reset();
  }
  [[nodiscard]] bool is_empty() const {
    return moves.empty() && slices.empty() && runs.empty() && preempted.empty() &&
           rejected.empty() && assigned.empty();
  }

  std::vector<PlannedAssign> assigned;
  std::vector<PlannedMove> moves;
  std::vector<PlannedReject> rejected;
  std::vector<std::uint32_t> preempted;  // slots
  std::vector<PlannedRun> runs;
  std::vector<PlannedSlice> slices;    // few: no more than can be copied at once
  std::optional<Nanoseconds> wake_at;  ///< plan again then
};

}  // namespace luna::engine
