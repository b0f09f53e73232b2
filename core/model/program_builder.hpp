// A device's part of a model as an op program.
#pragma once

#include "core/model/compiled_model.hpp"
#include "core/model/model_config.hpp"
#include "core/model/placement.hpp"

#include <luna/column_share.hpp>
#include <luna/op_program.hpp>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace luna::model {

/// What one device computes of a model.
struct ShardSpec {
  LayerRange layers;
  bool has_embedding = true;               // else hidden states come from the rank before
  bool has_head = true;                    // else hidden states go to the rank after
  std::optional<std::uint32_t> recv_from;  // rank; set where there is no embedding
  std::optional<std::uint32_t> send_to;    // rank; set where there is no head
  std::uint32_t tensor_rank = 0;           // of a tensor split: its part of every layer
  std::uint32_t n_tensor_ranks = 1;

  [[nodiscard]] bool is_tensor_part() const { return n_tensor_ranks > 1; }
};

/// The shards of ranges in layer order: rank r is device r.
std::vector<ShardSpec> make_shards(std::span<const LayerRange> ranges);

/// A weight of a shard, at its place in compile()'s list.
struct ShardWeight {
  std::string name;                    // in the file
  luna_weight_desc desc{};             // of the rows that are here
  std::uint64_t file_bytes = 0;        // for planning
  std::uint64_t first_row = 0;         // in the file's weight
  std::uint64_t n_rows_elsewhere = 0;  // of the file's weight: a tensor split's other shards

  [[nodiscard]] std::uint64_t n_rows_total() const { return desc.n_rows + n_rows_elsewhere; }
};

/// What a shard holds of a weight of the file.
struct WeightPart {
  std::string name;
  std::optional<ColumnShare> rows;  // none: all
};

/// The rows of a weight that was described whole.
ShardWeight take_rows(ShardWeight weight, const ColumnShare& rows);

/// The shard's weights, in the order of compile()'s list. A tied head is the embedding:
/// once where both are on one device, in each shard otherwise.
std::vector<WeightPart> shard_weight_parts(const ModelConfig& config, const ShardSpec& shard);
/// Their names in the file: what a shard needs to be there.
std::vector<std::string> shard_weight_names(const ModelConfig& config, const ShardSpec& shard);

/// How a program shall compute.
struct ProgramOptions {
  std::uint32_t numerics = LUNA_NUMERICS_I12;
  std::uint32_t kv_dtype = LUNA_DTYPE_BF16;
  std::uint32_t kv_block_tokens = 32;
  bool prunes = false;  // prompts lose part of their KV
  std::uint32_t n_candidates = 64;
  std::uint32_t n_lanes = 1;  // steps in flight
  /// Other devices that hold slices of its sequences, and it of theirs; 0: all KV lies on one.
  std::uint32_t n_slice_peers = 0;
  StepLimits limits;
};

/// The layout of a shard's KV blocks.
luna_kv_layout shard_kv_layout(const ModelConfig& config,
                               const ShardSpec& shard,
                               const ProgramOptions& options);

/// Writes the program of a shard. [start-up]
///
/// weights  as shard_weight_parts() orders them
/// Returns  a verified program: tokens or hidden states in, candidates and logits or hidden out
/// Errors   invalid_argument: limits or shapes that no program may have; unsupported: pruning of
///          sliding windows
Result<Program> build_program(const ModelConfig& config,
                              const ShardSpec& shard,
                              std::span<const ShardWeight> weights,
                              const ProgramOptions& options);

}  // namespace luna::model
