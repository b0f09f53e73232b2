// How much of each prompt a step computes.
#pragma once

#include "plugins/scheduler_rules/tenant_accounts.hpp"

#include <luna/step_cost.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace luna::scheduling {

/// Divides what a step can spend on prompts among the rows of the queue, in its order. A row that
/// was begun goes on; a new one is let in while its prompt and one block fit, and none is passed
/// over: the first that does not fit holds back those behind it.
///
/// With `shares`, a long prompt, one that would need more than the step has to spend, leaves half
/// of what it finds to those behind it; what they do not use comes back to it. [step], owned by the
/// policy.
class PrefillShare {
 public:
  /// What there is to spend, in the unit of `cost`.
  struct Budget {
    StepCost cost;
    double left = 0.0;
    bool shares = false;        ///< long prompts leave half
    std::uint32_t n_min = 1;    ///< tokens of the first row, whatever they cost
    std::uint32_t n_seats = 0;  ///< waiting rows that may be let in
  };

  /// Takes rows of the queue into the plan and charges their tenants.
  void run(const Snapshot& rows,
           std::span<const std::uint32_t> queue,
           Budget budget,
           TenantAccounts& accounts,
           Plan& out) {
    long_rows_.reserve(out.n_reqs_max());
    long_rows_.clear();
    const double whole = budget.left;
    std::uint32_t n_min = budget.n_min;
    for (const std::uint32_t i : queue) {
      const Row row = rows[i];
      if (row.is_waiting() && budget.n_seats == 0) continue;
      const bool is_long = budget.shares && budget.cost.chunk_ns(row, row.n_wanted()) > whole;
      const bool leaves_half = is_long && i != queue.back();
      Share share{i, leaves_half ? budget.left / 2.0 : budget.left, std::exchange(n_min, 0)};
      if (is_long && !row.is_waiting()) {
        // Its turn comes when it is known what the others left.
        budget.left -= share.most;
        long_rows_.push_back(share);
        continue;
      }
      const bool ran = take(row, share, budget, accounts, out);
      if (!ran) n_min = std::max(n_min, share.n_min);
      if (row.is_waiting()) budget.n_seats = ran ? budget.n_seats - 1 : 0;
    }
    for (Share& share : long_rows_) {
      budget.left += share.most;
      share.most = budget.left;
      take(rows[share.row], share, budget, accounts, out);
    }
  }

 private:
  struct Share {
    std::uint32_t row;
    double most;          // of the budget
    std::uint32_t n_min;  // tokens
  };

  static bool take(
      Row row, const Share& share, Budget& budget, TenantAccounts& accounts, Plan& out) {
    const std::uint32_t n_most =
        budget.cost.n_tokens_within(share.most, row->n_computed, row.n_wanted());
    const std::uint32_t n_before = out.n_tokens_left();
    if (!out.take(share.row, std::max(n_most, share.n_min))) return false;
    const std::uint32_t n = n_before - out.n_tokens_left();
    budget.left = std::max(budget.left - budget.cost.chunk_ns(row, n), 0.0);
    accounts.charge(row, n);
    return true;
  }

  std::vector<Share> long_rows_;  // begun ones, in the order of the queue
};

}  // namespace luna::scheduling
