// Which parts of which rows' KV go to other devices, and which come back.
#pragma once

#include "plugins/scheduler_flowsplit/fleet.hpp"
#include "plugins/scheduler_flowsplit/group_judge.hpp"
#include "plugins/scheduler_flowsplit/reasons.hpp"
#include "plugins/scheduler_flowsplit/row_book.hpp"
#include "plugins/scheduler_flowsplit/row_slices.hpp"

#include <luna/scheduler.hpp>
#include <luna/slice_choice.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace luna::scheduler_flowsplit {

/// A pressed group gives KV of its longest rows to groups that have room below `low`, until its
/// memory is a margin below `high` again, and so does one whose decoding rows are about to find no
/// block: which partitions go, and how unequally, SliceChoice says. What is away comes back, the
/// newest first, while the group is relaxed. Rows whose KV is on its way are left alone, and so is
/// what WideRows sends away. [step], owned by the policy.
class Slicing {
 public:
  /// What is looked at, and the plan that grows.
  struct Scene {
    const Snapshot& rows;
    Fleet& fleet;
    const RowBook& book;
    const RowSlices& slices;
    Plan& out;
  };

  explicit Slicing(const Thresholds& thresholds) : thresholds_(thresholds) {}

  /// Gives KV of group `from` away, if it is pressed by its memory.
  void relieve(const Scene& scene, std::size_t from) {
    const GroupState& group = scene.fleet.groups()[from];
    const double over = group.memory_share() - (thresholds_.high - kMargin);
    if (!scene.fleet.memory_of(group).is_pressed || over <= 0.0) return;
    give_away(scene, from, static_cast<std::int64_t>(std::ceil(over * group.n_blocks_total)));
  }
  /// Likewise, if its decoding rows may find no block in their next steps.
  void relieve_short(const Scene& scene, std::size_t from) {
    const GroupState& group = scene.fleet.groups()[from];
    const auto n_decoding = static_cast<std::int64_t>(scene.fleet.memory_of(group).home.n_decoding);
    const std::int64_t n_missing = n_decoding - scene.out.groups()[from].n_blocks_free;
    if (n_decoding > 0 && n_missing > 0) give_away(scene, from, n_missing);
  }

  /// Brings one part of a row of group `to` back, while it is relaxed.
  void bring_back(const Scene& scene, std::size_t to) const {
    const auto& [rows, fleet, book, slices, out] = scene;
    const GroupState& group = fleet.groups()[to];
    const GroupMemory& memory = fleet.memory_of(group);
    if (!memory.is_relaxed || slices.n_moving() >= kMovingMax) return;
    // What is promised is as good as taken.
    const auto n_free = static_cast<double>(out.groups()[to].n_blocks_free);
    for (const HeldRow& held : memory.home.held) {
      const std::uint32_t i = book.index_of(held.id);
      const RowSlices::Parts& parts = slices.of(i);
      if (parts.n_tokens == 0 || parts.is_moving || rows[i]->moving_to != LUNA_NO_DEVICE) continue;
      const luna_slice_row& slice = rows.slice(parts.last);
      const double n_blocks = std::ceil(double{1} * slice.n_tokens / rows->kv_block_tokens);
      const double share = 1.0 - (n_free - n_blocks) / std::max(group.n_blocks_total, 1U);
      if (share >= thresholds_.low || !is_named_by(rows[i], slice)) continue;
      if (out.slice(i, {group.first_device, slice.first_token, slice.n_tokens}, kHome)) return;
    }
  }

 private:
  static constexpr double kMargin = 0.05;
  // Each group that holds a part is asked in every step.
  static constexpr std::size_t kGroupsMax = 4;
  static constexpr std::size_t kRowsMax = 4;
  // Of all rows, so that what is under way never reaches the bound of the contract.
  static constexpr std::uint32_t kMovingMax = LUNA_SLICES_COPYING_MAX / 2;

  struct Candidate {
    std::uint32_t row = 0;
    std::uint32_t n_tokens = 0;  // that may go
  };

  void give_away(const Scene& scene, std::size_t from, std::int64_t n_blocks) {
    const auto& [rows, fleet, book, slices, out] = scene;
    if (slices.n_moving() >= kMovingMax) return;
    find_rooms(scene, from);
    if (rooms_.empty()) return;
    find_longest(scene, fleet.groups()[from]);
    std::int64_t n_left = n_blocks;
    for (const Candidate& candidate : longest_) {
      const auto n_wanted = static_cast<std::uint32_t>(n_left);
      for (const SliceShare& share : choice_.choose(rows, candidate.row, n_wanted, rooms_)) {
        if (!out.slice(candidate.row, share, kSliceMemory)) return;
        n_left -= share.n_tokens / rows->kv_block_tokens;
      }
      if (n_left <= 0) return;
    }
  }

  // Whether an action may name all of a part.
  static bool is_named_by(Row row, const luna_slice_row& slice) {
    return slice.first_token >= row->slice_first_token &&
           slice.first_token + slice.n_tokens <= row->slice_end_token;
  }

  // The roomiest groups that attend with the same bits.
  void find_rooms(const Scene& scene, std::size_t from) {
    Fleet& fleet = scene.fleet;
    const auto books = scene.out.groups();
    rooms_.clear();
    for (std::size_t g = 0; g < fleet.groups().size(); ++g) {
      const GroupState& group = fleet.groups()[g];
      if (g == from || books[g].is_leaving || fleet.memory_of(group).is_pressed) continue;
      if (!scene.out.may_share(books[from], books[g])) continue;
      // What is promised is as good as taken.
      const double share =
          1.0 - static_cast<double>(books[g].n_blocks_free) / std::max(group.n_blocks_total, 1U);
      const double n_spare = (thresholds_.low - share) * group.n_blocks_total;
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
      const RowSlices::Parts& parts = scene.slices.of(i);
      if (scene.out.is_spread(i)) continue;
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
  SliceChoice choice_;
  std::vector<SliceRoom> rooms_;
  std::vector<Candidate> longest_;
};

}  // namespace luna::scheduler_flowsplit
