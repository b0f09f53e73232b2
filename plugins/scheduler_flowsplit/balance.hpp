// Which running row moves to another group, and whether that pays.
#pragma once

#include "plugins/scheduler_flowsplit/fleet.hpp"
#include "plugins/scheduler_flowsplit/group_judge.hpp"
#include "plugins/scheduler_flowsplit/reasons.hpp"
#include "plugins/scheduler_flowsplit/row_book.hpp"
#include "plugins/scheduler_flowsplit/row_slices.hpp"

#include <luna/scheduler.hpp>
#include <luna/step_cost.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace luna::scheduler_flowsplit {

/// Rows that moved lately stay where they are: as many as may be under way at once, in a ring.
class RecentMoves {
 public:
  void note(std::uint64_t id, std::uint64_t now_ns) {
    moves_[n_noted_++ % moves_.size()] = {id, now_ns};
  }
  [[nodiscard]] bool has(std::uint64_t id, std::uint64_t now_ns) const {
    return std::any_of(moves_.begin(), moves_.end(), [&](const Move& move) {
      return move.id == id && move.at_ns != 0 && now_ns - move.at_ns < kRestNs;
    });
  }

 private:
  // Long against a copy, short against a conversation.
  static constexpr std::uint64_t kRestNs = 5'000'000'000;
  struct Move {
    std::uint64_t id = 0;
    std::uint64_t at_ns = 0;
  };
  std::array<Move, 64> moves_{};
  std::size_t n_noted_ = 0;
};

/// A row moves from a group that is pressed, or that leaves, to one whose memory is below `idle`
/// and where nobody waits, when what all rows of both groups gain over its remaining tokens is more
/// than twice what the copy costs: its KV over the slowest link between the groups, and a pause of
/// two steps. Where no link was measured the copy is taken to cost as much as computing it anew,
/// which is what it saves at least. A row that lies in several groups stays. [step], owned by the
/// policy.
class Balance {
 public:
  struct Move {
    std::uint32_t row;
    std::uint32_t device;  ///< first of the group
    std::uint16_t reason;
  };

  /// What is looked at.
  struct Scene {
    const Snapshot& rows;
    Fleet& fleet;
    const RowBook& book;
    const RowSlices& slices;
    const Plan& out;
  };

  explicit Balance(const Thresholds& thresholds) : thresholds_(thresholds) {}

  /// The best move away from group `from` to the one whose steps are shortest, if any pays. Groups
  /// are those of the fleet.
  std::optional<Move> choose(const Scene& scene, std::size_t from) const {
    const auto& [rows, fleet, book, slices, out] = scene;
    const GroupState& source = fleet.groups()[from];
    const GroupMemory& memory = fleet.memory_of(source);
    const bool leaves = out.groups()[from].is_leaving;
    if (!leaves && (!memory.is_pressed || memory.home.held.size() < 2)) return std::nullopt;
    const std::optional<std::size_t> to = find_target(scene, from);
    if (!to) return std::nullopt;
    const GroupState& target = fleet.groups()[*to];
    const Pair pair{source, target, memory.home, fleet.memory_of(target).home};
    const double ns_per_block = copy_ns_per_block(rows, pair);
    std::optional<Move> best;
    double best_gain = 0.0;
    for (const HeldRow& held : memory.home.held) {
      const std::uint32_t i = book.index_of(held.id);
      if (!may_move(rows[i], pair, out.groups()[*to]) || out.is_planned(i)) continue;
      if (out.is_spread(i) || slices.is_sliced(i)) continue;
      if (recent_.has(held.id, rows->now_ns)) continue;
      const double gain =
          gain_ns(rows[i], pair) - kGainOverCost * cost_ns(rows[i], pair, ns_per_block);
      const bool is_better = gain > best_gain || (leaves && !best);
      if (!is_better) continue;
      best_gain = gain;
      best = Move{i, target.first_device, leaves ? kDrain : kBalance};
    }
    return best;
  }
  void note(Row row, std::uint64_t now_ns) { recent_.note(row->id, now_ns); }

 private:
  struct Pair {
    const GroupState& from;
    const GroupState& to;
    const Home& from_home;
    const Home& to_home;
  };

