// Which partitions of a row go to which groups: what policies that SLICE have in common.
// Header-only.
#pragma once

#include <luna/snapshot.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace luna {

/// KV blocks that a group gives to rows of others.
struct SliceRoom {
  std::uint32_t device = 0;  ///< the first of the group
  std::uint32_t n_blocks = 0;
};

/// Tokens of a row that go to a group: what an action SLICE says.
struct SliceShare {
  std::uint32_t device = 0;
  std::uint32_t first_token = 0;
  std::uint32_t n_tokens = 0;
};

/// Chooses by free blocks: the oldest partitions go and the newest stay at home, where the next
/// tokens come; a group takes as many as leave the groups' free room even, so shares are unequal
/// where room is. Each group gets one range, unless part of it has left before. Its buffers are
/// reused: later choices allocate nothing.
class SliceChoice {
 public:
  /// Partitions of row i that leave its group.
  ///
  /// n_blocks  that shall come free at home, at least; fewer if the row, or the rooms, have no more
  /// rooms     of groups that may take some, none of them its own; what is taken is taken off
  /// Returns   what to SLICE; valid until the next call
  std::span<const SliceShare> choose(const Snapshot& rows,
                                     std::uint32_t i,
                                     std::uint32_t n_blocks,
                                     std::span<SliceRoom> rooms) {
    shares_.clear();
    const std::uint32_t block_tokens = rows->kv_block_tokens;
    const std::uint32_t n_partition = LUNA_PARTITION_TOKENS / std::max(block_tokens, 1U);
    if (n_partition == 0) return shares_;
    find_home(rows, i);
    const std::uint32_t n_wanted = n_blocks / n_partition + (n_blocks % n_partition != 0 ? 1 : 0);
    std::uint32_t n_left = std::min(n_wanted, static_cast<std::uint32_t>(home_.size()));
    taken_.assign(rooms.size(), 0);
    for (; n_left > 0; --n_left) {
      const auto roomiest =
          std::max_element(rooms.begin(), rooms.end(), [](const SliceRoom& a, const SliceRoom& b) {
            return a.n_blocks < b.n_blocks;
          });
      if (roomiest == rooms.end() || roomiest->n_blocks < n_partition) break;
      roomiest->n_blocks -= n_partition;
      ++taken_[static_cast<std::size_t>(roomiest - rooms.begin())];
    }
    hand_out(rooms);
    return shares_;
  }

 private:
  /// The row's partitions that lie at home and may go, by number.
  void find_home(const Snapshot& rows, std::uint32_t i) {
    home_.clear();
    const Row row = rows[i];
    for (std::uint32_t at = row->slice_first_token; at < row->slice_end_token;
         at += LUNA_PARTITION_TOKENS) {
      bool is_home = true;
      for (std::uint32_t s = 0; s < rows->n_slices && is_home; ++s) {
        const luna_slice_row& slice = rows.slice(s);
        is_home =
            slice.row != i || at < slice.first_token || at - slice.first_token >= slice.n_tokens;
      }
      if (is_home) home_.push_back(at / LUNA_PARTITION_TOKENS);
    }
  }
  void hand_out(std::span<const SliceRoom> rooms) {
    auto next = home_.begin();
    for (std::size_t r = 0; r < rooms.size(); ++r)
      for (std::uint32_t n = taken_[r]; n > 0; --n, ++next) {
        const std::uint32_t first_token = *next * LUNA_PARTITION_TOKENS;
        const bool goes_on = !shares_.empty() && shares_.back().device == rooms[r].device &&
                             shares_.back().first_token + shares_.back().n_tokens == first_token;
        if (!goes_on) shares_.push_back({rooms[r].device, first_token, 0});
        shares_.back().n_tokens += LUNA_PARTITION_TOKENS;
      }
  }

  std::vector<std::uint32_t> home_;   // partitions, ascending
  std::vector<std::uint32_t> taken_;  // by room: partitions
  std::vector<SliceShare> shares_;
};

}  // namespace luna
