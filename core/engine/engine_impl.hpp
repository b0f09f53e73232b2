// The engine's state, and the turns of its loop.
#pragma once

#include "core/base/bounded.hpp"
#include "core/engine/device_turns.hpp"
#include "core/engine/draft_model.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/group.hpp"
#include "core/engine/kv_moves.hpp"
#include "core/engine/kv_pruning.hpp"
#include "core/engine/kv_slices.hpp"
#include "core/engine/live_request.hpp"
#include "core/engine/output_check.hpp"
#include "core/engine/policy_watch.hpp"
#include "core/engine/queue_gauge.hpp"
#include "core/engine/sampler.hpp"
#include "core/engine/scheduler_gate.hpp"
#include "core/engine/sequence.hpp"
#include "core/engine/speculation.hpp"
#include "core/engine/step_lane.hpp"
#include "core/engine/step_plan.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

namespace luna::engine {

/// A client wants its answer no more.
struct Cancel {
  std::uint64_t id = 0;
};

/// A group shall leave.
struct Retirement {
  GroupId group{};
  RetireMode mode = RetireMode::at_once;
};

/// What a group runs shall move to others.
struct Relief {
  GroupId group{};
};

/// Nothing shall be kept for prompts to come.
struct DropCached {};

/// What any thread may tell the engine: a request comes, or a group does.
using Command = std::variant<std::unique_ptr<LiveRequest>,
                             Cancel,
                             std::unique_ptr<Group>,
                             Retirement,
                             Relief,
                             DropCached>;

/// [engine] but for the members that say otherwise.
struct Engine::Impl {
  Impl(const EngineParts& engine_parts,
       const RequestLimits& request_limits,
       const model::StepLimits& limits_of_a_step,
       const EngineOptions& options);

  bool advance();
  bool take_turn();
  /// Whether a plan may begin steps, where other engines use the same devices.
  bool is_its_turn();
  [[nodiscard]] bool has_busy_neighbours() const;
  void run_thread();
  /// The loop has ended: waits for the steps in flight, ends every sequence. [main]
  void shut_down();
  void end_steps(Group& group);
  [[nodiscard]] std::optional<Nanoseconds> next_wake() const;
  [[nodiscard]] bool is_drafting() const { return draft_model && draft_model->is_running(); }
  /// Whether there is a sequence that a plan could name.
  [[nodiscard]] bool has_plannable() const;
  [[nodiscard]] std::string_view audit_kv();

  // ---- groups
  /// Where a sequence that waits for a group stands: in the only one; in none, where there are
  /// several; held, where none could hold it.
  void settle(Sequence& sequence);
  /// All that wait for one; with `anew` also those that wait in one.
  void settle_waiting(bool anew);
  void preempt(std::uint32_t slot);
  /// Likewise of one whose group failed or leaves.
  void recompute(std::uint32_t slot);
  void admit(std::unique_ptr<Group> group);
  void obey_group_commands();
  void retire_group(Group& group, RetireMode mode);
  void close(Group& group);
  void send_away(const Group& group);
  void relieve(Group& group);
  [[nodiscard]] std::uint32_t n_holding(const Group& group) const;
  [[nodiscard]] Group* refuge_of(const Sequence& sequence) const;
  void vacate(Group& group);
  bool evict_guests(const Group& group);
  [[nodiscard]] bool could_hold(const Group& group, std::uint32_t n_blocks) const;
  bool part_with_groups();
  void let_go(Group& group);
  [[nodiscard]] bool can_lose(const Group& group) const;
  bool go_on_moving();
  void after_failure(Group& group, std::uint32_t slot);
  void note_capacity();
  bool finish_steps();
  [[nodiscard]] bool has_plannable(const Group& group) const;
  [[nodiscard]] bool leaves_room() const;

  // ---- turns of advance()
  bool drain_inbox();
  void obey(std::unique_ptr<LiveRequest> submitted);
  void obey(Cancel cancel);
  void finish_step(Group& group);
  bool apply_ends(Nanoseconds now);
  void find_prefixes();
  bool begin_drafts();
  void go_on_drafting(Nanoseconds now);
  void plan_step(Nanoseconds now);
  void start_prompt(Sequence& sequence, Nanoseconds now);
  void count_cached(Sequence& sequence, std::uint32_t n_tokens);
  void refuse_plan(PlanFault fault);
  void note_late_plan();
  bool replace_policy(std::string_view reason);
  void end_unplanned();
  void carry_out(Nanoseconds now, Nanoseconds planned);
  void start_step(Group& group, Nanoseconds now, Nanoseconds planned);
  void add_to_batch(const PlannedRun& run, Group& group, StepBatch& batch);
  void leave_step(const StepBatch::Entry& entry, Nanoseconds now);
  void take_results(Group& group, const StepLane& lane, Nanoseconds now);
  void take_masses(const StepLane& lane, const StepBatch::Entry& entry, Sequence& sequence);
  void fail_step(Group& group, const StepLane& lane, const StepRunner::Outcome& outcome);
  [[nodiscard]] bool waited_for_guests(const Group& group,
                                       const StepLane& lane,
                                       const StepRunner::Outcome& outcome) const;
  void close_lost_groups();
  void measure_step(Group& group, const StepLane& lane, Nanoseconds now);
  void record_step(Group& group, StepLane& lane, Nanoseconds sampled);
  void note_progress(Nanoseconds now);
  void wake_readers();
  void update_gauges();
  void update_group_gauges();