  // What a fit can be wrong by.
  static constexpr double kGainOverCost = 2.0;
  // Answers end long before what was allowed, as a rule.
  static constexpr std::uint32_t kOutputMax = 256;
  static constexpr double kPauseSteps = 2.0;

  // Of the groups that take rows and attend alike the one whose steps are shortest.
  [[nodiscard]] std::optional<std::size_t> find_target(const Scene& scene, std::size_t from) const {
    Fleet& fleet = scene.fleet;
    std::optional<std::size_t> best;
    double best_ns = 0.0;
    for (std::size_t to = 0; to < fleet.groups().size(); ++to) {
      if (to == from || !takes_rows(scene, to)) continue;
      const GroupState& target = fleet.groups()[to];
      if (!attend_alike(scene.rows, fleet.groups()[from], target)) continue;
      const double ns = decode_ns(target, fleet.memory_of(target).home);
      if (best && ns >= best_ns) continue;
      best = to;
      best_ns = ns;
    }
    return best;
  }
  [[nodiscard]] bool takes_rows(const Scene& scene, std::size_t to) const {
    Fleet& fleet = scene.fleet;
    const GroupState& group = fleet.groups()[to];
    const GroupMemory& memory = fleet.memory_of(group);
    return !memory.is_pressed && group.memory_share() < thresholds_.idle &&
           memory.home.n_waiting == 0 && !scene.out.groups()[to].is_leaving &&
           memory.home.held.size() < scene.rows->n_seqs_max;
  }
  static bool may_move(Row row, const Pair& pair, const GroupBooks& to) {
    if (!row.is_decoding() || row->moving_to != LUNA_NO_DEVICE) return false;
    const std::int64_t n_left = to.n_blocks_free - to.n_blocks_reserve;
    return std::int64_t{row->n_kv_blocks} + 1 <= n_left && pair.to.n_blocks_total > 0;
  }

  // Between the devices of one layer; 0: not measured.
  static double copy_ns_per_block(const Snapshot& rows, const Pair& pair) {
    double slowest = 0.0;
    for (std::uint32_t l = 0; l < rows->n_links; ++l) {
      const luna_link_row& link = rows.link(l);
      const bool is_between =
          belongs(link.from, rows, pair.from) && belongs(link.to, rows, pair.to);
      if (!is_between || link.bytes_per_ns <= 0.0) continue;
      const luna_device_row& device = rows.device(pair.from.first_row);
      const double block_bytes =
          static_cast<double>(device.kv_bytes_total) / std::max(device.n_kv_blocks_total, 1U);
      slowest = std::max(slowest, block_bytes / link.bytes_per_ns);
    }
    return slowest;
  }
  static bool belongs(std::uint32_t device, const Snapshot& rows, const GroupState& group) {
    for (std::uint32_t d = 0; d < group.n_devices; ++d)
      if (rows.device(group.first_row + d).device == device) return true;
    return false;
  }

  static double decode_ns(const GroupState& group, const Home& home) {
    return group.cost.fixed_ns + static_cast<double>(home.n_decoding) * group.cost.row_ns +
           static_cast<double>(home.n_kv_tokens) * group.cost.kv_ns;
  }
  static double cost_ns(Row row, const Pair& pair, double ns_per_block) {
    const double copy = ns_per_block > 0.0 ? ns_per_block * row->n_kv_blocks
                                           : pair.to.cost.chunk_ns(0, row->n_computed);
    return copy + kPauseSteps * decode_ns(pair.to, pair.to_home);
  }
  // Of the row itself: shorter steps. Of those it leaves: its part of each step; of those it joins
  // that part is a loss.
  static double gain_ns(Row row, const Pair& pair) {
    const double left = std::min(row->n_generated_max - row->n_generated, kOutputMax);
    const double part_there = pair.from.cost.chunk_ns(row, 1);
    const double part_here = pair.to.cost.chunk_ns(row, 1);
    const double own =
        decode_ns(pair.from, pair.from_home) - (decode_ns(pair.to, pair.to_home) + part_here);
    const double others_there = static_cast<double>(pair.from_home.n_decoding) - 1.0;
    const double others_here = static_cast<double>(pair.to_home.n_decoding);
    return left * (own + others_there * part_there - others_here * part_here);
  }

  Thresholds thresholds_;
  RecentMoves recent_;
};

}  // namespace luna::scheduler_flowsplit
