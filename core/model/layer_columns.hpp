// How the columns of a layer's activations are shared out over the devices of a tensor split.
#pragma once

#include "core/model/layer_weight.hpp"
#include "core/model/model_config.hpp"
#include "core/model/program_builder.hpp"

#include <luna/column_share.hpp>

#include <cstdint>
#include <optional>

namespace luna::model {

// Two strips of 16 columns, what kernels compute at a time: shares differ by few of them, and no
// device computes a part of a strip.
inline constexpr std::uint32_t kColumnUnit = 32;

/// Columns of an activation, which are rows of a weight. A value.
struct Columns {
  std::uint32_t count = 0;
  std::uint32_t unit = kColumnUnit;

  [[nodiscard]] ColumnShare share(const ShardSpec& shard) const {
    return column_share(count, unit, shard.tensor_rank, shard.n_tensor_ranks);
  }
};

/// Query heads stay with their KV head.
inline Columns query_columns(const ModelConfig& config) {
  const std::uint32_t group = config.n_heads / config.n_kv_heads;
  return {config.n_heads * config.head_dim, group * config.head_dim};
}
inline Columns kv_columns(const ModelConfig& config) {
  return {config.n_kv_heads * config.head_dim, config.head_dim};
}
inline Columns hidden_columns(const ModelConfig& config) {
  return {config.hidden_size};
}
inline Columns ffn_columns(const ModelConfig& config) {
  return {config.ffn_size};
}
inline Columns vocab_columns(const ModelConfig& config) {
  return {config.vocab_size};
}

/// How the rows of a weight are shared out. None: every device has all of them, as of norms.
std::optional<Columns> row_columns(const ModelConfig& config, LayerWeight weight);

}  // namespace luna::model
