// A step on its way to a worker, and what comes back of it. Pure: what a step may refer to is
// checked by whoever runs it.
#pragma once

#include "core/cluster/wire.hpp"
#include "core/model/program_builder.hpp"

#include <luna/abi/backend.h>
#include <luna/result.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace luna::cluster {

inline constexpr std::size_t kStepItemsMax = std::size_t{1} << 22U;  ///< of any array of a step

/// Partitions of a sequence that lie with another copy. Their blocks stand in the block table.
struct StepSlice {
  std::uint32_t seq = 0;
  std::uint32_t peer = 0;  ///< as in luna_slice
  std::uint32_t first_partition = 0;
  std::uint32_t n_partitions = 0;

  friend bool operator==(const StepSlice&, const StepSlice&) = default;
};

/// step: a luna_step of one lane. The arrays lie in `Step` as they lie in the ABI.
struct Step {
  std::uint32_t lane = 0;
  std::uint64_t number = 0;  ///< comes back in outputs and the end
  std::uint32_t block_table_stride = 0;
  std::vector<std::uint32_t> token_ids;      // [n_rows]
  std::vector<std::uint32_t> positions;      // [n_rows]
  std::vector<std::uint32_t> seq_first_row;  // [n_seqs + 1]
  std::vector<std::uint32_t> block_tables;   // [n_seqs, block_table_stride]
  std::vector<luna_kv_copy> kv_copies;
  std::vector<std::uint32_t> out_rows;     // [n_out_rows]
  std::vector<std::uint32_t> out_flags;    // [n_out_rows]
  std::vector<luna_seq_prune> seq_prunes;  // [n_seqs], or empty
  std::vector<StepSlice> slices;           // ascending by sequence, then by partition
};
/// Replaces what is in `bytes`, whose memory is used again. Block tables are sent as far as any
/// sequence of the step has positions; blocks of slices must stand in them, at their positions.
void encode_step(const luna_step& step,
                 std::uint32_t lane,
                 std::uint64_t number,
                 std::uint32_t kv_block_tokens,
                 Bytes& bytes);
/// Into arrays that are used again. Checks that they fit each other.
/// Errors  corrupt
Result<void> parse_step(std::span<const std::byte> payload, Step& step);
/// The longest payload of a step within these limits.
std::uint64_t step_bytes_max(const model::ProgramOptions& program, std::uint32_t n_kv_blocks);

/// output: one row of one kind. The row's bytes lie in the payload.
struct OutputHead {
  std::uint32_t lane = 0;
  std::uint32_t row = 0;   ///< of the step's out rows
  std::uint32_t kind = 0;  ///< LUNA_OUT_LOGITS or LUNA_OUT_CANDIDATES
  std::uint32_t pad = 0;
  std::uint64_t number = 0;
};
struct Output {
  OutputHead head;
  std::span<const std::byte> bytes;
};
/// Errors  corrupt
Result<Output> parse_output(std::span<const std::byte> payload);

/// done
struct Done {
  std::uint32_t lane = 0;
  std::uint64_t number = 0;
  luna_status status = LUNA_OK;
  std::uint64_t busy_ns = 0;
  std::uint64_t wait_ns = 0;
  std::string message;
  std::vector<std::uint64_t> slice_masses;  ///< [n_slices] of the step, as in luna_step
};
Bytes encode_done(const Done& done);
/// Errors  corrupt
Result<Done> parse_done(std::span<const std::byte> payload);

}  // namespace luna::cluster
