// First come, first served, decode first, within a target for the gaps between tokens.
#pragma once

#include "plugins/scheduler_rules/group_step.hpp"
#include "plugins/scheduler_rules/queue_limit.hpp"
#include "plugins/scheduler_static/row_order.hpp"

#include <luna/scheduler.hpp>
#include <luna/step_cost.hpp>

#include <cstdint>

namespace luna::scheduler_static {

/// The policy's settings; plugin.cpp declares them. A zero switches a rule off.
struct StaticOptions {
  std::int64_t target_itl_ms = 0;
  std::int64_t ageing_ms = 0;
  std::int64_t max_queue_ms = 0;
  bool fair_tenants = false;
  bool adaptive_batch = false;

  static StaticOptions of(const Settings& settings) {
    return {settings.integer("target_itl_ms"),
            settings.integer("ageing_ms"),
            settings.integer("max_queue_ms"),
            settings.flag("fair_tenants"),
            settings.flag("adaptive_batch")};
  }
};

/// Every step as GroupStep makes it, the queue in the order of RowOrder.
///
/// Where several groups of devices hold the model, a router gives each waiting row to one of them,
/// and each group is planned by itself: queues, tenants and turns are its own. [step]
class StaticPolicy final : public Scheduler {
 public:
  explicit StaticPolicy(const StaticOptions& options)
      : options_(options),
        order_(scheduling::Seniority(options.ageing_ms * kNsPerMs)),
        step_({options.target_itl_ms, options.adaptive_batch},
              scheduling::Seniority(options.ageing_ms * kNsPerMs)),
        limit_(static_cast<double>(options.max_queue_ms) * kNsPerMs) {}
  explicit StaticPolicy(const Settings& settings) : StaticPolicy(StaticOptions::of(settings)) {}

  static GroupRouter router(const Settings& settings) {
    return {settings.text("router"), static_cast<double>(settings.integer("sticky_lead_tokens"))};
  }

  void plan(const Snapshot& rows, Plan& out) override {
    const StepCost cost = rows.n_devices() > 0 ? StepCost::of(rows.device(0)) : StepCost{};
    accounts_.begin(rows);
    limit_.begin(rows->now_ns);
    scheduling::QueueLimit::reject_late(rows, cost, out);
    order_.sort(rows, cost, options_.fair_tenants ? &accounts_ : nullptr, out);
    step_.plan({.rows = rows,
                .books = out.groups().front(),
                .cost = cost,
                .n_steps_in_flight = rows->n_steps_in_flight,
                .n_steps_max = rows.n_steps_in_flight_max(),
                .held = order_.held(),
                .queue = order_.queue(),
                .turns = turns_},
               accounts_,
               out);
    limit_.settle(rows, order_.queue(), cost, out);
  }

 private:
  static constexpr std::int64_t kNsPerMs = 1'000'000;

  const StaticOptions options_;
  scheduling::TenantAccounts accounts_;
  RowOrder order_;
  scheduling::TurnCredit turns_;
  scheduling::GroupStep step_;
  scheduling::QueueLimit limit_;
};

}  // namespace luna::scheduler_static
