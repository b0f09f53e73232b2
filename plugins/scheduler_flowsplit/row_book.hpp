// What the policy remembers of each row, so that a plan costs what has changed since the last.
#pragma once

#include "plugins/scheduler_flowsplit/fleet.hpp"
#include "plugins/scheduler_flowsplit/turn_queue.hpp"
#include "plugins/scheduler_rules/queue_limit.hpp"
#include "plugins/scheduler_rules/seniority.hpp"
#include "plugins/scheduler_rules/tenant_accounts.hpp"

#include <luna/scheduler.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace luna::scheduler_flowsplit {

/// Rows are recognised by their id, which ascends over the table. Each plan reads the table once,
/// in its order, and compares what it says with what it said before: no more is done for a row that
/// is as it was. A row that came, went or changed leaves the queue, the list and the sums of its
/// home and enters those where it is now. [step], owned by the policy.
class RowBook {
 public:
  struct Options {
    scheduling::Seniority seniority{0};
    bool fair_tenants = false;
  };
  explicit RowBook(const Options& options) : options_(options) {
    accounts_.resize(scheduling::TenantAccounts::kAccounts);
    present_.reserve(scheduling::TenantAccounts::kAccounts);
  }

  /// Room for so many rows.
  void reserve(std::size_t n_rows) {
    for (std::vector<std::uint64_t>* ids : {&ids_, &rest_ids_})
      ids->reserve(n_rows);
    for (std::vector<Known>* known : {&known_, &rest_})
      known->reserve(n_rows);
    late_.reserve(n_rows);
  }

  /// Reads the table. The fleet has been read before.
  void read(const Snapshot& rows, Fleet& fleet) {
    rows_ = &rows;
    fleet_ = &fleet;
    n_arrived_ = 0;
    late_.clear();
    const std::size_t n = rows.n_rows();
    const std::size_t n_common = std::min(n, ids_.size());
    std::size_t i = 0;
    while (i < n_common && ids_[i] == rows[static_cast<std::uint32_t>(i)]->id) {
      update(static_cast<std::uint32_t>(i), known_[i]);
      ++i;
    }
    if (i < n || i < ids_.size()) merge(i);
  }

  /// Rows that came since the plan before.
  [[nodiscard]] std::uint32_t n_arrived() const { return n_arrived_; }
  /// Rows whose prompt can no longer be computed before their deadline.
  [[nodiscard]] std::span<const std::uint32_t> late() const { return late_; }
  /// Rows without KV, of all homes.
  [[nodiscard]] std::uint64_t n_waiting() const { return n_waiting_; }
  /// Tokens of prompts that an account's rows wait for.
  [[nodiscard]] std::uint64_t n_tokens_of(std::uint32_t account) const {
    return accounts_[account].n_tokens;
  }
  /// Accounts that have rows.
  [[nodiscard]] std::span<const std::uint32_t> accounts() const { return present_; }
  /// Where a row stands in this snapshot.
  [[nodiscard]] std::uint32_t index_of(std::uint64_t id) const {
    return static_cast<std::uint32_t>(std::lower_bound(ids_.begin(), ids_.end(), id) -
                                      ids_.begin());
  }

 private:
  /// A row as it was shown last.
  struct Known {
    std::uint32_t state = LUNA_REQ_WAITING;
    std::uint32_t device = LUNA_NO_DEVICE;
    std::uint32_t n_prompt = 0;
    std::uint32_t n_computed = 0;
    std::uint32_t n_generated = 0;
    std::uint32_t n_steps = 0;
    std::uint32_t n_left = 0;  // tokens of prompt
    std::uint32_t n_output = 0;
    std::int64_t rank = 0;
    std::int64_t order = 0;  // in the queue
    std::uint32_t account = 0;
    bool is_queued = false;
    bool is_pressing = false;
    bool is_wide = false;
    std::uint64_t watch_at_ns = UINT64_MAX;  // its deadline, if it has one
  };

  // A deadline is not seen more finely.
  static constexpr std::uint64_t kWatchNs = 1'000'000;

