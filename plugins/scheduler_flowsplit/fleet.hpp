// The groups of devices as they are now, and what the policy remembers of each.
#pragma once

#include "plugins/scheduler_flowsplit/turn_queue.hpp"
#include "plugins/scheduler_rules/group_rows.hpp"

#include <luna/scheduler.hpp>
#include <luna/step_cost.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace luna::scheduler_flowsplit {

/// A row that holds KV, in its group's order of seniority.
struct HeldRow {
  std::int64_t rank = 0;
  std::uint64_t id = 0;

  friend auto operator<=>(const HeldRow&, const HeldRow&) = default;
};

/// Where rows are at home: a group, or nowhere yet. Sums are kept as rows come, go and change.
struct Home {
  explicit Home(NodePool& nodes) : queue(&nodes) {}

  std::uint32_t n_blocks_total = 0;    ///< of the group; nowhere: 0
  TurnQueue queue;                     ///< rows with prompt to compute that a plan may name
  std::vector<HeldRow> held;           ///< rows that hold KV, the most senior first
  std::vector<HeldRow> wide;           ///< rows that the group does not hold alone, likewise
  std::uint64_t n_waiting = 0;         ///< rows without KV
  std::uint64_t n_waiting_tokens = 0;  ///< of their prompts, but of wide ones
  std::uint64_t n_decoding = 0;        ///< rows
  std::uint64_t n_prompt_tokens = 0;   ///< left to compute, of all its rows
  std::uint64_t n_kv_tokens = 0;       ///< computed, of the rows that hold KV
  std::uint64_t n_output_tokens = 0;   ///< left to generate at most, of the rows that hold KV

  /// Blocks that rows without KV will take to begin with, but for wide ones: at most.
  [[nodiscard]] std::int64_t n_waiting_blocks(std::uint32_t block_tokens) const {
    const std::uint64_t n_tokens = std::min<std::uint64_t>(n_waiting_tokens, UINT32_MAX / 2);
    return static_cast<std::int64_t>((n_tokens + block_tokens - 1) / block_tokens + n_waiting);
  }
};

/// A group in this snapshot.
struct GroupState {
  std::uint32_t first_device = 0;  ///< how rows name it
  std::uint32_t number = 0;
  std::uint32_t first_row = 0;  ///< of its device rows
  std::uint32_t n_devices = 0;
  StepCost cost;
  std::uint32_t n_steps_in_flight = 0;
  std::uint32_t n_steps_max = 1;
  std::uint32_t n_blocks_free = 0;
  std::uint32_t n_blocks_total = 0;
  std::uint32_t n_blocks_reserve = 0;
  double busy = 0.0;  ///< share of the busiest device
  bool is_new = false;

  [[nodiscard]] double memory_share() const {
    if (n_blocks_total == 0) return 1.0;
    return 1.0 - static_cast<double>(n_blocks_free) / n_blocks_total;
  }
  [[nodiscard]] bool can_start() const { return n_steps_in_flight < n_steps_max; }
};

/// Whether the devices of two groups attend with equal bits, in pairs: rows may move from one to
/// the other.
inline bool attend_alike(const Snapshot& rows, const GroupState& from, const GroupState& to) {
  if (from.n_devices != to.n_devices) return false;
  for (std::uint32_t d = 0; d < from.n_devices; ++d)
    if (rows.device(from.first_row + d).attention != rows.device(to.first_row + d).attention)
      return false;
  return true;
}

/// What is remembered of a group from plan to plan.
struct GroupMemory {
  explicit GroupMemory(std::uint32_t device, NodePool& nodes) : first_device(device), home(nodes) {}

  std::uint32_t first_device;
  Home home;
  scheduling::TurnCredit turns;
  bool is_pressed = false;       ///< its memory or its queue is above the upper thresholds
  bool is_relaxed = true;        ///< its memory is below the lower one and nobody waits
  std::uint64_t changed_ns = 0;  ///< when one of the two changed last
};

/// [step], owned by the policy.
class Fleet {
 public:
  explicit Fleet(NodePool& nodes) : nodes_(nodes), nowhere_(nodes) {}

  /// The groups of this snapshot. Those that are gone keep their memory until sweep().
  void read(const Snapshot& rows) {
    groups_.clear();
    for (std::uint32_t d = 0; d < rows.n_devices(); ++d) {
      const luna_device_row& device = rows.device(d);
      if (groups_.empty() || groups_.back().number != device.group)
        groups_.push_back(begin_group(rows, d));
      GroupState& group = groups_.back();
      ++group.n_devices;
      group.busy = std::max(group.busy, double{device.busy_ratio});
      group.n_blocks_free = std::min(group.n_blocks_free, device.n_kv_blocks_free);
    }
    for (const GroupState& group : groups_)
      if (find(group.first_device) == memories_.end())
        memories_.insert(place_of(group.first_device), GroupMemory(group.first_device, nodes_));
    for (const GroupState& group : groups_)
      memory_of(group).home.n_blocks_total = group.n_blocks_total;
  }
  /// Forgets the groups that are gone: no row stands in them any more.
  void sweep() {
    if (memories_.size() == groups_.size()) return;
    std::erase_if(memories_, [this](const GroupMemory& memory) {
      return std::none_of(groups_.begin(), groups_.end(), [&](const GroupState& group) {
        return group.first_device == memory.first_device;
      });
    });
  }

  [[nodiscard]] std::span<const GroupState> groups() const { return groups_; }
  [[nodiscard]] GroupMemory& memory_of(const GroupState& group) {
    return *find(group.first_device);
  }
  /// Of a row's device; LUNA_NO_DEVICE: those that wait to be assigned.
  [[nodiscard]] Home& home_of(std::uint32_t device) {
    if (device == LUNA_NO_DEVICE) return nowhere_;
    const auto found = find(device);
    return found == memories_.end() ? nowhere_ : found->home;
  }
  [[nodiscard]] Home& nowhere() { return nowhere_; }
  /// Of the group; of the first one for rows that have none.
  [[nodiscard]] const StepCost& cost_of(std::uint32_t device) const {
    static constexpr StepCost kUnknown{};
    if (groups_.empty()) return kUnknown;
    if (device == LUNA_NO_DEVICE) return groups_.front().cost;
    for (const GroupState& group : groups_)
      if (group.first_device == device) return group.cost;
    return groups_.front().cost;
  }

 private:
  GroupState begin_group(const Snapshot& rows, std::uint32_t d) const {
    const luna_device_row& device = rows.device(d);
    GroupState group;
    group.first_device = device.device;
    group.number = device.group;
    group.first_row = d;
    group.cost = StepCost::of(device);
    group.n_steps_in_flight = device.n_steps_in_flight;
    group.n_steps_max = std::max(device.n_steps_in_flight_max, 1U);
    group.n_blocks_free = device.n_kv_blocks_free;
    group.n_blocks_total = device.n_kv_blocks_total;
    group.n_blocks_reserve = device.n_kv_blocks_reserve;
    return group;
  }
  std::vector<GroupMemory>::iterator place_of(std::uint32_t device) {
    return std::lower_bound(
        memories_.begin(), memories_.end(), device, [](const GroupMemory& m, std::uint32_t d) {
          return m.first_device < d;
        });
  }
  std::vector<GroupMemory>::iterator find(std::uint32_t device) {
    const auto place = place_of(device);
    return place != memories_.end() && place->first_device == device ? place : memories_.end();
  }

  NodePool& nodes_;
  std::vector<GroupState> groups_;
  std::vector<GroupMemory> memories_;  // in order of their first devices
  Home nowhere_;
};

}  // namespace luna::scheduler_flowsplit
