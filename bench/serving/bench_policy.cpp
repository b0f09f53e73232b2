// What one plan costs: of the policy `static` by the number of rows and what they ask for, of
// `flowsplit` over a fleet of groups by what has changed since the plan before.
#include "bench/serving/fleet_load.hpp"
#include "plugins/scheduler_flowsplit/flow_policy.hpp"
#include "plugins/scheduler_static/static_policy.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <vector>

namespace {

using luna::scheduler_static::StaticPolicy;

struct Mix {
  const char* name;
  std::uint32_t n_tenants;
  std::uint32_t n_priorities;
  bool has_long_rows;
};

/// 64 rows decode, 8 are in their prompt, the others wait.
std::vector<luna_req_row> make_rows(std::uint32_t n, const Mix& mix) {
  std::vector<luna_req_row> rows(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    luna_req_row& row = rows[i];
    row.id = i + 1;
    row.arrival_ns = 1'000'000ULL * i;
    row.priority = static_cast<std::int32_t>(i * 7 % mix.n_priorities);
    row.tenant = 1 + i * 5 % mix.n_tenants;
    row.n_prompt = 200 + i % 100;
    row.n_generated_max = 64;
    row.state = i < 64 ? LUNA_REQ_DECODE : i < 72 ? LUNA_REQ_PREFILL : LUNA_REQ_WAITING;
    if (i < 64) row.n_computed = mix.has_long_rows && i % 8 == 0 ? 8000 : row.n_prompt + i % 64;
    row.n_kv_blocks = i < 72 ? row.n_computed / 32 + 1 : 0;
  }
  return rows;
}

/// Microseconds of a plan: median and 99th percentile.
void measure(std::uint32_t n_rows, const Mix& mix) {
  luna::SchedulerInstance<StaticPolicy> policy(std::make_unique<StaticPolicy>(
      luna::scheduler_static::StaticOptions{.target_itl_ms = 50,
                                            .ageing_ms = 1000,
                                            .max_queue_ms = 3'600'000,
                                            .fair_tenants = true,
                                            .adaptive_batch = true}));
  std::vector<luna_req_row> rows = make_rows(n_rows, mix);
  luna_device_row device{};
  device.n_kv_blocks_free = device.n_kv_blocks_total = 1U << 20U;
  device.step_ns_fixed = 3e6F;
  device.step_ns_per_row = 2e5F;
  device.step_ns_per_kv_token = 100.0F;
  std::vector<luna_action> actions(std::size_t{2} * n_rows);
  luna_snapshot snapshot{};
  snapshot.struct_size = sizeof(snapshot);
  snapshot.req_stride = sizeof(luna_req_row);
  snapshot.device_stride = sizeof(luna_device_row);
  snapshot.n_reqs = n_rows;
  snapshot.n_devices = 1;
  snapshot.n_rows_max = 512;
  snapshot.n_seqs_max = 80;
  snapshot.kv_block_tokens = 32;
  snapshot.reqs = rows.data();
  snapshot.devices = &device;
  std::vector<double> us;
  for (std::uint32_t step = 0; step < 2000; ++step) {
    snapshot.step = step;
    snapshot.now_ns = 2'000'000'000ULL + std::uint64_t{step} * 50'000'000U;
    luna_plan plan{};
    plan.struct_size = sizeof(plan);
    plan.n_actions_max = static_cast<std::uint32_t>(actions.size());
    plan.actions = actions.data();
    luna_err err = luna::make_err();
    const auto before = std::chrono::steady_clock::now();
    luna::SchedulerInstance<StaticPolicy>::plan(&policy, &snapshot, &plan, &err);
    const auto after = std::chrono::steady_clock::now();
    us.push_back(std::chrono::duration<double, std::micro>(after - before).count());
  }
  std::sort(us.begin(), us.end());
  std::printf("%6u rows, %-32s median %7.1f us, p99 %7.1f us\n",
              n_rows,
              mix.name,
              us[us.size() / 2],
              us[us.size() * 99 / 100]);
}

/// What this thread has used of a processor.
double thread_us() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

double percentile(std::vector<double> values, std::size_t percent) {
  std::sort(values.begin(), values.end());
  return values[values.size() * percent / 100];
}

/// Processor time of a plan, and of a plan by the row that changed since the one before.
void measure_fleet(const char* name, const luna::bench::FleetLoadOptions& load) {
  using luna::scheduler_flowsplit::FlowPolicy;
  luna::scheduler_flowsplit::FlowOptions options;
  options.target_itl_ms = 100;
  options.ageing_ms = 1000;
  options.max_queue_ms = 3'600'000;
  options.fair_tenants = true;
  options.adaptive_batch = true;
  luna::SchedulerInstance<FlowPolicy> policy(std::make_unique<FlowPolicy>(options));
  luna::bench::FleetLoad fleet(load);
  std::vector<double> us;
  std::vector<double> us_per_change;
  double n_changes = 0.0;
  constexpr int kWarmUp = 2000;
  constexpr int kPlans = 6000;
  for (int n = 0; n < kWarmUp + kPlans; ++n) {
    const luna_snapshot snapshot = fleet.next();
    const std::uint32_t n_changed = std::max(fleet.n_changed(), 1U);
    luna_plan plan = fleet.plan();
    luna_err err = luna::make_err();
    const double before = thread_us();
    luna::SchedulerInstance<FlowPolicy>::plan(&policy, &snapshot, &plan, &err);
    const double after = thread_us();
    fleet.apply(plan);
    if (n < kWarmUp) continue;
    us.push_back(after - before);
    us_per_change.push_back((after - before) / n_changed);
    n_changes += n_changed;
  }
  std::printf(
      "%6u rows, %3u devices, %-34s median %6.1f us, p99 %6.1f us; %5.1f rows changed, p99 %5.2f "
      "us "
      "a changed row\n",
      load.n_rows,
      load.n_groups * load.n_devices_per_group,
      name,
      percentile(us, 50),
      percentile(us, 99),
      n_changes / kPlans,
      percentile(us_per_change, 99));
}

}  // namespace

int main() {
  for (const std::uint32_t n_rows : {100U, 1000U, 10'000U}) {
    measure(n_rows, {"one tenant", 1, 1, false});
    measure(n_rows, {"priorities", 1, 5, false});
    measure(n_rows, {"20 tenants, priorities", 20, 5, false});
    measure(n_rows, {"20 tenants, priorities, long", 20, 5, true});
  }
  std::printf("flowsplit, processor time:\n");
  for (const std::uint32_t n_rows : {1000U, 10'000U}) {
    measure_fleet("64 groups", {.n_rows = n_rows});
    measure_fleet("16 groups", {.n_rows = n_rows, .n_groups = 16, .n_devices_per_group = 4});
    measure_fleet("64 groups, tenants, deadlines",
                  {.n_rows = n_rows, .n_tenants = 20, .n_priorities = 5, .has_deadlines = true});
    measure_fleet("one group of 64", {.n_rows = n_rows, .n_groups = 1, .n_devices_per_group = 64});
  }
}