  struct Account {
    std::uint32_t n_rows = 0;
    std::uint64_t n_tokens = 0;  // of prompts that wait
  };

  [[nodiscard]] static bool is_as_before(const luna_req_row& row, const Known& known) {
    return row.n_computed == known.n_computed && row.n_steps == known.n_steps &&
           row.state == known.state && row.n_generated == known.n_generated &&
           row.n_prompt == known.n_prompt && row.device == known.device;
  }

  void update(std::uint32_t i, Known& known) {
    const Row row = (*rows_)[i];
    if ((*rows_)->now_ns >= known.watch_at_ns) watch_deadline(i, row, known);
    if (is_as_before(*row.operator->(), known)) return;
    if (row.is_decoding() && known.state == LUNA_REQ_DECODE && row->device == known.device)
      return count_token(row, known);
    leave(row->id, known);
    enter(row, known);
  }

  // What happens most: a decoding row is in a step, or has ended it.
  void count_token(Row row, Known& known) {
    Home& home = fleet_->home_of(known.device);
    const std::uint32_t n_output = row->n_generated_max - row->n_generated;
    home.n_kv_tokens += row->n_computed - std::uint64_t{known.n_computed};
    home.n_output_tokens += n_output - std::uint64_t{known.n_output};
    known.n_computed = row->n_computed;
    known.n_generated = row->n_generated;
    known.n_prompt = row->n_prompt;
    known.n_steps = row->n_steps;
    known.n_output = n_output;
  }

  // It is looked at again when half of the time has gone until something could come of it: costs
  // change, but slowly.
  void watch_deadline(std::uint32_t i, Row row, Known& known) {
    const std::uint64_t now_ns = (*rows_)->now_ns;
    known.watch_at_ns = now_ns + kWatchNs;
    if (row.is_decoding()) return;
    const StepCost& cost = fleet_->cost_of(row->device);
    if (scheduling::QueueLimit::is_too_late(row, now_ns, cost)) {
      late_.push_back(i);
    } else {
      const double left = static_cast<double>(row->deadline_ns) - static_cast<double>(now_ns) -
                          cost.fixed_ns - cost.chunk_ns(row, row.n_wanted());
      const double waited = static_cast<double>(now_ns) - static_cast<double>(row->arrival_ns);
      const double until = known.is_pressing ? left : (left - waited) / 2.0;
      known.watch_at_ns += static_cast<std::uint64_t>(std::max(until, 0.0) / 2.0);
    }
    if (known.is_pressing || !scheduling::is_pressing(row, now_ns, cost)) return;
    leave(row->id, known);
    known.is_pressing = true;
    enter(row, known);
  }

  // From row `first` on the table has other rows than before.
  void merge(std::size_t first) {
    const Snapshot& rows = *rows_;
    rest_ids_.clear();
    rest_.clear();
    std::size_t before = first;
    for (std::uint32_t i = static_cast<std::uint32_t>(first); i < rows.n_rows(); ++i) {
      const Row row = rows[i];
      while (before < ids_.size() && ids_[before] < row->id)
        forget(before++);
      rest_ids_.push_back(row->id);
      if (before < ids_.size() && ids_[before] == row->id) {
        rest_.push_back(known_[before++]);
        update(i, rest_.back());
      } else {
        rest_.push_back(meet(row));
        if (row->deadline_ns != 0) watch_deadline(i, row, rest_.back());
      }
    }
    while (before < ids_.size())
      forget(before++);
    ids_.resize(first);
    ids_.insert(ids_.end(), rest_ids_.begin(), rest_ids_.end());
    known_.resize(first);
    known_.insert(known_.end(), rest_.begin(), rest_.end());
  }

  Known meet(Row row) {
    ++n_arrived_;
    Known known;
    known.rank = options_.seniority.rank(row);
    known.account = options_.fair_tenants ? scheduling::TenantAccounts::account_of(row->tenant) : 0;
    if (accounts_[known.account].n_rows++ == 0) present_.push_back(known.account);
    enter(row, known);
    return known;
  }

