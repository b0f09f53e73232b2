// What a plan has left of each group of devices. Header-only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace luna {

/// What the next step of a group has left, beside what the plan took of it.
struct GroupBooks {
  std::uint32_t device = 0;     ///< number of its first device
  std::uint32_t n_devices = 0;  ///< their numbers follow each other
  std::uint32_t first_row = 0;  ///< index of the first device's row
  std::uint32_t n_tokens_left = 0;
  std::uint32_t n_rows_left = 0;
  std::uint32_t n_steps_free = 0;  ///< steps that could begin: 0: none of its rows can run
  std::uint32_t n_steps_in_flight = 0;
  std::uint32_t slice_set = 0;  ///< as its devices' rows say
  bool is_leaving = false;      ///< takes no further rows
  std::int64_t n_blocks_total = 0;
  std::int64_t n_blocks_free = 0;     ///< below 0: decoding rows took what was promised
  std::int64_t n_blocks_reserve = 0;  ///< 0 while no row of it holds KV
  std::int64_t n_shared_taken = 0;    ///< counted on by the rows let in
  std::int64_t n_given_back = 0;
  std::uint32_t n_actions = 0;      ///< on its rows, but ASSIGN
  bool is_short_of_blocks = false;  ///< a row did not run for want of some
};

/// Free blocks that are kept for single rows: few, so they stand in one list. A value.
class BlockPromises {
 public:
  void clear() { promises_.clear(); }
  /// group  its place among the plan's
  void add(std::uint32_t row, std::uint32_t group, std::int64_t n_blocks) {
    promises_.push_back({row, group, n_blocks});
  }
  /// Blocks that the row has in the group.
  [[nodiscard]] std::int64_t n_of(std::uint32_t row, std::uint32_t group) const {
    std::int64_t n = 0;
    for (const Promise& promise : promises_)
      if (promise.row == row && promise.group == group) n += promise.n_blocks;
    return n;
  }
  /// The row uses up to so many of them. Returns how many.
  std::int64_t draw(std::uint32_t row, std::uint32_t group, std::int64_t n_blocks) {
    std::int64_t n_left = n_blocks;
    for (Promise& promise : promises_) {
      if (promise.row != row || promise.group != group) continue;
      const std::int64_t n = std::min(promise.n_blocks, n_left);
      promise.n_blocks -= n;
      n_left -= n;
    }
    return n_blocks - n_left;
  }
  /// The row needs none any more: they are free in their groups again.
  void give_back(std::uint32_t row, std::vector<GroupBooks>& groups) {
    for (Promise& promise : promises_)
      if (promise.row == row)
        groups[promise.group].n_blocks_free += std::exchange(promise.n_blocks, 0);
  }

 private:
  struct Promise {
    std::uint32_t row;
    std::uint32_t group;
    std::int64_t n_blocks;
  };
  std::vector<Promise> promises_;
};

}  // namespace luna
