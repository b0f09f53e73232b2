// Who comes before whom: by seniority, and in the queue.
#pragma once

#include "plugins/scheduler_rules/seniority.hpp"
#include "plugins/scheduler_rules/tenant_accounts.hpp"

#include <luna/step_cost.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace luna::scheduler_static {

/// Three orders of a snapshot's rows. [step], owned by the policy.
///
/// All rows by seniority; of these the ones that hold KV; and the queue: rows that still have
/// prompt to compute. Among tenants the one that was served least goes first; within a tenant first
/// those whose deadline presses, the earliest first, then by seniority.
class RowOrder {
 public:
  explicit RowOrder(const scheduling::Seniority& seniority) : seniority_(seniority) {}

  /// Sorts all rows by seniority into out.order(), and fills the queue with what is not in the plan
  /// yet.
  ///
  /// accounts   none: tenants are not told apart
  void sort(const Snapshot& rows,
            const StepCost& cost,
            scheduling::TenantAccounts* accounts,
            Plan& out) {
    reserve(out.n_reqs_max());
    auto& order = out.order();
    order.clear();
    held_.clear();
    bool has_priorities = false;
    for (std::uint32_t i = 0; i < rows.n_rows(); ++i) {
      has_priorities |= rows[i]->priority != 0;
      order.push_back(i);
    }
    const auto goes_first = [&](std::uint32_t a, std::uint32_t b) {
      return seniority_.is_senior(rows[a], rows[b]);
    };
    // Without priorities they stand in order of arrival already, but for those that came at once.
    if (has_priorities || !std::is_sorted(order.begin(), order.end(), goes_first))
      std::sort(order.begin(), order.end(), goes_first);

    queue_.clear();
    bool has_pressing = false;
    for (const std::uint32_t i : order) {
      if (!rows[i].is_waiting()) held_.push_back(i);
      if (!rows[i].is_plannable() || rows[i].is_decoding() || out.is_planned(i)) continue;
      has_pressing |= scheduling::is_pressing(rows[i], rows->now_ns, cost);
      queue_.push_back(i);
    }
    if (has_pressing) put_pressing_first(rows, cost);
    if (accounts != nullptr && accounts->is_shared()) take_turns(rows, *accounts);
  }

  /// Rows that hold KV, the most senior first.
  [[nodiscard]] std::span<const std::uint32_t> held() const { return held_; }
  /// Rows with prompt to compute, in the order in which they are served.
  [[nodiscard]] std::span<const std::uint32_t> queue() const { return queue_; }

 private:
  void reserve(std::size_t n_reqs_max) {
    held_.reserve(n_reqs_max);
    queue_.reserve(n_reqs_max);
    turns_.reserve(n_reqs_max);
  }

  void put_pressing_first(const Snapshot& rows, const StepCost& cost) {
    turns_.clear();
    for (const std::uint32_t i : queue_) {
      const bool presses = scheduling::is_pressing(rows[i], rows->now_ns, cost);
      turns_.push_back({presses ? rows[i]->deadline_ns : UINT64_MAX,
                        static_cast<std::uint32_t>(turns_.size()),
                        i});
    }
    sort_queue_by_turns();
  }

  // Start-time fair queueing: a row's turn is what its tenant has been served and what the tenant's
  // rows before it will take.
  void take_turns(const Snapshot& rows, scheduling::TenantAccounts& accounts) {
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

  const scheduling::Seniority seniority_;
  std::vector<std::uint32_t> held_;
  std::vector<std::uint32_t> queue_;
  std::vector<Turn> turns_;
};

}  // namespace luna::scheduler_static
