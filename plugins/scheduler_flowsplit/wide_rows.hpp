// Rows that are larger than any group: what they are promised, when one may begin, and which of
// their partitions leave home.
#pragma once

#include "plugins/scheduler_flowsplit/fleet.hpp"
#include "plugins/scheduler_flowsplit/reasons.hpp"
#include "plugins/scheduler_flowsplit/row_book.hpp"
#include "plugins/scheduler_flowsplit/row_slices.hpp"

#include <luna/scheduler.hpp>
#include <luna/slice_choice.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace luna::scheduler_flowsplit {

/// A wide row computes at home, and whenever it has no room there for what comes next, its oldest
/// finished partitions go to other groups. Such rows begin only where all that they may ever need
/// is free, beside what those that run may still take; from then on this is promised to them, in
/// every plan anew: at home first, the rest as whole partitions where most is free. So any two that
/// have begun both end, whoever else comes. [step], owned by the policy.
class WideRows {
 public:
  /// What is looked at, and the plan that grows.
  struct Scene {
    const Snapshot& rows;
    Fleet& fleet;
    const RowBook& book;
    const RowSlices& slices;
    Plan& out;
  };

  /// Call first in a plan: keeps what the wide rows may still need.
  void promise(const Scene& scene) {
    n_partition_ = LUNA_PARTITION_TOKENS / scene.rows->kv_block_tokens;
    entries_.clear();
    promised_.clear();
    growth_.clear();
    collect(scene);
    if (entries_.empty()) return;
    for (const Entry& entry : entries_)
      scene.out.spread(entry.row);
    open(scene, {});
    // Rows that were given to a group and wait there had room beside those that began before them.
    for (std::size_t g = 0; g < spared_.size(); ++g)
      spared_[g] += waiting_of(scene, g);
    // The partition that a row is in must become whole before it can leave.
    for (std::size_t e = 0; e < entries_.size(); ++e)
      keep_home(e, std::min(entries_[e].n_needed, n_until_whole(scene.rows[entries_[e].row])), 0);
    for (std::size_t e = 0; e < entries_.size(); ++e)
      keep_rest(scene, e);
    for (std::size_t e = 0; e < entries_.size(); ++e)
      tell(scene, e);
  }

  /// The books as has_room() finds them.
  ///
  /// taken  by group: blocks that others will take; none: no others do
  void open(const Scene& scene, std::span<const std::int64_t> taken) {
    const auto books = scene.out.groups();
    free_.clear();
    for (std::size_t g = 0; g < books.size(); ++g)
      free_.push_back(books[g].n_blocks_free - (taken.empty() ? 0 : taken[g]));
    if (growth_.empty()) {
      for (std::size_t g = 0; g < books.size(); ++g)
        growth_.push_back(growth_of(scene, g));
    }
    spared_ = growth_;
  }
  /// Whether a waiting row could begin in a group, and end.
  [[nodiscard]] bool has_room(const Scene& scene, std::uint32_t row, std::size_t home) const {
    const auto books = scene.out.groups();
    const std::int64_t n_blocks = n_blocks_of(scene.rows, scene.rows[row].n_tokens_max());
    const std::int64_t n_home = room(home);
    std::int64_t n_around = n_home;
    for (std::size_t g = 0; g < books.size(); ++g)
      if (takes_parts(scene.out, home, g)) n_around += room(g) / n_partition_ * n_partition_;
    const std::int64_t n_first = n_to_begin(scene, row, home) + books[home].n_blocks_reserve;
    return n_home >= std::min(n_blocks, n_first) && n_around >= n_blocks;
  }
  /// Whether there would be room if all rows had ended that are not wide: else a row waits for
  /// another wide one, and those behind it need not wait with it.
  [[nodiscard]] bool comes_by_waiting(const Scene& scene, std::uint32_t row, std::size_t home) {
    const auto books = scene.out.groups();
    free_.clear();
    for (const GroupBooks& group : books)
      free_.push_back(group.n_blocks_total);
    for (std::size_t e = 0; e < entries_.size(); ++e) {
      for (std::size_t g = 0; g < books.size(); ++g)
        free_[g] -= promised(e, g);
      if (const Row held = scene.rows[entries_[e].row]; !held.is_waiting())
        free_[entries_[e].home] -= held->n_kv_blocks;
    }
    for (std::uint32_t s = 0; s < scene.rows->n_slices; ++s) {
      const luna_slice_row& slice = scene.rows.slice(s);
      const std::int64_t n = slice.n_tokens / scene.rows->kv_block_tokens;
      if (!is_wide(slice.row)) continue;
      for (std::size_t g = 0; g < books.size(); ++g) {
        if (books[g].device == slice.device) free_[g] -= n;
        if (books[g].device == scene.rows[slice.row]->device) free_[g] += n;
      }
    }
    std::int64_t n_around = std::max<std::int64_t>(free_[home], 0);
    for (std::size_t g = 0; g < books.size(); ++g)
      if (takes_parts(scene.out, home, g))
        n_around += std::max<std::int64_t>(free_[g], 0) / n_partition_ * n_partition_;
    return free_[home] >= n_partition_ &&
           n_around >= n_blocks_of(scene.rows, scene.rows[row].n_tokens_max());
  }
  /// Whether partitions of rows at home may go to a group.
  [[nodiscard]] static bool takes_parts(const Plan& out, std::size_t home, std::size_t guest) {
    const auto books = out.groups();
    return guest != home && !books[guest].is_leaving && out.may_share(books[home], books[guest]);
  }

