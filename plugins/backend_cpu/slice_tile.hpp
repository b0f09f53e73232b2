// How the attention of a step with slices is cut into tiles: rows whose states, their own and those
// of other devices, fit a fixed piece of memory together.
#pragma once

#include "attend_share.hpp"
#include "slice_wire.hpp"

#include <luna/backend_blocks.hpp>

#include <cstdint>
#include <span>

namespace luna::cpu {

/// Consecutive rows of one sequence at consecutive positions.
struct RowRun {
  std::uint32_t seq = 0;
  std::uint32_t first_row = 0;
  std::uint32_t n_rows = 0;
  std::uint32_t first_slot = 0;
};

/// Partitions of a run that lie in one place.
struct TilePart {
  PartitionRange partitions;
  std::uint32_t n_nodes = 0;
  const luna_slice* slice = nullptr;  // of the step; null: they lie at home
  std::uint64_t states = 0;           // floats from the start of the tile's memory

  [[nodiscard]] bool is_home() const { return slice == nullptr; }
  [[nodiscard]] std::uint32_t n_partitions() const { return partitions.last - partitions.first; }
};
/// A run and its parts, ascending; none: all of it lies at home.
struct TileRun {
  RowRun rows;
  std::uint32_t first_part = 0;
  std::uint32_t n_parts = 0;
};

/// What is attended to together. Its arrays belong to the schedule's memory.
struct SliceTile {
  TileRun* runs = nullptr;    // [list_max]
  TilePart* parts = nullptr;  // [list_max]
  std::uint32_t list_max = 0;
  std::uint64_t bytes_max = 0;  // of states, and of what is sent
  std::uint32_t n_runs = 0;
  std::uint32_t n_parts = 0;
  std::uint64_t peers = 0;  // a bit for each that is asked
  bool has_more = false;    // whether another tile follows

  [[nodiscard]] std::span<const TileRun> all_runs() const { return {runs, n_runs}; }
  [[nodiscard]] std::span<const TilePart> parts_of(const TileRun& run) const {
    return {parts + run.first_part, run.n_parts};
  }
};
/// Runs, and parts, that a tile has room for.
std::uint32_t tile_list_max(const SliceShape& shape);
/// Bytes of a tile's states, with the verdicts that come behind those of each peer.
std::uint64_t tile_state_bytes(const SliceShape& shape);

/// What a tile asks of one peer: the floats of its states lie together, a verdict after them.
struct PeerStates {
  std::uint64_t first = 0;
  std::uint64_t n_floats = 0;  // 0: nothing is asked
};

/// Cuts one op's attention into tiles, row after row. A value; used by the leader alone.
class TileCursor {
 public:
  /// shape   with the heads of this op
  /// window  of this op
  TileCursor(const luna_step& step, const SliceShape& shape, std::uint32_t window)
      : step_(step), shape_(shape), window_(window), slices_(slices_of(step)) {}

  /// The next tile; one at least, which has no runs if the step has none.
  void fill(SliceTile* tile);

 private:
  /// What a run takes of a tile.
  struct Cost {
    std::uint32_t n_parts = 0;
    std::uint32_t n_remote = 0;
    std::uint32_t n_nodes = 0;
    std::uint64_t n_blocks = 0;  // that lie elsewhere
  };
  /// Rows that one part of a tile may have: enough that its kernel call pays.
  static constexpr std::uint32_t kRunRows = 32;
  /// Partitions of a piece at home, so that several threads can share a long context.
  static constexpr std::uint32_t kHomePartitions = 4;

  template <typename Body>
  void for_parts(const RowRun& run, Body&& body) const;
  template <typename Body>
  static void for_home_parts(PartitionRange range, Body&& body);
  [[nodiscard]] RowRun next_run() const;
  [[nodiscard]] Cost cost_of(const RowRun& run) const;
  [[nodiscard]] std::uint32_t rows_that_fit(const RowRun& run,
                                            const Cost& cost,
                                            std::uint64_t bytes_max) const;
  bool take_run(SliceTile* tile);
  void place_states(SliceTile* tile) const;

  const luna_step& step_;
  const SliceShape shape_;
  const std::uint32_t window_;
  std::span<const luna_slice> slices_;  // from those of sequence seq_ on
  std::uint32_t seq_ = 0;
  std::uint32_t row_ = 0;            // the next one
  std::uint64_t state_bytes_ = 0;    // of the tile so far
  std::uint64_t request_bytes_ = 0;  // likewise, to all peers together
};

/// Of a tile whose states are placed.
PeerStates states_of_peer(const SliceTile& tile, const SliceShape& shape, std::uint32_t peer);

}  // namespace luna::cpu
