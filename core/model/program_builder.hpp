// A device's part of a model as an op program.
#pragma once

#include "core/model/compiled_model.hpp"
#include "core/model/model_config.hpp"
#include "core/model/placement.hpp"

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
};

/// The shards of ranges in layer order: rank r is device r.
std::vector<ShardSpec> make_shards(std::span<const LayerRange> ranges);

/// A weight of a shard, at its place in compile()'s list.
struct ShardWeight {
  std::string name;  // in the file
  luna_weight_desc desc{};
  std::uint64_t file_bytes = 0;  // for planning
};

/// Names of the shard's weights, in the order of compile()'s list. A tied head is the embedding:
/// once where both are on one device, in each shard otherwise.
std::vector<std::string> shard_weight_names(const ModelConfig& config, const ShardSpec& shard);

/// How a program shall compute.
struct ProgramOptions {
  std::uint32_t numerics = LUNA_NUMERICS_I12;
  std::uint32_t kv_dtype = LUNA_DTYPE_BF16;
  std::uint32_t kv_block_tokens = 32;
  bool prunes = false;  // prompts lose part of their KV
  std::uint32_t n_candidates = 64;
  std::uint32_t n_lanes = 1;  // steps in flight
  StepLimits limits;
};

/// The layout of a shard's KV blocks.
luna_kv_layout shard_kv_layout(const ModelConfig& config,
                               const ShardSpec& shard,
                               const ProgramOptions& options);

/// Writes the program of a shard of a llama. [start-up]
///
/// weights  as shard_weight_names() orders them
/// Returns  a verified program: tokens or hidden states in, candidates and logits or hidden out
/// Errors   invalid_argument: limits or shapes that no program may have
/// Source   Touvron et al. 2023 (LLaMA), section 2.2; Ainslie et al. 2023 (GQA)
Result<Program> build_program(const ModelConfig& config,
                              const ShardSpec& shard,
                              std::span<const ShardWeight> weights,
                              const ProgramOptions& options);

}  // namespace luna::model
