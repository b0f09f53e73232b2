// What the owner of sequences and a device that holds slices of them tell each other.
//
// A request asks for one layer's attention of some rows. It is two messages, because a receiver
// must know a message's size: a header, then what it announces, one after the other:
//   queries   [n_rows][n_heads * head_dim] FP32
//   runs      [n_runs]
//   slices    [n_slices], run after run
//   blocks    [n_blocks], slice after slice
// The answer is one message: for each run and each of its slices, KV head after KV head, the states
// of the nodes that cover the slice, [n_nodes, n_rows, heads of a KV head, state_floats]; then a
// verdict.
#pragma once

#include "kernels/cpu/kernel_set.hpp"

#include <luna/abi/backend.h>
#include <luna/result.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace luna::cpu {

struct SliceHeader {
  std::uint32_t magic = 0;
  std::uint32_t serial = 0;  // comes back in the verdict
  std::uint32_t layer = 0;   // of the program's KV
  std::uint32_t n_rows = 0;
  std::uint32_t n_runs = 0;
  std::uint32_t n_slices = 0;
  std::uint32_t n_blocks = 0;
  std::uint32_t pad = 0;
  std::uint64_t body_bytes = 0;
  std::uint64_t state_bytes = 0;  // of the answer
};
inline constexpr std::uint32_t kSliceMagic = 0x31534C4CU;  // "LLS1"

/// Rows of one sequence at consecutive positions.
struct SliceRun {
  std::uint32_t first_position = 0;
  std::uint32_t n_rows = 0;
  std::uint32_t n_slices = 0;
  std::uint32_t pad = 0;
};
struct SliceRange {
  std::uint32_t first_partition = 0;
  std::uint32_t n_partitions = 0;
};
struct SliceVerdict {
  std::uint32_t serial = 0;
  luna_status status = LUNA_OK;
  std::uint64_t pad = 0;
};

/// Sizes that both sides know of the program. A value.
struct SliceShape {
  std::uint32_t n_heads = 0;
  std::uint32_t n_kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t block_tokens = 0;
  std::uint32_t n_positions_max = 0;

  [[nodiscard]] std::uint32_t group_heads() const { return n_heads / n_kv_heads; }
  [[nodiscard]] std::uint64_t state_floats() const {
    return static_cast<std::uint64_t>(kernels::state_floats(static_cast<int>(head_dim)));
  }
  /// Of one node, row and KV head.
  [[nodiscard]] std::uint64_t group_floats() const { return group_heads() * state_floats(); }
  [[nodiscard]] std::uint64_t query_floats() const { return std::uint64_t{n_heads} * head_dim; }
  [[nodiscard]] std::uint32_t blocks_per_partition() const {
    return LUNA_PARTITION_TOKENS / block_tokens;
  }
};
/// That of a program's attention with most heads; all zero where it has none.
SliceShape slice_shape_of(const luna_program& program);
/// Bytes of states that a tile may have (slice_tile.hpp): enough for one row, all of whose
/// partitions lie apart, and for a few rows where contexts are short.
std::uint64_t slice_tile_bytes(const SliceShape& shape);
/// Of the largest message.
std::uint64_t slice_message_bytes(const SliceShape& shape);
/// Nodes that cover a range of partitions.
std::uint32_t count_nodes(std::uint32_t first_partition, std::uint32_t n_partitions);

/// Where the parts of a request's body lie. Views into it.
struct SliceBody {
  const float* queries = nullptr;
  std::span<const SliceRun> runs;
  std::span<const SliceRange> slices;
  std::span<const std::uint32_t> blocks;

  /// Bytes of the body that a header announces: each count fits 32 bits, so no sum overflows.
  static std::uint64_t bytes(const SliceHeader& header, const SliceShape& shape);
  static SliceBody place(const SliceHeader& header, const SliceShape& shape, const void* body);
};

/// Whether a header may be believed as far as its sizes go.
///
/// message_bytes  of the largest message
/// Errors         corrupt, with the field
Result<void> check_slice_header(const SliceHeader& header,
                                const SliceShape& shape,
                                std::uint64_t message_bytes);
/// Every count, position, partition and block of a request whose header has passed.
///
/// n_kv_blocks  of the guest's buffer
/// Errors       corrupt, with the field
Result<void> check_slice_body(const SliceHeader& header,
                              const SliceShape& shape,
                              const SliceBody& body,
                              std::uint64_t n_kv_blocks);

}  // namespace luna::cpu
