// The border to the scheduler plugin: shows it the engine's tables, and lets no illegal answer in.
#pragma once

#include "core/engine/plan_record.hpp"
#include "core/engine/sequence.hpp"
#include "core/engine/step_cost.hpp"
#include "core/engine/step_plan.hpp"
#include "core/model/compiled_model.hpp"
#include "core/plugin/instance.hpp"

#include <luna/abi/scheduler.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace luna::engine {

/// Why a plan was refused.
enum class PlanFault : std::uint8_t {
  none,
  call_failed,
  too_many_actions,
  unknown_row,
  unknown_verb,
  unsupported_verb,
  unknown_device,
  row_twice,
  wrong_state,
  wrong_token_count,
  too_many_tokens,
  too_many_rows,
  too_few_blocks,
  changes_nothing,
  row_in_step,
};
inline constexpr std::size_t kPlanFaults = 15;
std::string_view plan_fault_name(PlanFault fault);

/// What the snapshot says besides the rows, and what one step can hold.
struct GateLimits {
  std::uint32_t n_rows_max = 0;
  std::uint32_t n_seqs_max = 0;
  std::uint32_t kv_block_tokens = 0;
  std::uint64_t kv_block_bytes = 0;
  std::uint32_t n_devices = 0;
  std::uint32_t n_kv_blocks_reserve = 0;  ///< a waiting row leaves them to those that hold KV
  std::uint32_t n_steps_max = 1;          ///< in flight
};

/// Measured since the last plan, by device.
struct DeviceLoad {
  float busy_ratio = 0.0F;
};

struct SnapshotTime {
  std::uint64_t step = 0;
  std::uint32_t n_steps_in_flight = 0;
  Nanoseconds now{0};
  std::uint64_t latency_ns_p95 = 0;  ///< of the last 10 requests; 0: none yet
  StepCosts step_costs = {};         ///< of the group of devices
};

/// Calls plan() and checks the answer. [engine], owned by the engine; the instance outlives it.
class SchedulerGate {
 public:
  SchedulerGate(const plugin::Instance<luna_scheduler_if>& scheduler,
                const GateLimits& limits,
                const SequenceTable& sequences,
                const KvPool& pool);

  /// Every plan is noted there from now on; it outlives the gate.
  void record_to(PlanRecorder& recorder) { recorder_ = &recorder; }
  /// One call of the plugin. On PlanFault::none `plan` holds what to do; otherwise nothing of the
  /// answer may be carried out, and fault_row() names the row of the action at fault.
  PlanFault ask(const SnapshotTime& time, std::span<const DeviceLoad> loads, StepPlan& plan);
  [[nodiscard]] std::uint32_t fault_row() const { return fault_row_; }
  /// What the plugin said when its call failed. Valid until the next ask().
  [[nodiscard]] std::string_view fault_text() const { return text_of(err_); }

 private:
  void fill_rows();
  void fill_devices(std::span<const DeviceLoad> loads, const SnapshotTime& time);
  PlanFault check(StepPlan& plan);
  PlanFault check_action(const luna_action& action, StepPlan& plan);
  PlanFault check_run(const luna_action& action, StepPlan& plan);
  PlanFault check_blocks(const StepPlan& plan);
  [[nodiscard]] std::int64_t references(std::uint32_t block) const;
  void withdraw(std::uint32_t slot);
  void lend(std::uint32_t slot);

  const plugin::Instance<luna_scheduler_if>& scheduler_;
  const GateLimits limits_;
  const SequenceTable& sequences_;
  const KvPool& pool_;
  PlanRecorder* recorder_ = nullptr;
  std::vector<luna_req_row> rows_;
  std::vector<luna_device_row> devices_;
  std::vector<luna_action> actions_;
  std::vector<std::uint8_t> taken_;    // by row: has an action
  std::vector<std::int32_t> changes_;  // by block: references the plan adds
  luna_plan answer_{};
  luna_err err_{};
  std::uint32_t n_tokens_ = 0;
  std::uint32_t n_blocks_left_ = 0;
  std::uint32_t fault_row_ = 0;
};

}  // namespace luna::engine
