#include "slice_wire.hpp"

#include "attend_share.hpp"

#include <luna/op_rules.hpp>

#include <algorithm>
#include <string>

namespace luna::cpu {
namespace {

/// Room for the states of a tile. Large enough that a message costs little beside what it carries,
/// small enough that every pair of devices can have a few.
constexpr std::uint64_t kTileBytes = std::uint64_t{1} << 19;

Error corrupt(const char* field, std::uint64_t value) {
  return {Code::corrupt, std::string("queries: ") + field + " = " + std::to_string(value)};
}

}  // namespace

static_assert(sizeof(SliceHeader) == 48 && sizeof(SliceRun) == 16 && sizeof(SliceRange) == 8 &&
              sizeof(SliceVerdict) == 16);

SliceShape slice_shape_of(const luna_program& program) {
  SliceShape shape;
  for (std::uint32_t i = 0; i < program.n_ops; ++i)
    if (program.ops[i].op == LUNA_OP_ATTEND)
      shape.n_heads =
          std::max(shape.n_heads, OpReader(program, program.ops[i]).attr(LUNA_ATTEND_N_HEADS));
  if (shape.n_heads == 0) return shape;
  shape.n_kv_heads = program.kv.n_kv_heads;
  shape.head_dim = program.kv.head_dim;
  shape.block_tokens = program.kv.block_tokens;
  shape.n_positions_max = program.n_positions_max;
  return shape;
}

std::uint64_t slice_tile_bytes(const SliceShape& shape) {
  const std::uint64_t row_bytes =
      shape.n_heads * shape.state_floats() * sizeof(float) * n_partitions_of(shape.n_positions_max);
  return (std::max(kTileBytes, row_bytes) + 63) / 64 * 64;
}

std::uint64_t slice_message_bytes(const SliceShape& shape) {
  return slice_tile_bytes(shape) + 64;  // a verdict after the states
}

std::uint32_t count_nodes(std::uint32_t first_partition, std::uint32_t n_partitions) {
  kernels::TreeNode nodes[kernels::kTreeNodesMax];
  return static_cast<std::uint32_t>(
      kernels::cover_partitions(first_partition, n_partitions, nodes));
}

std::uint64_t SliceBody::bytes(const SliceHeader& header, const SliceShape& shape) {
  return header.n_rows * shape.query_floats() * sizeof(float) + header.n_runs * sizeof(SliceRun) +
         header.n_slices * sizeof(SliceRange) + header.n_blocks * sizeof(std::uint32_t);
}

SliceBody SliceBody::place(const SliceHeader& header, const SliceShape& shape, const void* body) {
  SliceBody placed;
  placed.queries = static_cast<const float*>(body);
  const auto* runs =
      reinterpret_cast<const SliceRun*>(placed.queries + header.n_rows * shape.query_floats());
  placed.runs = {runs, header.n_runs};
  const auto* slices = reinterpret_cast<const SliceRange*>(runs + header.n_runs);
  placed.slices = {slices, header.n_slices};
  placed.blocks = {reinterpret_cast<const std::uint32_t*>(slices + header.n_slices),
                   header.n_blocks};
  return placed;
}

Result<void> check_slice_header(const SliceHeader& header,
                                const SliceShape& shape,
                                std::uint64_t message_bytes) {
  if (header.magic != kSliceMagic) return corrupt("magic", header.magic);
  if (header.n_rows == 0) return corrupt("n_rows", 0);
  if (header.body_bytes > message_bytes || header.body_bytes != SliceBody::bytes(header, shape))
    return corrupt("body_bytes", header.body_bytes);
  if (header.state_bytes > message_bytes - sizeof(SliceVerdict))
    return corrupt("state_bytes", header.state_bytes);
  return {};
}

Result<void> check_slice_body(const SliceHeader& header,
                              const SliceShape& shape,
                              const SliceBody& body,
                              std::uint64_t n_kv_blocks) {
  std::uint64_t n_rows = 0;
  std::uint64_t n_slices = 0;
  std::uint64_t n_blocks = 0;
  std::uint64_t n_states = 0;  // of a head
  for (const SliceRun& run : body.runs) {
    const std::uint64_t end = std::uint64_t{run.first_position} + run.n_rows;
    if (run.n_rows == 0 || run.n_rows > header.n_rows) return corrupt("run.n_rows", run.n_rows);
    if (end > shape.n_positions_max) return corrupt("run.first_position", run.first_position);
    if (run.n_slices == 0 || run.n_slices > header.n_slices - n_slices)
      return corrupt("run.n_slices", run.n_slices);
    n_rows += run.n_rows;
    for (const SliceRange& slice : body.slices.subspan(n_slices, run.n_slices)) {
      const std::uint64_t slice_end = std::uint64_t{slice.first_partition} + slice.n_partitions;
      if (slice.n_partitions == 0 || slice_end * LUNA_PARTITION_TOKENS > run.first_position)
        return corrupt("slice.n_partitions", slice.n_partitions);
      n_blocks += std::uint64_t{slice.n_partitions} * shape.blocks_per_partition();
      n_states +=
          std::uint64_t{run.n_rows} * count_nodes(slice.first_partition, slice.n_partitions);
    }
    n_slices += run.n_slices;
  }
  if (n_rows != header.n_rows) return corrupt("n_rows", header.n_rows);
  if (n_slices != header.n_slices) return corrupt("n_slices", header.n_slices);
  if (n_blocks != header.n_blocks) return corrupt("n_blocks", header.n_blocks);
  if (n_states * shape.n_heads * shape.state_floats() * sizeof(float) != header.state_bytes)
    return corrupt("state_bytes", header.state_bytes);
  for (const std::uint32_t block : body.blocks)
    if (block >= n_kv_blocks) return corrupt("block", block);
  return {};
}

}  // namespace luna::cpu
