// The order in which the sequences of a step are attended to, and which of them together.
//
// Sequences whose KV begins in the same blocks (a prefix that many requests have in common) stand
// next to each other, so that its KV is read while it is in the cache; a few at a time are one task
// that reads it once for all. What a row gets does not depend on it.
#pragma once

#include "kernels/cpu/arithmetic.hpp"

#include <luna/abi/backend.h>

#include <cstdint>
#include <span>
#include <vector>

namespace luna::cpu {

/// Sequences [first, first + n_seqs) of an order: one, or several whose slots below `shared_slots`
/// lie in the same blocks. A value.
struct AttendTask {
  std::uint32_t first = 0;
  std::uint32_t n_seqs = 1;
  std::uint32_t shared_slots = 0;  // a multiple of 32

  [[nodiscard]] bool is_alone() const { return n_seqs == 1; }
};

/// What limits tasks.
struct AttendOrderRules {
  std::uint32_t block_tokens = 0;
  std::uint32_t rows_max = 0;    // of the sequences of a task; below 2 each is alone
  std::uint32_t n_kv_heads = 0;  // each task is done once a head
  std::uint32_t n_threads = 0;
};

/// The tasks of one step. Filled by the thread that submits it, read by all threads of the team.
class AttendOrder {
 public:
  /// Makes room. [start-up]
  void reserve(std::uint32_t n_seqs_max);
  /// Cost  O(n log n) comparisons of block tables, which end at the first block that differs;
  ///       allocates nothing
  void find(const luna_step& step, const AttendOrderRules& rules);

  [[nodiscard]] std::uint32_t seq(std::uint32_t at) const { return order_[at]; }
  [[nodiscard]] std::span<const AttendTask> tasks() const { return tasks_; }
  /// Past the last task of each group: those of a group have a beginning in common.
  [[nodiscard]] std::span<const std::uint32_t> group_ends() const { return group_ends_; }
  [[nodiscard]] bool has_shared() const { return has_shared_; }

 private:
  std::vector<std::uint32_t> order_;
  std::vector<AttendTask> tasks_;
  std::vector<std::uint32_t> group_ends_;
  bool has_shared_ = false;
};

}  // namespace luna::cpu