  /// A row that has room was assigned to a group by this plan.
  ///
  /// taken  as for open()
  void admit(const Scene& scene,
             std::uint32_t row,
             std::size_t home,
             std::span<const std::int64_t> taken) {
    scene.out.spread(row);
    entries_.push_back({.row = row,
                        .home = home,
                        .rank = {},
                        .n_needed = n_blocks_of(scene.rows, scene.rows[row].n_tokens_max())});
    promised_.resize(entries_.size() * scene.out.groups().size());
    open(scene, taken);
    keep_rest(scene, entries_.size() - 1);
    tell(scene, entries_.size() - 1);
  }

  /// Sends partitions away as far as rows need room at home for what comes next.
  void make_room(const Scene& scene) {
    for (std::size_t e = 0; e < entries_.size(); ++e) {
      Entry& entry = entries_[e];
      const Row row = scene.rows[entry.row];
      if (row.is_waiting()) continue;
      const std::int64_t n_room = promised(e, entry.home) + entry.n_leaving;
      const std::int64_t n_ahead = std::min(entry.n_needed, n_next(scene.rows, row));
      bool leaves = entry.n_leaving > 0;
      if (n_room < n_ahead) leaves |= send(scene, e, n_ahead - n_room);
      entry.is_blocked = leaves && promised(e, entry.home) <= 0 && fills_its_blocks(scene, row);
    }
  }

  [[nodiscard]] bool has_any() const { return !entries_.empty(); }
  [[nodiscard]] bool is_wide(std::uint32_t row) const { return find(row) != nullptr; }
  /// It runs in no step before partitions of it have left.
  [[nodiscard]] bool is_blocked(std::uint32_t row) const {
    const Entry* const entry = find(row);
    return entry != nullptr && entry->is_blocked;
  }

 private:
  // What a row that is not wide may still grow by while wide ones are let in: most answers end long
  // before what was allowed.
  static constexpr std::uint32_t kGrowthTokens = 256;
  // Of all rows, so that what is under way never reaches the bound of the contract.
  static constexpr std::uint32_t kMovingMax = LUNA_SLICES_COPYING_MAX / 2;

  struct Entry {
    std::uint32_t row = 0;
    std::size_t home = 0;  // its group
    HeldRow rank;
    std::int64_t n_needed = 0;   // blocks that it does not hold yet, to its end
    std::int64_t n_leaving = 0;  // blocks at home that are being copied away
    bool is_blocked = false;
  };

