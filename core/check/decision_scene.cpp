#include "core/check/decision_scene.hpp"

#include "core/check/workload.hpp"

#include <algorithm>

namespace luna::check {
namespace {

constexpr std::uint32_t kDecoding = 64;
constexpr std::uint32_t kBlockTokens = 32;
constexpr std::uint64_t kNowNs = 100'000'000'000;
constexpr std::uint64_t kStepNs = 10'000'000;

}  // namespace

DecisionScene::DecisionScene(std::uint32_t n_rows, std::uint64_t seed)
    : rows_(n_rows), actions_(std::size_t{2} * n_rows + 64) {
  Workload random(seed);
  std::uint32_t n_blocks = 0;
  for (std::uint32_t i = 0; i < n_rows; ++i) {
    luna_req_row& row = rows_[i];
    row.id = i + 1;
    row.arrival_ns = kNowNs - kStepNs * (n_rows - i) / 10;
    row.priority = static_cast<std::int32_t>(random.below(3));
    row.tenant = random.below(20);
    if (random.below(4) == 0) row.deadline_ns = kNowNs + kStepNs * random.below(1000);
    row.n_prompt = 20 + random.below(800);
    row.n_generated_max = 20 + random.below(200);
    row.moving_to = LUNA_NO_DEVICE;
    if (i > kDecoding) continue;
    const bool decodes = i < kDecoding;
    row.state = decodes ? LUNA_REQ_DECODE : LUNA_REQ_PREFILL;
    row.n_generated = decodes ? 1 : 0;
    row.n_computed = decodes ? row.n_prompt : row.n_prompt / 2;
    row.n_kv_blocks = row.n_kv_blocks_freed = row.n_computed / kBlockTokens + 1;
    n_blocks += row.n_kv_blocks;
  }
  device_.n_kv_blocks_total = n_blocks + 4096;
  device_.n_kv_blocks_free = 4096;
  device_.n_steps_in_flight_max = 1;
  device_.n_running = kDecoding + 1;
  device_.n_queued = n_rows - kDecoding - 1;
  device_.step_ns_fixed = 3e6F;
  device_.step_ns_per_row = 1e5F;
  device_.step_ns_per_kv_token = 50.0F;
}

std::vector<double> DecisionScene::time_plans(PolicyProbe& probe, std::uint32_t n_plans) {
  luna_snapshot s{};
  s.struct_size = sizeof(s);
  s.req_stride = sizeof(luna_req_row);
  s.device_stride = sizeof(luna_device_row);
  s.link_stride = sizeof(luna_link_row);
  s.slice_stride = sizeof(luna_slice_row);
  s.prefix_stride = sizeof(luna_prefix_row);
  s.n_reqs = static_cast<std::uint32_t>(rows_.size());
  s.n_devices = 1;
  s.n_rows_max = 512;
  s.n_seqs_max = 128;
  s.kv_block_tokens = kBlockTokens;
  s.n_steps_in_flight_max = 1;
  s.verbs = 1U << LUNA_VERB_RUN | 1U << LUNA_VERB_ASSIGN | 1U << LUNA_VERB_PREEMPT |
            1U << LUNA_VERB_REJECT;
  s.reqs = rows_.data();
  s.devices = &device_;
  std::vector<double> us;
  for (std::uint32_t n = 0; n < n_plans; ++n) {
    s.step = n;
    s.now_ns = kNowNs + kStepNs * n;
    luna_plan plan{};
    plan.struct_size = sizeof(plan);
    plan.n_actions_max = static_cast<std::uint32_t>(actions_.size());
    plan.actions = actions_.data();
    luna_err err = make_err();
    if (probe.plan(s, plan, err) < 0) return {};
    us.push_back(probe.plan_us());
  }
  std::ranges::sort(us);
  return us;
}

}  // namespace luna::check
