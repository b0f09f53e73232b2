// `max_queue_ms` over queues that are kept from plan to plan.
#pragma once

#include "plugins/scheduler_flowsplit/fleet.hpp"
#include "plugins/scheduler_flowsplit/row_book.hpp"
#include "plugins/scheduler_flowsplit/turn_queue.hpp"
#include "plugins/scheduler_rules/queue_limit.hpp"
#include "plugins/scheduler_rules/tenant_accounts.hpp"

#include <luna/scheduler.hpp>
#include <luna/step_cost.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace luna::scheduler_flowsplit {

/// Refuses who waits too long or will: of some tenants in each plan the first and the last of their
/// queues, rather than every row that waits. [step], owned by the policy.
class QueueEnds {
 public:
  /// What is looked at, and the plan that grows.
  struct Scene {
    const Snapshot& rows;
    Fleet& fleet;
    const RowBook& book;
    const scheduling::TenantAccounts& accounts;
    Plan& out;
  };

  explicit QueueEnds(double max_queue_ns) : limit_(max_queue_ns) {}

  void begin(std::uint64_t now_ns) { limit_.begin(now_ns); }
  /// Who was let in by this plan.
  void note_let_in(const Snapshot& rows, std::span<const std::uint32_t> queue, const Plan& out) {
    limit_.note_let_in(rows, queue, out);
  }
  /// After all steps were planned.
  void end(const Scene& scene) {
    const std::uint64_t n_waiting = scene.book.n_waiting();
    const auto accounts = scene.book.accounts();
    if (limit_.is_on() && n_waiting > 0)
      for (std::size_t n = 0; n < std::min<std::size_t>(accounts.size(), kLimitedMax); ++n)
        limit_account(scene, accounts[next_++ % accounts.size()]);
    limit_.end(n_waiting > 0);
  }

 private:
  // Tenants, and places at either end of their queues, that are looked at in one plan.
  static constexpr std::uint32_t kLimitedMax = 16;

  void limit_account(const Scene& scene, std::uint32_t account) const {
    for (const GroupState& group : scene.fleet.groups())
      limit_home(scene, account, scene.fleet.memory_of(group).home);
    limit_home(scene, account, scene.fleet.nowhere());
  }

  void limit_home(const Scene& scene, std::uint32_t account, const Home& home) const {
    if (home.n_waiting == 0) return;
    const TurnQueue& queue = home.queue;
    const QueueKey first{account, 0, INT64_MIN, 0};
    const QueueKey behind{account + 1, 0, INT64_MIN, 0};
    double n_before = n_tokens_before(scene, account);
    auto place = queue.lower_bound(behind);
    for (std::uint32_t n = 0; n < kLimitedMax && place != queue.begin(); ++n) {
      --place;
      if (*place < first) break;
      const std::uint32_t i = scene.book.index_of(place->id);
      n_before = std::max(n_before - scene.rows[i].n_wanted(), 0.0);
      if (!refuse(scene, i, n_before)) break;
    }
    place = queue.lower_bound(first);
    for (std::uint32_t n = 0; n < kLimitedMax && place != queue.end() && *place < behind; ++n) {
      if (!refuse(scene, scene.book.index_of(place->id), 0.0)) break;
      ++place;
    }
  }

  [[nodiscard]] bool refuse(const Scene& scene, std::uint32_t i, double n_before) const {
    const Row row = scene.rows[i];
    if (!row.is_waiting() || scene.out.is_planned(i) || scene.out.is_assigned(i)) return false;
    const StepCost& cost = scene.fleet.cost_of(row->device);
    const double least_ns = n_before * cost.row_ns / scene.rows.n_steps_in_flight_max();
    return limit_.refuse(i, row, limit_.wait_ns(n_before, least_ns), scene.out);
  }

  // Tokens of prompts that are served before the last of an account is: its own, and of the others
  // as many as bring them level.
  [[nodiscard]] static double n_tokens_before(const Scene& scene, std::uint32_t account) {
    const double own = static_cast<double>(scene.book.n_tokens_of(account));
    const double level = static_cast<double>(scene.accounts.served(account)) + own;
    double n = own;
    for (const std::uint32_t other : scene.book.accounts()) {
      if (other == account) continue;
      const double until_level = level - static_cast<double>(scene.accounts.served(other));
      n += std::clamp(until_level, 0.0, static_cast<double>(scene.book.n_tokens_of(other)));
    }
    return n;
  }

  scheduling::QueueLimit limit_;
  std::size_t next_ = 0;
};

}  // namespace luna::scheduler_flowsplit
