// Who comes before whom: by seniority, and in the queue.
#pragma once

#include "plugins/scheduler_static/tenant_accounts.hpp"

#include <luna/step_cost.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace luna::scheduler_static {

/// Two orders of a snapshot's rows. [step], owned by the policy.
///
/// Seniority: by arrival, where each level of priority counts as `ageing_ms` of waiting. It does
/// not change while rows wait, so whoever waits long enough is senior to all that come later. With
/// ageing_ms 0 a higher priority always goes first.
///
/// The queue: rows that still have prompt to compute. Among tenants the one that was served least
/// goes first; within a tenant first those whose deadline presses, the earliest first, then by
/// seniority. A deadline presses once half of the slack that it left at arrival has gone.
class RowOrder {
 public:
  explicit RowOrder(std::int64_t ageing_ns) : ageing_ns_(ageing_ns) {}

  /// Sorts out.order() by seniority, and fills the queue with what is not in the plan yet.
  ///
  /// accounts   none: tenants are not told apart
  void sort(const Snapshot& rows, const StepCost& cost, TenantAccounts* accounts, Plan& out) {
    reserve(out.n_reqs_max());
    auto& seniority = out.order();
    ranks_.clear();
    bool has_priorities = false;
    for (std::uint32_t i = 0; i < rows.n_rows(); ++i)
      has_priorities |= rows[i]->priority != 0;
    for (std::uint32_t i = 0; i < rows.n_rows(); ++i)
      ranks_.push_back(has_priorities ? rank(rows[i]) : 0);
    const auto goes_first = [this](std::uint32_t a, std::uint32_t b) { return is_senior(a, b); };
    if (has_priorities) std::sort(seniority.begin(), seniority.end(), goes_first);

    queue_.clear();
    bool has_pressing = false;
    for (const std::uint32_t i : seniority) {
      if (rows[i].is_decoding() || out.is_planned(i)) continue;
      has_pressing |= is_pressing(rows, i, cost);
      queue_.push_back(i);
    }
    if (has_pressing) put_pressing_first(rows, cost);
    if (accounts != nullptr && accounts->is_shared()) take_turns(rows, *accounts);
  }

  /// Of two rows, also of those in a step.
  [[nodiscard]] bool is_senior(std::uint32_t a, std::uint32_t b) const {
    return ranks_[a] != ranks_[b] ? ranks_[a] < ranks_[b] : a < b;
  }
  /// Rows with prompt to compute, in the order in which they are served.
  [[nodiscard]] std::span<const std::uint32_t> queue() const { return queue_; }

 private:
  void reserve(std::size_t n_reqs_max) {
    ranks_.reserve(n_reqs_max);
    queue_.reserve(n_reqs_max);
    turns_.reserve(n_reqs_max);
  }

  [[nodiscard]] std::int64_t rank(Row row) const {
    if (ageing_ns_ == 0) return -std::int64_t{row->priority};
    return static_cast<std::int64_t>(row->arrival_ns) - row->priority * ageing_ns_;
  }

  static bool is_pressing(const Snapshot& rows, std::uint32_t i, const StepCost& cost) {
    const Row row = rows[i];
    if (row->deadline_ns == 0) return false;
    const double waited = static_cast<double>(rows->now_ns) - static_cast<double>(row->arrival_ns);
    const double left = static_cast<double>(row->deadline_ns) - static_cast<double>(rows->now_ns) -
                        cost.chunk_ns(row, row.n_wanted());
    return waited >= left;
  }

  void put_pressing_first(const Snapshot& rows, const StepCost& cost) {
    turns_.clear();
    for (const std::uint32_t i : queue_) {
      const bool presses = is_pressing(rows, i, cost);
      turns_.push_back({presses ? rows[i]->deadline_ns : UINT64_MAX,
                        static_cast<std::uint32_t>(turns_.size()),
                        i});
    }
    sort_queue_by_turns();
  }

  // Start-time fair queueing: a row's turn is what its tenant has been served and what the tenant's
  // rows before it will take.
  void take_turns(const Snapshot& rows, TenantAccounts& accounts) {
    turns_.clear();
    for (std::uint32_t place = 0; place < queue_.size(); ++place) {
      const Row row = rows[queue_[place]];
      turns_.push_back({accounts.reserve(row, row.n_wanted()), place, queue_[place]});
    }
    sort_queue_by_turns();
  }

  struct Turn {
    std::uint64_t key;
    std::uint32_t place;  // in the queue so far: decides between equals
    std::uint32_t row;
  };
  static bool comes_first(const Turn& a, const Turn& b) {
    return a.key != b.key ? a.key < b.key : a.place < b.place;
  }
  void sort_queue_by_turns() {
    std::sort(turns_.begin(), turns_.end(), comes_first);
    for (std::size_t i = 0; i < turns_.size(); ++i)
      queue_[i] = turns_[i].row;
  }

  const std::int64_t ageing_ns_;
  std::vector<std::int64_t> ranks_;  // by row: least is most senior
  std::vector<std::uint32_t> queue_;
  std::vector<Turn> turns_;
};

}  // namespace luna::scheduler_static