  void collect(const Scene& scene) {
    const auto groups = scene.fleet.groups();
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (const HeldRow& wide : scene.fleet.memory_of(groups[g]).home.wide)
        entries_.push_back(entry_of(scene, wide, g));
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
      return a.rank < b.rank;
    });
    promised_.assign(entries_.size() * groups.size(), 0);
  }
  [[nodiscard]] static Entry entry_of(const Scene& scene, const HeldRow& wide, std::size_t home) {
    const std::uint32_t i = scene.book.index_of(wide.id);
    const Row row = scene.rows[i];
    const std::int64_t n_held = row.is_waiting() ? 0 : row->n_kv_blocks;
    const std::int64_t n_most = n_blocks_of(scene.rows, row.n_tokens_max());
    return {.row = i,
            .home = home,
            .rank = wide,
            .n_needed = std::max<std::int64_t>(n_most - n_held, 0),
            .n_leaving = scene.slices.of(i).n_leaving_tokens / scene.rows->kv_block_tokens};
  }
  [[nodiscard]] const Entry* find(std::uint32_t row) const {
    for (const Entry& entry : entries_)
      if (entry.row == row) return &entry;
    return nullptr;
  }

  // Blocks at home without which a row could not come to the end of its first partition that
  // leaves.
  [[nodiscard]] std::int64_t n_to_begin(const Scene& scene,
                                        std::uint32_t row,
                                        std::size_t home) const {
    const luna_prefix_row* const found = scene.rows.prefix(row, scene.out.groups()[home].device);
    if (found == nullptr) return n_partition_;
    // What it alone finds takes its room at once; of more than a partition, some can leave at once.
    const std::int64_t n_own =
        found->n_tokens / scene.rows->kv_block_tokens - std::int64_t{found->n_kv_blocks_shared};
    if (found->n_kv_blocks_shared == 0) return std::max(n_own + 1, n_partition_);
    // What it shares stays as long as the other row is there, and so does the partition round its
    // end.
    return n_own + 2 * n_partition_;
  }
  [[nodiscard]] std::int64_t growth_of(const Scene& scene, std::size_t g) const {
    std::int64_t n_blocks = 0;
    const Home& home = scene.fleet.memory_of(scene.fleet.groups()[g]).home;
    for (const HeldRow& held : home.held) {
      const std::uint32_t i = scene.book.index_of(held.id);
      const Row row = scene.rows[i];
      if (is_wide(i)) continue;
      const std::uint32_t n_most =
          std::min(row.n_tokens_max(), std::max(row->n_computed, row->n_prompt) + kGrowthTokens);
      const std::int64_t n_held = std::max<std::int64_t>(
          row->n_kv_blocks, row.is_prefilling() ? n_blocks_of(scene.rows, row->n_prompt) : 0);
      n_blocks += std::max<std::int64_t>(n_blocks_of(scene.rows, n_most) - n_held, 0);
    }
    return n_blocks;
  }
  // What the rows will take that were given to a group before and wait there.
  [[nodiscard]] static std::int64_t waiting_of(const Scene& scene, std::size_t g) {
    return scene.fleet.memory_of(scene.fleet.groups()[g])
        .home.n_waiting_blocks(scene.rows->kv_block_tokens);
  }
  // Free for wide rows, beside what others may take.
  [[nodiscard]] std::int64_t room(std::size_t g) const {
    return std::max<std::int64_t>(free_[g] - spared_[g], 0);
  }

  void keep_home(std::size_t e, std::int64_t n_blocks, std::int64_t n_spared) {
    const std::size_t home = entries_[e].home;
    const std::int64_t n =
        std::clamp<std::int64_t>(n_blocks, 0, std::max<std::int64_t>(free_[home] - n_spared, 0));
    free_[home] -= n;
    promised(e, home) += n;
  }
  // Beside what others may take as far as that goes, then at its cost.
  void keep_rest(const Scene& scene, std::size_t e) {
    const Entry& entry = entries_[e];
    for (const bool spares : {true, false}) {
      keep_home(e, n_missing(e), spares ? spared_[entry.home] : 0);
      while (n_missing(e) > 0) {
        std::size_t roomiest = entry.home;
        std::int64_t n_most = n_partition_ - 1;
        for (std::size_t g = 0; g < free_.size(); ++g) {
          const std::int64_t n = spares ? room(g) : free_[g];
          if (n <= n_most || !takes_parts(scene.out, entry.home, g)) continue;
          roomiest = g;
          n_most = n;
        }
        if (roomiest == entry.home) break;
        free_[roomiest] -= n_partition_;
        promised(e, roomiest) += n_partition_;
      }
    }
  }
  // What is being copied away comes free at home.
  [[nodiscard]] std::int64_t n_missing(std::size_t e) const {
    std::int64_t n = entries_[e].n_needed - entries_[e].n_leaving;
    for (std::size_t g = 0; g < free_.size(); ++g)
      n -= promised(e, g);
    return n;
  }
  void tell(const Scene& scene, std::size_t e) const {
    const auto books = scene.out.groups();
    for (std::size_t g = 0; g < books.size(); ++g)
      if (promised(e, g) > 0) scene.out.promise(entries_[e].row, books[g].device, promised(e, g));
  }

  // Blocks that the next step of a row may fill, and with decoding rows the one after.
  [[nodiscard]] static std::int64_t n_next(const Snapshot& rows, Row row) {
    const std::uint32_t n_tokens = row.is_decoding() ? 1 + row->n_draft + rows->kv_block_tokens
                                                     : std::min(row.n_wanted(), rows->n_rows_max);
    return n_blocks_of(rows, row->n_computed + n_tokens) - row->n_kv_blocks;
  }
  // Whether the row waits for partitions to leave.
  bool send(const Scene& scene, std::size_t e, std::int64_t n_blocks) {
    const Entry& entry = entries_[e];
    if (scene.slices.n_moving() >= kMovingMax) return true;  // its turn comes with their ends
    rooms_.clear();
    const auto books = scene.out.groups();
    for (std::size_t g = 0; g < books.size(); ++g)
      if (g != entry.home && promised(e, g) >= n_partition_)
        rooms_.push_back({books[g].device, static_cast<std::uint32_t>(promised(e, g))});
    bool sent = false;
    for (const SliceShare& share :
         choice_.choose(scene.rows, entry.row, static_cast<std::uint32_t>(n_blocks), rooms_))
      sent |= scene.out.slice(entry.row, share, kWide);
    return sent;
  }
  // Whether not one more token has a place in what it holds.
  [[nodiscard]] static bool fills_its_blocks(const Scene& scene, Row row) {
    return row->n_computed >= std::uint64_t{row->n_kv_blocks} * scene.rows->kv_block_tokens;
  }

  [[nodiscard]] std::int64_t n_until_whole(Row row) const {
    const std::int64_t n_held = row.is_waiting() ? 0 : row->n_kv_blocks;
    return n_partition_ - n_held % n_partition_;
  }
  static std::int64_t n_blocks_of(const Snapshot& rows, std::uint64_t n_tokens) {
    return static_cast<std::int64_t>((n_tokens + rows->kv_block_tokens - 1) /
                                     rows->kv_block_tokens);
  }
  std::int64_t& promised(std::size_t e, std::size_t g) { return promised_[e * free_.size() + g]; }
  [[nodiscard]] std::int64_t promised(std::size_t e, std::size_t g) const {
    return promised_[e * free_.size() + g];
  }

  std::int64_t n_partition_ = 1;        // blocks
  std::vector<Entry> entries_;          // the most senior first
  std::vector<std::int64_t> promised_;  // [entries, groups]: blocks
  std::vector<std::int64_t> free_;      // by group
  std::vector<std::int64_t>
      growth_;  // by group: blocks that others running there may take; empty: not known
  std::vector<std::int64_t> spared_;  // by group: blocks that wide rows leave to others if they can
  SliceChoice choice_;
  std::vector<SliceRoom> rooms_;
};

}  // namespace luna::scheduler_flowsplit
