// The border to the scheduler plugin: shows it the engine's tables, and lets no illegal answer in.
#pragma once

#include "core/base/clock.hpp"
#include "core/engine/group.hpp"
#include "core/engine/kv_moves.hpp"
#include "core/engine/kv_slices.hpp"
#include "core/engine/plan_record.hpp"
#include "core/engine/sequence.hpp"
#include "core/engine/step_plan.hpp"
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
  no_group,
  no_room_for_step,
  cannot_move,
  unequal_groups,
};
inline constexpr std::size_t kPlanFaults = 19;
std::string_view plan_fault_name(PlanFault fault);

/// What the snapshot says besides the rows, and what a step of a group can hold.
struct GateLimits {
  std::uint32_t n_rows_max = 0;
  std::uint32_t n_seqs_max = 0;
  std::uint32_t kv_block_tokens = 0;
  std::uint32_t n_groups_max = 1;
  bool slices = false;  ///< the policy knows that requests may be larger than a group
};

struct SnapshotTime {
  std::uint64_t step = 0;
  Nanoseconds now{0};
};

/// Calls plan() and checks the answer. [engine], owned by the engine; the others outlive it.
class SchedulerGate {
 public:
  SchedulerGate(const plugin::Instance<luna_scheduler_if>& scheduler,
                const GateLimits& limits,
                const SequenceTable& sequences,
                Groups& groups,
                const KvMoves& moves,
                const KvSlices& slices);

  /// Every plan is noted there from now on; it outlives the gate.
  void record_to(PlanRecorder& recorder) { recorder_ = &recorder; }
  /// Every call of the plugin is timed by it from now on; it outlives the gate.
  void time_by(const Clock& clock) { clock_ = &clock; }
  /// Asks another policy from now on, which outlives the gate. What was recorded ends: a recording
  /// is of one policy.
  void replace(const plugin::Instance<luna_scheduler_if>& scheduler);
  [[nodiscard]] const std::string& policy() const { return scheduler_->name(); }
  /// One call of the plugin. On PlanFault::none `plan` holds what to do; otherwise nothing of the
  /// answer may be carried out, and fault_row() names the row of the action at fault.
  PlanFault ask(const SnapshotTime& time, StepPlan& plan);
  [[nodiscard]] std::uint32_t fault_row() const { return fault_row_; }
  /// How long the last call of the plugin took, by time_by()'s clock.
  [[nodiscard]] Nanoseconds call_time() const { return call_time_; }
  /// What the plugin said when its call failed. Valid until the next ask().
  [[nodiscard]] std::string_view fault_text() const { return text_of(err_); }

 private:
  /// A row's group, as the actions before have left it, and what a waiting row would find there.
  struct Place {
    Group* group = nullptr;
    PrefixHit hit;
  };

  void fill_rows();
  void fill_row(const Sequence& sequence, luna_req_row& row);
  void fill_prefixes(std::uint32_t row, const Sequence& sequence);
  void fill_slices(std::uint32_t row, const Sequence& sequence);
  void fill_devices();
  [[nodiscard]] std::uint32_t slice_set_of(const Group& group) const;
  [[nodiscard]] luna_snapshot snapshot(const SnapshotTime& time) const;
  PlanFault check(StepPlan& plan);
  PlanFault check_action(const luna_action& action, StepPlan& plan);
  PlanFault check_assign(const luna_action& action, StepPlan& plan);
  PlanFault check_move(const luna_action& action, StepPlan& plan);
  PlanFault check_slice(const luna_action& action, StepPlan& plan);
  PlanFault check_run(const luna_action& action, StepPlan& plan);
  PlanFault check_blocks(const StepPlan& plan);
  PlanFault check_slices(const StepPlan& plan);
  [[nodiscard]] static bool lies_together(const Sequence& sequence, const PlannedSlice& planned);
  void withdraw(const Sequence& sequence);
  void note_fault(std::uint32_t slot);
  [[nodiscard]] Place place_of(std::uint32_t slot) const;

  const plugin::Instance<luna_scheduler_if>* scheduler_;
  const GateLimits limits_;
  const SequenceTable& sequences_;
  Groups& groups_;
  const KvMoves& moves_;
  const KvSlices& slices_;
  PlanRecorder* recorder_ = nullptr;
  const Clock* clock_ = nullptr;
  Nanoseconds call_time_{0};
  std::vector<std::uint32_t> slots_;  // by row
  std::vector<luna_req_row> rows_;
  std::vector<luna_device_row> devices_;
  std::vector<luna_prefix_row> prefixes_;
  std::vector<luna_slice_row> slice_rows_;
  std::vector<luna_action> actions_;
  std::vector<std::uint8_t> taken_;  // by row: its verb, but for ASSIGN and MOVE
  std::vector<std::uint8_t> moved_;  // by row: has a MOVE
  std::vector<Group*> assigned_;     // by slot: by this plan
  luna_plan answer_{};
  luna_err err_{};
  std::uint32_t n_rows_ = 0;
  std::uint32_t n_new_assigns_ = 0;  // of rows that belonged to no group
  std::uint32_t fault_row_ = 0;
};

}  // namespace luna::engine
