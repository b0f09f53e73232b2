// How the attention of a step is cut over threads.
//
// The work stands in one order: groups of sequences (attend_order.hpp), KV heads, sequences, runs
// of rows, partitions of KV. It is cut into shares of equal cost, one a thread, so a long sequence
// alone occupies all of them. Where a cut falls within a unit, each side leaves states of its
// partitions, and merging joins them by the canonical tree: the bits do not depend on where the
// cuts fall.
#pragma once

#include "kernels/cpu/arithmetic.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace luna::cpu {

/// Partitions [first, last).
struct PartitionRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  [[nodiscard]] bool is_empty() const { return first >= last; }
  bool operator==(const PartitionRange&) const = default;
};

/// The rows [first_slot, first_slot + n_rows) of one sequence for one KV head. A value.
struct AttendUnit {
  std::uint32_t first_slot = 0;
  std::uint32_t n_rows = 0;
  std::uint32_t window = 0;  // 0: all positions
  std::uint64_t before = 0;  // cost of the units before it

  [[nodiscard]] std::uint32_t first_seen() const {
    return window == 0 || first_slot + 1 < window ? 0 : first_slot + 1 - window;
  }
  [[nodiscard]] std::uint32_t last_seen() const { return first_slot + n_rows; }
  [[nodiscard]] PartitionRange partitions() const {
    return {first_seen() / kernels::kPartitionTokens,
            (last_seen() - 1) / kernels::kPartitionTokens + 1};
  }
  /// In positions read by a row; what a partition costs beside them is worth some positions too.
  [[nodiscard]] std::uint64_t cost_below(std::uint32_t partition) const {
    const std::uint32_t end = std::min(partition * kernels::kPartitionTokens, last_seen());
    const std::uint32_t n_positions = end <= first_seen() ? 0 : end - first_seen();
    return std::uint64_t{n_rows} *
           (n_positions + kPartitionCost * (partition - partitions().first));
  }
  [[nodiscard]] std::uint64_t cost() const { return cost_below(partitions().last); }
  /// That of the slots seen below `end`, without what partitions cost beside them.
  [[nodiscard]] std::uint64_t cost_of_slots(std::uint32_t end) const {
    const std::uint32_t last = std::min(end, last_seen());
    return last <= first_seen() ? 0 : std::uint64_t{n_rows} * (last - first_seen());
  }

 private:
  static constexpr std::uint32_t kPartitionCost = 16;  // splitting Q, two reductions, a join
};

/// Where a piece of the work stands in its order.
struct AttendCost {
  std::uint64_t before = 0;  // of the pieces before it
  std::uint64_t own = 0;
};

/// The cuts of one op's attention. A value, the same on every thread.
class AttendShares {
 public:
  AttendShares(std::uint64_t total_cost, std::uint32_t n_threads)
      : total_(total_cost), n_threads_(n_threads) {}

  /// The unit's partitions that are a thread's: those whose middle lies in its share.
  [[nodiscard]] PartitionRange part_of(const AttendUnit& unit, std::uint32_t thread) const {
    const PartitionRange all = unit.partitions();
    const std::uint64_t low = total_ * thread / n_threads_;
    const std::uint64_t high = total_ * (thread + 1) / n_threads_;
    if (unit.before + unit.cost() <= low || unit.before >= high) return {all.first, all.first};
    if (unit.before >= low && unit.before + unit.cost() <= high) return all;
    PartitionRange part{all.last, all.last};
    for (std::uint32_t p = all.first; p < all.last; ++p) {
      const std::uint64_t middle = unit.before + (unit.cost_below(p) + unit.cost_below(p + 1)) / 2;
      if (middle >= low && p < part.first) part.first = p;
      if (middle >= high) {
        part.last = p;
        break;
      }
    }
    part.first = std::min(part.first, part.last);
    return part;
  }

  /// Who does a piece that is not cut: the thread whose share its middle lies in.
  [[nodiscard]] std::uint32_t owner_of(const AttendCost& cost) const {
    const std::uint64_t middle = cost.before + cost.own / 2;
    std::uint32_t thread = 0;
    while (total_ * (thread + 1) / n_threads_ <= middle)
      ++thread;
    return thread;
  }

 private:
  std::uint64_t total_;
  std::uint32_t n_threads_;
};

constexpr std::uint32_t n_partitions_of(std::uint32_t n_positions) {
  return n_positions / kernels::kPartitionTokens +
         (n_positions % kernels::kPartitionTokens == 0 ? 0 : 1);
}
/// Tree nodes that cover any range of a sequence's partitions: two a level at most.
constexpr std::uint32_t tree_nodes_max(std::uint32_t n_positions_max) {
  return 2 * static_cast<std::uint32_t>(std::bit_width(n_partitions_of(n_positions_max)));
}

}  // namespace luna::cpu
