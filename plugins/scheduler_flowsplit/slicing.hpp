// Which parts of which rows' KV go to other devices, and which come back.
#pragma once

#include "plugins/scheduler_flowsplit/fleet.hpp"
#include "plugins/scheduler_flowsplit/group_judge.hpp"
#include "plugins/scheduler_flowsplit/reasons.hpp"
#include "plugins/scheduler_flowsplit/row_book.hpp"

#include <luna/scheduler.hpp>
#include <luna/slice_choice.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace luna::scheduler_flowsplit {

/// A pressed group gives KV of its longest rows to groups that have room below `low`, until its
/// memory is a margin below `high` again: which partitions go, and how unequally, SliceChoice says.
/// What is away comes back, the newest first, while the group is relaxed. Rows whose KV is on its
/// way are left alone. [step], owned by the policy.
class Slicing {
 public:
  /// What is looked at, and the plan that grows.
  struct Scene {
    const Snapshot& rows;
    Fleet& fleet;
    const RowBook& book;
    Plan& out;
  };

  explicit Slicing(const Thresholds& thresholds) : thresholds_(thresholds) {}

  /// Call once a decision, before the others: what lies where.
  void begin(const Snapshot& rows) {
    parts_.assign(rows.n_rows(), {});
    for (std::uint32_t s = 0; s < rows->n_slices; ++s) {
      const luna_slice_row& slice = rows.slice(s);
      Parts& parts = parts_[slice.row];
      const std::uint32_t end = slice.first_token + slice.n_tokens;
      if (end > parts.end) parts.last = s;
      parts.end = std::max(parts.end, end);
      parts.n_tokens += slice.n_tokens;
      parts.is_moving |= slice.is_copying != 0;
    }
  }

  /// Gives KV of group `from` away, if it is pressed by its memory.
  void relieve(const Scene& scene, std::size_t from) {
    const auto& [rows, fleet, book, out] = scene;
    const GroupState& group = fleet.groups()[from];
    const double over = group.memory_share() - (thresholds_.high - kMargin);
    if (!fleet.memory_of(group).is_pressed || over <= 0.0) return;
    find_rooms(scene, group);
    find_longest(scene, group);
    auto n_left = static_cast<std::int64_t>(std::ceil(over * group.n_blocks_total));
    for (const Candidate& candidate : longest_) {
      const auto n_wanted = static_cast<std::uint32_t>(n_left);
      for (const SliceShare& share : choice_.choose(rows, candidate.row, n_wanted, rooms_)) {
        if (!out.slice(candidate.row, share, kSliceMemory)) return;
        n_left -= share.n_tokens / rows->kv_block_tokens;
      }
      if (n_left <= 0) return;
    }
  }

  /// Brings one part of a row of group `to` back, while it is relaxed.
  void bring_back(const Scene& scene, std::size_t to) const {
    const auto& [rows, fleet, book, out] = scene;
    const GroupState& group = fleet.groups()[to];
    const GroupMemory& memory = fleet.memory_of(group);
    if (!memory.is_relaxed) return;
    for (const HeldRow& held : memory.home.held) {
      const std::uint32_t i = book.index_of(held.id);
      const Parts& parts = parts_[i];
      if (parts.n_tokens == 0 || parts.is_moving) continue;
      const luna_slice_row& slice = rows.slice(parts.last);
      const double n_blocks = std::ceil(double{1} * slice.n_tokens / rows->kv_block_tokens);
      const double share = group.memory_share() + n_blocks / std::max(group.n_blocks_total, 1U);
      if (share >= thresholds_.low) continue;
      if (out.slice(i, {group.first_device, slice.first_token, slice.n_tokens}, kHome)) return;
    }
  }

 private:
  static constexpr double kMargin = 0.05;
  // Each group that holds a part is asked in every step.
  static constexpr std::size_t kGroupsMax = 4;
  static constexpr std::size_t kRowsMax = 4;

  struct Parts {
    std::uint32_t end = 0;   // behind the last token that is away
    std::uint32_t last = 0;  // the slice that ends there
    std::uint32_t n_tokens = 0;
    bool is_moving = false;
  };
  struct Candidate {
    std::uint32_t row = 0;
    std::uint32_t n_tokens = 0;  // that may go
  };

  // The roomiest groups that attend with the same bits.
  void find_rooms(const Scene& scene, const GroupState& from) {
    const auto& [rows, fleet, book, out] = scene;
    rooms_.clear();
    for (std::size_t g = 0; g < fleet.groups().size(); ++g) {
      const GroupState& group = fleet.groups()[g];
      if (group.first_device == from.first_device || out.groups()[g].is_leaving) continue;
      if (fleet.memory_of(group).is_pressed || !attend_alike(rows, from, group)) continue;
      const double n_spare = (thresholds_.low - group.memory_share()) * group.n_blocks_total;
      if (n_spare >= 1.0)
        rooms_.push_back({group.first_device, static_cast<std::uint32_t>(n_spare)});
    }
    std::stable_sort(rooms_.begin(), rooms_.end(), [](const SliceRoom& a, const SliceRoom& b) {
      return a.n_blocks > b.n_blocks;
    });
    if (rooms_.size() > kGroupsMax) rooms_.resize(kGroupsMax);
  }

  // The rows of the group that have most to give.
  void find_longest(const Scene& scene, const GroupState& group) {
    longest_.clear();
    for (const HeldRow& held : scene.fleet.memory_of(group).home.held) {
      const std::uint32_t i = scene.book.index_of(held.id);
      const Row row = scene.rows[i];
      const Parts& parts = parts_[i];
      if (row->moving_to != LUNA_NO_DEVICE || parts.is_moving || scene.out.is_planned(i)) continue;
      const std::uint32_t n_most = row->slice_end_token - row->slice_first_token;
      if (n_most > parts.n_tokens) longest_.push_back({i, n_most - parts.n_tokens});
    }
    std::stable_sort(longest_.begin(), longest_.end(), [](const Candidate& a, const Candidate& b) {
      return a.n_tokens > b.n_tokens;
    });
    if (longest_.size() > kRowsMax) longest_.resize(kRowsMax);
  }

  Thresholds thresholds_;
  std::vector<Parts> parts_;  // by row
  SliceChoice choice_;
  std::vector<SliceRoom> rooms_;
  std::vector<Candidate> longest_;
};

}  // namespace luna::scheduler_flowsplit
