#include "core/model/layer_ops.hpp"

#include "core/base/assert.hpp"
#include "core/model/architecture.hpp"
#include "core/model/weight_names.hpp"

#include <algorithm>

namespace luna::model {
namespace {

/// Layers that choose together what KV they keep. Each alone: then the choice does not depend on
/// which device holds which layers.
constexpr std::uint32_t kPruneGroupLayers = 1;
constexpr std::uint32_t kGatherTag = 1;  // of the columns of layers; 0 is hidden states'

}  // namespace

std::optional<Columns> row_columns(const ModelConfig& config, LayerWeight weight) {
  switch (weight) {
    case LayerWeight::query:
      return query_columns(config);
    case LayerWeight::key:
    case LayerWeight::value:
      return kv_columns(config);
    case LayerWeight::gate:
    case LayerWeight::up:
      return ffn_columns(config);
    case LayerWeight::attention_out:
    case LayerWeight::down:
      return hidden_columns(config);
    case LayerWeight::attention_norm:
    case LayerWeight::ffn_norm:
    case LayerWeight::query_norm:
    case LayerWeight::key_norm:
    case LayerWeight::attention_post_norm:
    case LayerWeight::ffn_post_norm:
      return std::nullopt;
    case LayerWeight::query_key_value:
    case LayerWeight::gate_up:
    case LayerWeight::router:
    case LayerWeight::expert_gate:
    case LayerWeight::expert_up:
    case LayerWeight::expert_down:
    case LayerWeight::query_bias:
    case LayerWeight::key_bias:
    case LayerWeight::value_bias:
      break;  // their families say that they are not split
  }
  LUNA_VERIFY(false);
  return std::nullopt;
}

LayerOps::LayerOps(const ModelConfig& config,
                   const ShardSpec& shard,
                   std::span<const ShardWeight> weights,
                   const ProgramLimits& limits)
    : config_(config),
      shard_(shard),
      weights_(weights),
      b_(limits),
      numerics_(limits.numerics),
      n_positions_max_(limits.n_positions_max),
      prunes_((limits.kv.flags & LUNA_KV_OBSERVED) != 0),
      n_heads_(query_columns(config).share(shard).count / config.head_dim),
      n_kv_heads_(kv_columns(config).share(shard).count / config.head_dim) {}

void LayerOps::write_constants() {
  const RopeConfig& rope = config_.rope;
  const bool is_long = !rope.long_frequencies.empty() && n_positions_max_ > rope.original_context;
  frequencies_ = b_.constant(is_long ? rope.long_frequencies : rope.frequencies);  // [n_rot / 2]
  if (config_.local_rope) local_frequencies_ = b_.constant(config_.local_rope->frequencies);
}

void LayerOps::write_layers(ViewId x) {
  const Architecture& family = architecture_of(config_);
  for (layer_ = shard_.layers.first; layer_ < shard_.layers.end(); ++layer_)
    family.write_layer(*this, x);
}

ViewId LayerOps::embed() {
  const ViewId x = b_.embed(matrix(index_of(kEmbeddingName)));
  if (config_.embedding_scale != 1.0F) b_.scale_in_place(x, config_.embedding_scale);
  return x;
}

void LayerOps::finish_logits(ViewId logits, std::uint32_t n_candidates) {
  if (config_.logit_softcap != 0.0F) b_.softcap_in_place(logits, config_.logit_softcap);
  b_.logits(logits);
  b_.top_candidates(logits, n_candidates);
}

ViewId LayerOps::norm_by_name(ViewId x, std::string_view name) {
  return b_.rms_norm(x, b_.weight(index_of(name), config_.hidden_size), config_.norm_eps);
}

void LayerOps::norm_heads(ViewId x, LayerWeight weight) {
  const std::uint32_t index = index_of(layer_name(weight));
  b_.head_norm_in_place(x, b_.weight(index, config_.head_dim), config_.norm_eps);
}

ViewId LayerOps::linear(ViewId x, LayerWeight weight, std::optional<LayerWeight> bias) {
  if (!bias) return linear_by_name(x, layer_name(weight));
  const std::uint32_t index = index_of(layer_name(weight));
  const auto n_rows = static_cast<std::uint32_t>(weights_[index].desc.n_rows);
  const ViewId b = b_.weight(index_of(layer_name(*bias)), n_rows);
  const ViewId y = b_.linear(x, matrix(index), numerics_of(index), b);
  b_.set_last_op_bytes(weights_[index].file_bytes);
  return y;
}

ViewId LayerOps::expert_linear(ViewId x, ViewId routes, LayerWeight weight) {
  const std::uint32_t index = index_of(layer_name(weight));
  const luna_weight_desc& desc = weights_[index].desc;
  const LinearNumerics numerics = linear_numerics(desc, desc.n_rows / config_.experts.n, numerics_);
  const ViewId y = b_.grouped_linear(x, routes, matrix(index), config_.experts.n_used, numerics);
  b_.set_last_op_bytes(weights_[index].file_bytes / config_.experts.n * config_.experts.n_used);
  return y;
}

ViewId LayerOps::linear_by_name(ViewId x, std::string_view name) {
  const std::uint32_t index = index_of(name);
  const ViewId y = b_.linear(x, matrix(index), numerics_of(index));
  b_.set_last_op_bytes(weights_[index].file_bytes);
  return y;
}

void LayerOps::linear_into(ViewId x, std::uint32_t index, ViewId y) {
  b_.linear_into(x, matrix(index), numerics_of(index), std::nullopt, y);
  b_.set_last_op_bytes(weights_[index].file_bytes);
}

ViewId LayerOps::attend(ViewId q, ViewId k, ViewId v) {
  rotate(q, n_heads_);
  rotate(k, n_kv_heads_);
  b_.kv_write(k, v, kv_layer());
  const ViewId mixed = b_.attend(q,
                                 {.layer = kv_layer(),
                                  .n_heads = n_heads_,
                                  .scale = config_.attention_scale,
                                  .window = config_.window_of(layer_),
                                  .softcap = config_.attention_softcap});
  if (prunes_) prune(q);
  return joined(mixed, query_columns(config_));
}

void LayerOps::rotate(ViewId x, std::uint32_t n_heads) {
  const bool is_local = config_.local_rope && config_.window_of(layer_) != 0;
  const RopeConfig& rope = is_local ? *config_.local_rope : config_.rope;
  b_.rope_in_place(x,
                   is_local ? local_frequencies_ : frequencies_,
                   {.n_heads = n_heads,
                    .head_dim = config_.head_dim,
                    .n_rot = rope.n_rot,
                    .style = static_cast<std::uint32_t>(rope.interleaved ? LUNA_ROPE_INTERLEAVED
                                                                         : LUNA_ROPE_HALVES),
                    .magnitude = static_cast<float>(rope.magnitude)});
}

void LayerOps::prune(ViewId q) {
  const std::uint32_t first = kv_layer() / kPruneGroupLayers * kPruneGroupLayers;
  b_.kv_prune(q,
              {.layer = kv_layer(),
               .n_heads = n_heads_,
               .scale = config_.attention_scale,
               .softcap = config_.attention_softcap,
               .group_first = first,
               .group_last = std::min(first + kPruneGroupLayers, shard_.layers.count) - 1});
}

ViewId LayerOps::joined(ViewId part, const Columns& columns) {
  if (!shard_.is_tensor_part()) return part;
  return b_.all_gather(part,
                       {.n_columns = columns.count,
                        .unit = columns.unit,
                        .rank = shard_.tensor_rank,
                        .n_ranks = shard_.n_tensor_ranks,
                        .tag = kGatherTag});
}

ViewId LayerOps::matrix(std::uint32_t index) {
  const luna_weight_desc& desc = weights_[index].desc;
  return b_.weight(
      index, static_cast<std::uint32_t>(desc.n_rows), static_cast<std::uint32_t>(desc.n_cols));
}

std::uint32_t LayerOps::index_of(std::string_view name) const {
  const auto found = std::ranges::find(weights_, name, &ShardWeight::name);
  LUNA_VERIFY(found != weights_.end());
  return static_cast<std::uint32_t>(found - weights_.begin());
}

std::string LayerOps::layer_name(LayerWeight weight) const {
  return layer_weight_name(layer_, weight);
}

LinearNumerics LayerOps::numerics_of(std::uint32_t index) const {
  const ShardWeight& weight = weights_[index];
  return linear_numerics(weight.desc, weight.n_rows_total(), numerics_);
}

}  // namespace luna::model
