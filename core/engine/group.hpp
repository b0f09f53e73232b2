// Devices that hold one copy of a model together, and all that the engine keeps of them.
#pragma once

#include "core/base/clock.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/kv_audit.hpp"
#include "core/engine/kv_pool.hpp"
#include "core/engine/plan_books.hpp"
#include "core/engine/prefix_reuse.hpp"
#include "core/engine/sequence.hpp"
#include "core/engine/speculation.hpp"
#include "core/engine/step_cost.hpp"
#include "core/engine/step_lane.hpp"
#include "core/model/compiled_model.hpp"
#include "core/telemetry/engine_stats.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace luna::engine {

/// Measured since the last step of the group, by device.
struct DeviceLoad {
  float busy_ratio = 0.0F;
};

/// What groups of one engine have in common.
struct GroupOptions {
  model::StepLimits limits;              ///< of a step
  std::uint32_t n_slots = 0;             ///< of the sequence table
  std::uint32_t n_holders = 0;           ///< of KV blocks: sequences, and whoever moves them
  std::uint32_t kv_reserve_percent = 0;  ///< of the KV blocks: left to sequences that run
  bool prefix_cache = true;
  std::uint64_t prefix_hash_seed = 0;
  bool is_only = true;  ///< there never is another: all sequences stand in it
};

/// How a group is told from others.
struct GroupNumbers {
  GroupId id{};                    ///< never given twice
  std::uint32_t place = 0;         ///< the lowest that was free: `group` of a device's row
  std::uint32_t first_device = 0;  ///< of all devices that the engine ever had
};

/// A resource, made on any thread, then [engine], owned by the engine.
struct Group {
  /// compiled, wake  outlive it
  Group(const model::CompiledModel& compiled,
        const GroupOptions& options,
        const GroupNumbers& numbers_of_it,
        WakeSignal& wake);

  [[nodiscard]] std::uint32_t n_devices() const {
    return static_cast<std::uint32_t>(model.shards.size());
  }
  /// Shows equal texts of Shard::attention as equal numbers.
  void number_attention(std::span<const std::unique_ptr<Group>> others, std::uint32_t& next);
  [[nodiscard]] bool has_device(std::uint32_t device) const {
    return device >= numbers.first_device && device - numbers.first_device < n_devices();
  }
  /// Whether another step could begin.
  [[nodiscard]] bool has_room() const { return !is_closing && !lanes.is_full(); }
  /// Whether it could ever hold so many blocks for one sequence.
  [[nodiscard]] bool can_hold(std::uint32_t n_blocks) const { return n_blocks <= pool.n_blocks(); }
  /// A request whose last sequence ran here has ended.
  void note_latency(Nanoseconds latency);
  /// Of the last 10 requests; 0: none yet.
  [[nodiscard]] Nanoseconds latency_p95() const;
  /// Recounts its KV blocks and steps; empty when all is well, else static text.
  [[nodiscard]] std::string_view run_audit(const SequenceTable& sequences,
                                           const KvMoves& moves,
                                           const KvSlices& slices);
  /// Of those begun: steps end in their order.
  [[nodiscard]] std::uint64_t n_steps_ended() const { return n_steps - lanes.n_in_flight(); }

  const model::CompiledModel& model;
  GroupNumbers numbers;
  const std::uint32_t n_kv_blocks_reserve;  ///< a waiting row leaves them to those that hold KV

  KvPool pool;
  PrefixReuse prefixes;
  KvAudit audit;
  PlanBooks books;
  StepLanes lanes;
  StepCostFit cost_fit;
  DraftPause draft_pause;
  std::vector<DeviceLoad> loads;                      ///< by device
  std::vector<std::uint32_t> attention;               ///< by device
  std::vector<telemetry::DeviceStats*> device_stats;  ///< by device; null: not counted
  std::uint64_t n_steps = 0;                          ///< begun
  Nanoseconds step_ended{0};                          ///< the last on all devices
  Nanoseconds step_sampled{0};                        ///< the last with its tokens
  std::uint32_t n_queued = 0;                         ///< rows that wait for it, as counted last
  std::uint32_t n_running = 0;                        ///< rows that hold KV, as counted last
  bool is_leaving = false;                            ///< takes no further sequences
  bool is_emptying = false;                           ///< and what it holds moves to others
  bool gives_no_kv = false;        ///< copies of its blocks fail, since it was told to move them
  bool takes_no_kv = false;        ///< copies into it fail: what leaves others does not go there
  std::uint32_t n_to_relieve = 0;  ///< sequences that shall move to others
  bool is_closing = false;         ///< and its steps in flight are its last
  std::uint32_t n_failures = 0;    ///< steps in a row
  std::optional<std::uint32_t> failed_device;  ///< why it leaves, if for that

 private:
  std::array<Nanoseconds, 10> last_latencies_{};  // ring of ended requests
  std::uint64_t n_latencies_ = 0;
};

/// The groups of an engine, in the order in which they came. [engine], owned by the engine.
class Groups {
 public:
  /// n_max  groups at any time
  explicit Groups(std::uint32_t n_max) { all_.reserve(n_max); }

  void add(std::unique_ptr<Group> group);
  /// The group leaves; no sequence belongs to it.
  std::unique_ptr<Group> remove(const Group& group);

  [[nodiscard]] std::span<const std::unique_ptr<Group>> all() const { return all_; }
  [[nodiscard]] bool is_empty() const { return all_.empty(); }
  /// The only one; none: nullptr, also where there are several.
  [[nodiscard]] Group* only() const { return all_.size() == 1 ? all_.front().get() : nullptr; }
  [[nodiscard]] Group* of_device(std::uint32_t device) const;
  [[nodiscard]] Group* find(GroupId id) const;
  /// KV blocks of the group that has most, of those that take sequences; 0: there is none.
  [[nodiscard]] std::uint32_t n_blocks_max() const;

  [[nodiscard]] std::uint32_t n_devices() const;
  [[nodiscard]] std::uint32_t n_steps_in_flight() const;
  [[nodiscard]] std::uint32_t n_steps_max() const;
  /// KV blocks that a sequence of a group could have in all groups that may hold slices of it, in
  /// whole partitions: what is left of a group beside them is of no use to it.
  [[nodiscard]] std::uint32_t n_blocks_around(const Group& home) const;
  /// Every group works, and none could begin a step.
  [[nodiscard]] bool are_full() const;

 private:
  std::vector<std::unique_ptr<Group>> all_;
  std::uint32_t next_attention_ = 0;
};

}  // namespace luna::engine
