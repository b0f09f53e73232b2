// What one plan of the policy `static` costs, by the number of rows and what they ask for.
#include "plugins/scheduler_static/static_policy.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
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

}  // namespace

int main() {
  for (const std::uint32_t n_rows : {100U, 1000U, 10'000U}) {
    measure(n_rows, {"one tenant", 1, 1, false});
    measure(n_rows, {"priorities", 1, 5, false});
    measure(n_rows, {"20 tenants, priorities", 20, 5, false});
    measure(n_rows, {"20 tenants, priorities, long", 20, 5, true});
  }
}
