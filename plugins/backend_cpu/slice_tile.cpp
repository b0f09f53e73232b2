#include "slice_tile.hpp"

#include "schedule.hpp"

#include <algorithm>
#include <bit>

namespace luna::cpu {
namespace {

constexpr std::uint64_t kLineFloats = 16;
constexpr std::uint64_t kVerdictFloats = sizeof(SliceVerdict) / sizeof(float);

std::uint64_t part_floats(const SliceShape& shape, const TileRun& run, const TilePart& part) {
  return std::uint64_t{part.n_nodes} * run.rows.n_rows * shape.n_kv_heads * shape.group_floats();
}

}  // namespace

std::uint32_t tile_list_max(const SliceShape& shape) {
  // Each part has a state of each head at least.
  return static_cast<std::uint32_t>(slice_tile_bytes(shape) /
                                    (shape.n_heads * shape.state_floats() * sizeof(float)));
}

std::uint64_t tile_state_bytes(const SliceShape& shape) {
  return slice_tile_bytes(shape) +
         LUNA_SLICE_PEERS_MAX * (kLineFloats * sizeof(float) + sizeof(SliceVerdict));
}

/// Pieces of what lies at home, cut at multiples of kHomePartitions.
template <typename Body>
void TileCursor::for_home_parts(PartitionRange range, Body&& body) {
  while (!range.is_empty()) {
    const std::uint32_t border = (range.first / kHomePartitions + 1) * kHomePartitions;
    const PartitionRange piece{range.first, std::min(border, range.last)};
    body(piece, nullptr);
    range.first = piece.last;
  }
}

/// Calls body(partitions, slice or null) for what the run sees, ascending.
template <typename Body>
void TileCursor::for_parts(const RowRun& run, Body&& body) const {
  const AttendUnit unit{run.first_slot, run.n_rows, window_, 0};
  const PartitionRange all = unit.partitions();
  std::uint32_t at = all.first;
  for (const luna_slice& slice : slices_) {
    if (slice.seq != run.seq) break;
    const PartitionRange seen{std::max(slice.first_partition, at),
                              slice.first_partition + slice.n_partitions};
    if (seen.is_empty()) continue;
    for_home_parts({at, seen.first}, body);
    body(seen, &slice);
    at = seen.last;
  }
  for_home_parts({at, all.last}, body);
}

/// Rows from row_ on that see the same partitions.
RowRun TileCursor::next_run() const {
  const std::uint32_t end = step_.seq_first_row[seq_ + 1];
  const std::uint32_t position = step_.positions[row_];
  const std::uint32_t border = LUNA_PARTITION_TOKENS - position % LUNA_PARTITION_TOKENS;
  const std::uint32_t most = std::min({end - row_, border, kRunRows});
  std::uint32_t n = 1;
  while (n < most && step_.positions[row_ + n] == position + n)
    ++n;
  return {seq_, row_, n, position};
}

TileCursor::Cost TileCursor::cost_of(const RowRun& run) const {
  Cost cost;
  for_parts(run, [&](PartitionRange partitions, const luna_slice* slice) {
    const std::uint32_t n = partitions.last - partitions.first;
    ++cost.n_parts;
    cost.n_nodes += count_nodes(partitions.first, n);
    if (slice == nullptr) return;
    ++cost.n_remote;
    cost.n_blocks += std::uint64_t{n} * shape_.blocks_per_partition();
  });
  return cost;
}

std::uint32_t TileCursor::rows_that_fit(const RowRun& run,
                                        const Cost& cost,
                                        std::uint64_t bytes_max) const {
  const std::uint64_t row_bytes =
      std::uint64_t{cost.n_nodes} * shape_.n_kv_heads * shape_.group_floats() * sizeof(float);
  const std::uint64_t query_bytes = cost.n_remote * shape_.query_floats() * sizeof(float);
  const std::uint64_t list_bytes = request_bytes_ +
                                   cost.n_remote * (sizeof(SliceRun) + sizeof(SliceRange)) +
                                   cost.n_blocks * sizeof(std::uint32_t);
  if (list_bytes >= bytes_max) return 0;
  return static_cast<std::uint32_t>(std::min({std::uint64_t{run.n_rows},
                                              (bytes_max - state_bytes_) / row_bytes,
                                              (bytes_max - list_bytes) / query_bytes}));
}

/// Whether there was room for the run at the cursor, or its beginning.
bool TileCursor::take_run(SliceTile* tile) {
  if (tile->n_runs == tile->list_max) return false;
  TileRun taken{next_run(), tile->n_parts, 0};
  const Cost cost = cost_of(taken.rows);
  if (cost.n_remote == 0) {
    taken.rows.n_rows = std::min(taken.rows.n_rows, kAttendTaskRows);
  } else {
    taken.rows.n_rows = rows_that_fit(taken.rows, cost, tile->bytes_max);
    if (taken.rows.n_rows == 0 || cost.n_parts > tile->list_max - tile->n_parts) return false;
    for_parts(taken.rows, [&](PartitionRange partitions, const luna_slice* slice) {
      const std::uint32_t n = partitions.last - partitions.first;
      tile->parts[tile->n_parts++] = {partitions, count_nodes(partitions.first, n), slice, 0};
      if (slice != nullptr) tile->peers |= std::uint64_t{1} << slice->peer;
    });
    taken.n_parts = cost.n_parts;
    const std::uint64_t n_rows = taken.rows.n_rows;
    state_bytes_ +=
        n_rows * cost.n_nodes * shape_.n_kv_heads * shape_.group_floats() * sizeof(float);
    request_bytes_ += cost.n_remote * (n_rows * shape_.query_floats() * sizeof(float) +
                                       sizeof(SliceRun) + sizeof(SliceRange)) +
                      cost.n_blocks * sizeof(std::uint32_t);
  }
  tile->runs[tile->n_runs++] = taken;
  row_ += taken.rows.n_rows;
  return true;
}

void TileCursor::fill(SliceTile* tile) {
  tile->n_runs = 0;
  tile->n_parts = 0;
  tile->peers = 0;
  state_bytes_ = 0;
  request_bytes_ = 0;
  while (seq_ < step_.n_seqs && take_run(tile)) {
    if (row_ != step_.seq_first_row[seq_ + 1]) continue;
    while (!slices_.empty() && slices_[0].seq == seq_)
      slices_ = slices_.subspan(1);
    ++seq_;
  }
  tile->has_more = seq_ < step_.n_seqs;
  place_states(tile);
}

/// Peer after peer, as their answers come, each with a verdict; then what is computed at home.
void TileCursor::place_states(SliceTile* tile) const {
  std::uint64_t at = 0;
  const auto place = [&](auto&& is_one) {
    for (const TileRun& run : tile->all_runs())
      for (std::uint32_t p = run.first_part; p < run.first_part + run.n_parts; ++p) {
        TilePart& part = tile->parts[p];
        if (!is_one(part)) continue;
        part.states = at;
        at += part_floats(shape_, run, part);
      }
  };
  for (std::uint64_t left = tile->peers; left != 0; left &= left - 1) {
    const auto peer = static_cast<std::uint32_t>(std::countr_zero(left));
    place([&](const TilePart& part) { return !part.is_home() && part.slice->peer == peer; });
    at = (at + kVerdictFloats + kLineFloats - 1) / kLineFloats * kLineFloats;
  }
  place([](const TilePart& part) { return part.is_home(); });
}

PeerStates states_of_peer(const SliceTile& tile, const SliceShape& shape, std::uint32_t peer) {
  PeerStates states;
  for (const TileRun& run : tile.all_runs())
    for (const TilePart& part : tile.parts_of(run)) {
      if (part.is_home() || part.slice->peer != peer) continue;
      if (states.n_floats == 0) states.first = part.states;
      states.n_floats += part_floats(shape, run, part);
    }
  return states;
}

}  // namespace luna::cpu
