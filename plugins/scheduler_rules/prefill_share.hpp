// How much of each prompt a step computes.
#pragma once

#include "plugins/scheduler_rules/group_rows.hpp"
#include "plugins/scheduler_rules/tenant_accounts.hpp"

#include <luna/step_cost.hpp>

#include <algorithm>
#include <cstddef>
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
/// of what it finds to those behind it, if one of them needs less than half as much; what they do
/// not use comes back to it. Prompts about as long go one after the other: in turns, none would
/// end sooner and most later. [step], owned by the policy.
///
/// A prompt that would end with a little more than there is ends, out of the slack: cut there, it
/// would bring its first token a whole step later for some last tokens.
class PrefillShare {
 public:
  /// What there is to spend, in the unit of `cost`.
  struct Budget {
    StepCost cost;
    double left = 0.0;
    double slack = 0.0;                   ///< beyond `left`, for last tokens of prompts
    bool shares = false;                  ///< long prompts leave half
    std::uint32_t n_min = 1;              ///< tokens of the first row, whatever they cost
    std::uint32_t n_seats = 0;            ///< waiting rows that may be let in
    std::uint32_t n_enough = UINT32_MAX;  ///< tokens: the prompt that reaches them is the last
  };

  /// Takes rows of the queue into the plan and charges their tenants.
  ///
  /// queue  the part of the group's that this step may compute
  void run(const GroupRows& group,
           std::span<const std::uint32_t> queue,
           Budget budget,
           TenantAccounts& accounts,
           Plan& out) {
    const Snapshot& rows = group.rows;
    long_rows_.reserve(out.n_reqs_max());
    long_rows_.clear();
    find_least_behind(rows, queue, out.n_reqs_max());
    const double whole = budget.left;
    std::uint32_t n_min = budget.n_min;
    std::uint32_t n_taken = 0;
    for (std::size_t place = 0; place < queue.size(); ++place) {
      const std::uint32_t i = queue[place];
      const Row row = rows[i];
      if (row.is_waiting() && budget.n_seats == 0) continue;
      const bool is_long = budget.shares && budget.cost.chunk_ns(row, row.n_wanted()) > whole;
      const bool leaves_half = is_long && least_behind_[place] < row.n_wanted() / 2;
      Share share{i, leaves_half ? budget.left / 2.0 : budget.left, std::exchange(n_min, 0)};
      if (is_long && !row.is_waiting()) {
        // Its turn comes when it is known what the others left.
        budget.left -= share.most;
        budget.slack = 0.0;  // used by others, it would cost this one some of its half
        long_rows_.push_back(share);
        continue;
      }
      const std::uint32_t n = take(group, share, budget, accounts, out);
      if (n == 0) n_min = std::max(n_min, share.n_min);
      if (row.is_waiting()) budget.n_seats = n > 0 ? budget.n_seats - 1 : 0;
      n_taken += n;
      if (n == row.n_wanted() && n_taken >= budget.n_enough && long_rows_.empty()) return;
    }
    for (Share& share : long_rows_) {
      budget.left += share.most;
      share.most = budget.left;
      take(group, share, budget, accounts, out);
    }
  }

 private:
  struct Share {
    std::uint32_t row;
    double most;          // of the budget
    std::uint32_t n_min;  // tokens
  };

  void find_least_behind(const Snapshot& rows,
                         std::span<const std::uint32_t> queue,
                         std::size_t n_reqs_max) {
    least_behind_.reserve(n_reqs_max);
    least_behind_.resize(queue.size());
    std::uint32_t least = UINT32_MAX;
    for (std::size_t place = queue.size(); place-- > 0;) {
      least_behind_[place] = least;
      least = std::min(least, rows[queue[place]].n_wanted());
    }
  }

  /// Returns the tokens taken; 0: the row does not fit, or nothing is left.
  static std::uint32_t take(const GroupRows& group,
                            const Share& share,
                            Budget& budget,
                            TenantAccounts& accounts,
                            Plan& out) {
    const Row row = group.rows[share.row];
    const bool ends = budget.cost.chunk_ns(row, row.n_wanted()) <= share.most + budget.slack;
    const std::uint32_t n_most =
        ends ? row.n_wanted()
             : budget.cost.n_tokens_within(share.most, row->n_computed, row.n_wanted());
    const std::uint32_t n_before = group.books.n_tokens_left;
    if (!out.take(share.row, std::max(n_most, share.n_min))) return 0;
    const std::uint32_t n = n_before - group.books.n_tokens_left;
    budget.left -= budget.cost.chunk_ns(row, n);
    budget.slack = std::max(budget.slack + std::min(budget.left, 0.0), 0.0);
    budget.left = std::max(budget.left, 0.0);
    accounts.charge(row, n);
    return n;
  }

  std::vector<Share> long_rows_;             // begun ones, in the order of the queue
  std::vector<std::uint32_t> least_behind_;  // by place in the queue: tokens of the shortest behind
};

}  // namespace luna::scheduling