  // ---- tokens
  void produce(const StepLane& lane, const StepBatch::Entry& entry, Nanoseconds now);
  void verify(const StepLane& lane, const StepBatch::Entry& entry, Nanoseconds now);
  bool draw_token(std::uint32_t slot, const LogitsRow& row, Nanoseconds now);
  [[nodiscard]] std::uint32_t output_flags(const Sequence& sequence, std::uint32_t n_ahead) const;
  [[nodiscard]] LogitsRow output_row(const StepLane& lane, std::uint32_t out_row) const;
  [[nodiscard]] static DrawContext draw_context(const Sequence& sequence, std::uint32_t n_ahead);

  // ---- ends
  void end_sequence(std::uint32_t slot, const pipeline::StreamEnd& end);
  /// All but those in a step.
  void end_all(const pipeline::StreamEnd& end);
  void publish(const LiveRequest& request, Choice& choice);
  /// group  in which its last sequence ran, or waited; none: it belonged to none
  void retire(LiveRequest& request, Group* group);
  void count_end(const LiveRequest& request, Group* group);

  // ---- [any]
  /// False when the engine has been stopped.
  bool tell(Command command);
  [[nodiscard]] RequestLimits limits_now() const;
  /// Those of a request that one group computes alone.
  [[nodiscard]] RequestLimits limits_alone() const;
  /// Counts the sequences in, if the queue has room.
  bool reserve(std::uint32_t n_sequences);
  void unreserve(std::uint32_t n_sequences);
  void reclaim();
  /// Hands over a request whose sequences nobody counts.
  bool push(std::unique_ptr<LiveRequest> request);
  void start_replay();

  const EngineParts parts;
  const RequestLimits limits;
  const model::StepLimits step_limits;
  const KvPruning pruning;
  const std::uint32_t n_waiting_max;
  const std::uint32_t n_live_max;
  const std::uint32_t n_groups_max;
  const std::uint32_t n_candidates;
  const bool may_outgrow_group;  // a sequence: the policy slices
  const Nanoseconds recovery_timeout;
  const Nanoseconds plan_budget;
  const GroupOptions group_options;
  const model::CompiledModel pattern;  ///< what each group's model is like; it has no shards

  WakeSignal wake;
  BoundedQueue<Command> inbox;
  std::atomic<bool> stopping{false};
  std::atomic<std::uint32_t> n_submitting{0};    // threads inside submit() and cancel()
  std::atomic<std::uint32_t> n_live{0};          // sequences counted in, to their end
  std::atomic<std::uint32_t> n_queued{0};        // of these, not in any step yet
  std::atomic<LiveRequest*> finished{nullptr};   // a stack: engine pushes, anyone takes all
  std::atomic<std::uint32_t> n_blocks_max{0};    // KV blocks of the roomiest group, here or last
  std::atomic<std::uint32_t> n_blocks_alone{0};  // likewise, without what others may hold for it
  std::atomic<std::uint32_t> n_groups{0};        // counted in, until they have left
  std::atomic<std::uint32_t> next_group{0};
  std::atomic<std::uint32_t> next_device{0};
  std::thread thread;

  SequenceTable sequences;
  Groups groups;
  KvMoves moves;
  KvSlices slices;
  SchedulerGate gate;
  QueueGauge queue;
  StepPlan plan;
  Sampler sampler;
  Speculation speculation;
  std::optional<DraftModel> draft_model;  // its steps and the target's, of one lane, take turns

  std::optional<OutputCheck> output_check;
  LiveRequest* replay = nullptr;      // that is being computed
  std::uint64_t n_steps_checked = 0;  // [checker] as seen last

  bool plan_due = false;         // something happened since the last plan
  bool waits_for_turn = false;   // other engines go first
  bool drafted = false;          // the draft model had its round before the step to come
  Nanoseconds draft_started{0};  // that round
  bool published = false;        // since the last on_published
  std::uint64_t n_steps = 0;
  std::uint32_t n_refused = 0;  // plans in a row
  PolicyWatch policy_watch;
  std::size_t n_fallbacks_used = 0;
  std::array<bool, kPlanFaults> fault_told{};  // of the policy that is asked now
  bool late_plan_told = false;                 // likewise
  bool step_failure_told = false;
  std::vector<std::unique_ptr<Group>> arrivals;  // told, not carried out yet
  std::vector<Retirement> retirements;
  std::vector<Relief> reliefs;
  std::uint64_t n_submits_gone = 0;  // of groups that have left
  bool is_shut_down = false;
};

}  // namespace luna::engine