  void forget(std::size_t i) {
    const Known& known = known_[i];
    leave(ids_[i], known);
    if (--accounts_[known.account].n_rows > 0) return;
    *std::find(present_.begin(), present_.end(), known.account) = present_.back();
    present_.pop_back();
  }

  void enter(Row row, Known& known) {
    known.state = row->state;
    known.device = row->device;
    known.n_prompt = row->n_prompt;
    known.n_computed = row->n_computed;
    known.n_generated = row->n_generated;
    known.n_steps = row->n_steps;
    known.n_left = row.is_decoding() ? 0 : row.n_wanted();
    known.n_output = row->n_generated_max - row->n_generated;
    known.is_queued = !row.is_decoding() && row.is_plannable();
    known.order = known.is_pressing ? static_cast<std::int64_t>(row->deadline_ns) : known.rank;
    Home& home = fleet_->home_of(known.device);
    known.is_wide = is_wide(row, home);
    if (known.is_wide) add(HeldRow{known.rank, row->id}, home.wide);
    home.n_prompt_tokens += known.n_left;
    if (known.is_queued) home.queue.insert(key_of(row->id, known));
    if (row.is_waiting()) {
      ++home.n_waiting;
      home.n_waiting_tokens += known.is_wide ? 0 : known.n_prompt;
      ++n_waiting_;
      accounts_[known.account].n_tokens += known.n_left;
      return;
    }
    if (row.is_decoding()) ++home.n_decoding;
    home.n_kv_tokens += known.n_computed;
    home.n_output_tokens += known.n_output;
    add(HeldRow{known.rank, row->id}, home.held);
  }

  void leave(std::uint64_t id, const Known& known) {
    Home& home = fleet_->home_of(known.device);
    if (known.is_wide) remove(HeldRow{known.rank, id}, home.wide);
    home.n_prompt_tokens -= known.n_left;
    if (known.is_queued) home.queue.erase(key_of(id, known));
    if (known.state == LUNA_REQ_WAITING) {
      --home.n_waiting;
      home.n_waiting_tokens -= known.is_wide ? 0 : known.n_prompt;
      --n_waiting_;
      accounts_[known.account].n_tokens -= known.n_left;
      return;
    }
    if (known.state == LUNA_REQ_DECODE) --home.n_decoding;
    home.n_kv_tokens -= known.n_computed;
    home.n_output_tokens -= known.n_output;
    remove(HeldRow{known.rank, id}, home.held);
  }

  // It does not change while the row stays in its home.
  [[nodiscard]] bool is_wide(Row row, const Home& home) const {
    const std::uint32_t block_tokens = (*rows_)->kv_block_tokens;
    return home.n_blocks_total != 0 &&
           row.n_tokens_max() > std::uint64_t{home.n_blocks_total} * block_tokens;
  }
  static void add(const HeldRow& row, std::vector<HeldRow>& rows) {
    rows.insert(std::upper_bound(rows.begin(), rows.end(), row), row);
  }
  static void remove(const HeldRow& row, std::vector<HeldRow>& rows) {
    rows.erase(std::lower_bound(rows.begin(), rows.end(), row));
  }

  static QueueKey key_of(std::uint64_t id, const Known& known) {
    return {known.account, known.is_pressing ? 0U : 1U, known.order, id};
  }

  const Options options_;
  const Snapshot* rows_ = nullptr;  // during plan()
  Fleet* fleet_ = nullptr;          // likewise
  std::vector<std::uint64_t> ids_;  // in the order of the table
  std::vector<Known> known_;        // likewise
  std::vector<std::uint64_t> rest_ids_;
  std::vector<Known> rest_;
  std::vector<Account> accounts_;
  std::uint64_t n_waiting_ = 0;
  std::vector<std::uint32_t> present_;  // accounts
  std::vector<std::uint32_t> late_;     // rows
  std::uint32_t n_arrived_ = 0;
};

}  // namespace luna::scheduler_flowsplit
