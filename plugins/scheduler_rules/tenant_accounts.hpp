// What each tenant has been served, so that the one that was served least comes next.
#pragma once

#include <luna/scheduler.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace luna::scheduling {

/// A virtual token counter a tenant. A tenant that comes back after a pause starts at the least of
/// those that stayed: a pause saves nothing up. [step], owned by the policy.
///
/// Source  Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, algorithm 2; the
///         weight of an output token too
class TenantAccounts {
 public:
  TenantAccounts() : served_(kAccounts), reserved_(kAccounts), last_plan_(kAccounts) {
    present_.reserve(kAccounts);
  }

  /// Notes who has rows. Call once a plan, first.
  void begin(const Snapshot& rows) {
    begin();
    for (std::uint32_t i = 0; i < rows.n_rows(); ++i)
      note(account_of(rows[i]->tenant));
    settle();
  }
  /// The same in parts, for who knows which tenants have rows: begin(), note() once or more for the
  /// account of each, settle().
  void begin() {
    ++n_plans_;
    present_.clear();
  }
  void note(std::uint32_t account) {
    if (last_plan_[account] == n_plans_) return;
    if (last_plan_[account] + 1 != n_plans_)
      served_[account] = std::max(served_[account], least_served_);
    last_plan_[account] = n_plans_;
    present_.push_back(account);
  }
  void settle() {
    if (present_.empty()) return;
    std::uint64_t least = UINT64_MAX;
    for (const std::uint32_t account : present_) {
      reserved_[account] = served_[account];
      least = std::min(least, served_[account]);
    }
    least_served_ = std::max(least_served_, least);
  }

  /// More than one tenant has rows.
  [[nodiscard]] bool is_shared() const { return present_.size() > 1; }
  /// When a row's turn comes: what its tenant has been served, and what the tenant's rows that
  /// asked before in this plan will take. The next of the tenant stands n_tokens behind.
  std::uint64_t reserve(Row row, std::uint32_t n_tokens) {
    std::uint64_t& reserved = reserved_[account_of(row->tenant)];
    return std::exchange(reserved, reserved + n_tokens);
  }
  /// Row `row` runs n_tokens in this step.
  void charge(Row row, std::uint32_t n_tokens) {
    const std::uint64_t extra = row.is_decoding() ? kOutputWeight - 1 : 0;  // drafts are no output
    served_[account_of(row->tenant)] += n_tokens + extra;
  }

  /// Tenants whose numbers differ by a multiple of it share an account: memory is bounded.
  static constexpr std::uint32_t kAccounts = 1024;
  static std::uint32_t account_of(std::uint32_t tenant) { return tenant % kAccounts; }
  /// What an account has been served: weighted tokens.
  [[nodiscard]] std::uint64_t served(std::uint32_t account) const { return served_[account]; }

 private:
  // An output token takes a step of its own, a prompt's tokens come by the hundred.
  static constexpr std::uint64_t kOutputWeight = 2;
  std::uint64_t n_plans_ = 0;
  std::uint64_t least_served_ = 0;        // never falls
  std::vector<std::uint64_t> served_;     // by account: weighted tokens
  std::vector<std::uint64_t> reserved_;   // by account: served, and queued so far in this plan
  std::vector<std::uint64_t> last_plan_;  // by account: when it last had rows; 0: never
  std::vector<std::uint32_t> present_;    // accounts with rows in this plan
};

}  // namespace luna::scheduling
