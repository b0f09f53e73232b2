#include "attend_order.hpp"

#include <luna/backend_blocks.hpp>

#include <algorithm>
#include <numeric>

namespace luna::cpu {
namespace {

/// A shorter beginning is not worth a task: it saves less than the cuts between threads lose.
constexpr std::uint32_t kSharedSlotsMin = 128;
/// Tasks a thread should have of a step's heads, so that the threads end at about the same time.
constexpr std::uint32_t kTasksPerThread = 4;

/// The block tables of a step, as far as they are read.
class Tables {
 public:
  Tables(const luna_step& step, const AttendOrderRules& rules) : step_(step), rules_(rules) {}

  /// Whether attention may take the sequence with others: few rows, at consecutive positions.
  [[nodiscard]] bool is_eligible(std::uint32_t seq) const {
    const std::uint32_t first = step_.seq_first_row[seq];
    const std::uint32_t n = n_rows(seq);
    return n <= rules_.rows_max / 2 &&
           step_.positions[first + n - 1] == step_.positions[first] + n - 1;
  }
  [[nodiscard]] std::uint32_t n_rows(std::uint32_t seq) const {
    return step_.seq_first_row[seq + 1] - step_.seq_first_row[seq];
  }
  /// Orders sequences by their blocks.
  [[nodiscard]] bool comes_before(std::uint32_t a, std::uint32_t b) const {
    const std::uint32_t n = n_common_blocks(a, b);
    if (n == n_blocks(a) || n == n_blocks(b))
      return n_blocks(a) == n_blocks(b) ? a < b : n_blocks(a) < n_blocks(b);
    return table(a)[n] < table(b)[n];
  }
  /// Slots that both see in the same blocks, in whole blocks.
  [[nodiscard]] std::uint32_t n_common_slots(std::uint32_t a, std::uint32_t b) const {
    return is_eligible(a) && is_eligible(b) ? n_common_blocks(a, b) * rules_.block_tokens : 0;
  }

 private:
  [[nodiscard]] const std::uint32_t* table(std::uint32_t seq) const {
    return step_.block_tables + std::size_t{seq} * step_.block_table_stride;
  }
  [[nodiscard]] std::uint32_t n_blocks(std::uint32_t seq) const {
    const std::uint32_t last = step_.positions[step_.seq_first_row[seq + 1] - 1];
    return (last - prune_of(step_, seq).n_pruned) / rules_.block_tokens + 1;
  }
  [[nodiscard]] std::uint32_t n_common_blocks(std::uint32_t a, std::uint32_t b) const {
    const std::uint32_t n = std::min(n_blocks(a), n_blocks(b));
    const std::uint32_t* of_a = table(a);
    return static_cast<std::uint32_t>(std::mismatch(of_a, of_a + n, table(b)).first - of_a);
  }

  const luna_step& step_;
  const AttendOrderRules& rules_;
};

}  // namespace

void AttendOrder::reserve(std::uint32_t n_seqs_max) {
  order_.reserve(n_seqs_max);
  tasks_.reserve(n_seqs_max);
  group_ends_.reserve(n_seqs_max);
}

void AttendOrder::find(const luna_step& step, const AttendOrderRules& rules) {
  const Tables tables(step, rules);
  order_.resize(step.n_seqs);
  std::iota(order_.begin(), order_.end(), 0U);
  tasks_.clear();
  group_ends_.clear();
  has_shared_ = false;
  const std::uint64_t per_task = std::uint64_t{step.n_seqs} * rules.n_kv_heads /
                                 (std::uint64_t{kTasksPerThread} * rules.n_threads);
  const bool may_share = rules.rows_max > 1 && per_task > 1;
  if (may_share)
    std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return tables.comes_before(a, b);
    });
  // Slots that neighbours of the order have in common; the last has no right neighbour.
  const auto common_from = [&](std::uint32_t at) {
    return may_share && at + 1 < step.n_seqs ? tables.n_common_slots(order_[at], order_[at + 1])
                                             : 0;
  };
  std::uint32_t common = common_from(0);
  AttendTask task;
  std::uint32_t n_rows = tables.n_rows(order_[0]);
  for (std::uint32_t at = 1; at <= step.n_seqs; ++at) {
    const std::uint32_t next_common = at < step.n_seqs ? common_from(at) : 0;
    const std::uint32_t rows = at < step.n_seqs ? tables.n_rows(order_[at]) : 0;
    const std::uint32_t shared = task.is_alone() ? common : std::min(task.shared_slots, common);
    // A sequence stays out where its right neighbour, or what the task has already, shares more.
    const bool joins = shared >= kSharedSlotsMin && task.n_seqs < per_task &&
                       n_rows + rows <= rules.rows_max && next_common <= 2 * shared &&
                       task.shared_slots <= 2 * shared;
    if (joins) {
      ++task.n_seqs;
      task.shared_slots = shared;
      n_rows += rows;
      has_shared_ = true;
    } else {
      tasks_.push_back(task);
      task = AttendTask{at};
      n_rows = rows;
      if (common < kSharedSlotsMin)
        group_ends_.push_back(static_cast<std::uint32_t>(tasks_.size()));
    }
    common = next_common;
  }
}

}  // namespace luna::cpu
