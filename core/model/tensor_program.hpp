// A tensor split: every device computes a part of the columns of every layer, and all of them meet
// four times a layer. No sum is split, so the bits are those of one device.
#pragma once

#include "core/model/program_builder.hpp"

#include <luna/column_share.hpp>
#include <luna/result.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace luna::model {

/// The shards of a tensor split, all layers in each: rank r is device r. The last has the embedding
/// and the outputs, since its share of the KV heads is never the larger one.
///
/// Errors  unsupported, with the reason: a family that is not split, fewer KV heads than ranks,
/// rows
///         too few to share
Result<std::vector<ShardSpec>> make_tensor_shards(const ModelConfig& config, std::uint32_t n_ranks);

/// The rows of its weights that a shard holds, in the order of compile()'s list: query, key and
/// value rows by KV heads, all others in units of 32 rows; of the vocabulary a part for the head,
/// and in the last shard all of it for the embedding.
std::vector<WeightPart> tensor_weight_parts(const ModelConfig& config, const ShardSpec& shard);

/// Floats of the largest message that ranks send each other in steps of these sizes.
std::uint64_t tensor_message_floats(const ModelConfig& config,
                                    std::uint32_t n_ranks,
                                    std::uint32_t n_rows_max,
                                    std::uint32_t n_out_rows_max);

/// The KV heads of a shard.
ColumnShare tensor_kv_heads(const ModelConfig& config, const ShardSpec& shard);

/// Writes the program of a shard of a tensor split. [start-up]
///
/// weights  as tensor_weight_parts() orders them
/// Errors   as build_program()
Result<Program> build_tensor_program(const ModelConfig& config,
                                     const ShardSpec& shard,
                                     std::span<const ShardWeight> weights,
                                     const ProgramLimits& limits,
                                     std::uint32_t n_candidates);

}  // namespace luna::model
