#include "core/model/program_builder.hpp"

#include "core/base/assert.hpp"
#include "core/base/units.hpp"
#include "core/model/weight_names.hpp"

#include <algorithm>

namespace luna::model {
namespace {

/// Layers that choose together what KV they keep. Each alone: then the choice does not depend on
/// which device holds which layers.
constexpr std::uint32_t kPruneGroupLayers = 1;
constexpr std::uint32_t kHiddenTag = 0;  // hidden states are all that ranks send each other

ProgramLimits program_limits(const luna_kv_layout& kv, const ProgramOptions& options) {
  ProgramLimits limits;
  limits.numerics = options.numerics;
  limits.n_rows_max = options.limits.n_rows_max;
  limits.n_seqs_max = options.limits.n_seqs_max;
  limits.n_out_rows_max = options.limits.n_out_rows_max;
  limits.n_positions_max = options.limits.n_positions_max;
  limits.n_blocks_per_seq_max = div_ceil(options.limits.n_positions_max, options.kv_block_tokens);
  limits.kv = kv;
  return limits;
}

/// Writes ops over a shard's weights, which it knows by name.
class LlamaWriter {
 public:
  LlamaWriter(const ModelConfig& config,
              const ShardSpec& shard,
              std::span<const ShardWeight> weights,
              const ProgramLimits& limits)
      : config_(config),
        shard_(shard),
        weights_(weights),
        numerics_(limits.numerics),
        prunes_((limits.kv.flags & LUNA_KV_OBSERVED) != 0),
        b_(limits) {}

  Result<Program> write(const ProgramOptions& options) && {
    b_.kv_copy();
    frequencies_ = b_.constant(config_.rope.frequencies);   // [n_rot / 2]
    ViewId x = shard_.has_embedding ? embed() : receive();  // [n, hidden_size]
    for (std::uint32_t layer = shard_.layers.first; layer < shard_.layers.end(); ++layer)
      write_layer(x, layer);
    if (shard_.has_head) {
      write_head(x, options.n_candidates);
    } else {
      b_.send(x, shard_.send_to.value_or(0), kHiddenTag);
    }
    return std::move(b_).finish();
  }

 private:
  ViewId embed() {
    const ViewId x = b_.embed(matrix(kEmbeddingName));
    return x;
  }
  ViewId receive() {
    return b_.recv(config_.hidden_size, shard_.recv_from.value_or(0), kHiddenTag);
  }

  /// x += attention(norm(x)); x += ffn(norm(x)).   x: [n, hidden_size]
  void write_layer(ViewId x, std::uint32_t layer) {
    const auto name = [&](LayerWeight w) { return layer_weight_name(layer, w); };
    const std::uint32_t kv_layer = layer - shard_.layers.first;

    const ViewId a = norm(x, name(LayerWeight::attention_norm));  // [n, hidden_size]
    const ViewId q = linear(a, name(LayerWeight::query));         // [n, n_heads * head_dim]
    const ViewId k = linear(a, name(LayerWeight::key));           // [n, n_kv_heads * head_dim]
    const ViewId v = linear(a, name(LayerWeight::value));         // [n, n_kv_heads * head_dim]
    rotate(q, config_.n_heads);
    rotate(k, config_.n_kv_heads);
    b_.kv_write(k, v, kv_layer);
    const ViewId mixed = b_.attend(
        q,  // [n, n_heads * head_dim]
        {.layer = kv_layer, .n_heads = config_.n_heads, .scale = config_.attention_scale});
    if (prunes_) prune(q, kv_layer);
    b_.add_in_place(x, linear(mixed, name(LayerWeight::attention_out)));

    const ViewId f = norm(x, name(LayerWeight::ffn_norm));     // [n, hidden_size]
    const ViewId gate = linear(f, name(LayerWeight::gate));    // [n, ffn_size]
    const ViewId up = linear(f, name(LayerWeight::up));        // [n, ffn_size]
    const ViewId inner = b_.act_mul(gate, up, LUNA_ACT_SILU);  // [n, ffn_size]
    b_.add_in_place(x, linear(inner, name(LayerWeight::down)));
  }

  void prune(ViewId q, std::uint32_t kv_layer) {
    const std::uint32_t first = kv_layer / kPruneGroupLayers * kPruneGroupLayers;
    b_.kv_prune(q,
                {.layer = kv_layer,
                 .n_heads = config_.n_heads,
                 .scale = config_.attention_scale,
                 .group_first = first,
                 .group_last = std::min(first + kPruneGroupLayers, shard_.layers.count) - 1});
  }

  /// Only rows whose logits are wanted pass the last norm and the head.
  void write_head(ViewId x, std::uint32_t n_candidates) {
    const ViewId wanted = b_.gather_rows(x);                           // [n_out, hidden_size]
    const ViewId normed = norm(wanted, std::string(kOutputNormName));  // [n_out, hidden_size]
    const ViewId logits =                                              // [n_out, vocab_size]
        linear(normed, std::string(config_.tied_head ? kEmbeddingName : kHeadName));
    b_.logits(logits);
    b_.top_candidates(logits, n_candidates);
  }

  void rotate(ViewId x, std::uint32_t n_heads) {
    b_.rope_in_place(x,
                     frequencies_,
                     {.n_heads = n_heads,
                      .head_dim = config_.head_dim,
                      .n_rot = config_.rope.n_rot,
                      .style = static_cast<std::uint32_t>(
                          config_.rope.interleaved ? LUNA_ROPE_INTERLEAVED : LUNA_ROPE_HALVES),
                      .magnitude = static_cast<float>(config_.rope.magnitude)});
  }

  ViewId norm(ViewId x, const std::string& name) {
    const std::uint32_t index = index_of(name);
    return b_.rms_norm(x, b_.weight(index, config_.hidden_size), config_.norm_eps);
  }

  ViewId linear(ViewId x, const std::string& name) {
    const ShardWeight& weight = weights_[index_of(name)];
    const ViewId y =
        b_.linear(x, matrix(name), linear_numerics(weight.desc, weight.desc.n_rows, numerics_));
    b_.set_last_op_bytes(weight.file_bytes);
    return y;
  }

  ViewId matrix(std::string_view name) {
    const std::uint32_t index = index_of(name);
    const luna_weight_desc& desc = weights_[index].desc;
    return b_.weight(
        index, static_cast<std::uint32_t>(desc.n_rows), static_cast<std::uint32_t>(desc.n_cols));
  }

  [[nodiscard]] std::uint32_t index_of(std::string_view name) const {
    const auto found = std::ranges::find(weights_, name, &ShardWeight::name);
    LUNA_VERIFY(found != weights_.end());
    return static_cast<std::uint32_t>(found - weights_.begin());
  }

  const ModelConfig& config_;
  const ShardSpec& shard_;
  const std::span<const ShardWeight> weights_;
  const std::uint32_t numerics_;  // LUNA_NUMERICS_*
  const bool prunes_;
  ProgramBuilder b_;
  ViewId frequencies_;
};

}  // namespace

std::vector<ShardSpec> make_shards(std::span<const LayerRange> ranges) {
  std::vector<ShardSpec> shards;
  const auto n = static_cast<std::uint32_t>(ranges.size());
  for (std::uint32_t rank = 0; rank < n; ++rank) {
    ShardSpec& shard = shards.emplace_back();
    shard.layers = ranges[rank];
    shard.has_embedding = rank == 0;
    shard.has_head = rank == n - 1;
    if (!shard.has_embedding) shard.recv_from = rank - 1;
    if (!shard.has_head) shard.send_to = rank + 1;
  }
  return shards;
}

std::vector<std::string> shard_weight_names(const ModelConfig& config, const ShardSpec& shard) {
  std::vector<std::string> names;
  if (shard.has_embedding) names.emplace_back(kEmbeddingName);
  for (std::uint32_t layer = shard.layers.first; layer < shard.layers.end(); ++layer)
    for (std::size_t i = 0; i < kNLayerWeights; ++i)
      names.push_back(layer_weight_name(layer, static_cast<LayerWeight>(i)));
  if (shard.has_head) {
    names.emplace_back(kOutputNormName);
    if (!config.tied_head) names.emplace_back(kHeadName);
    if (config.tied_head && !shard.has_embedding) names.emplace_back(kEmbeddingName);
  }
  return names;
}

luna_kv_layout shard_kv_layout(const ModelConfig& config,
                               const ShardSpec& shard,
                               const ProgramOptions& options) {
  luna_kv_layout kv{};
  kv.n_layers = shard.layers.count;
  kv.n_kv_heads = config.n_kv_heads;
  kv.head_dim = config.head_dim;
  kv.dtype = options.kv_dtype;
  kv.block_tokens = options.kv_block_tokens;
  kv.flags = options.prunes ? LUNA_KV_OBSERVED : 0;
  return kv;
}

Result<Program> build_program(const ModelConfig& config,
                              const ShardSpec& shard,
                              std::span<const ShardWeight> weights,
                              const ProgramOptions& options) {
  const std::uint32_t tokens = options.kv_block_tokens;
  if (tokens < 32 || tokens > 256 || (tokens & (tokens - 1)) != 0) {
    return Error{
        Code::invalid_argument,
        "kv_block_tokens = " + std::to_string(tokens) + ": must be a power of two in 32..256"};
  }
  const ProgramLimits limits = program_limits(shard_kv_layout(config, shard, options), options);
  return LlamaWriter(config, shard, weights, limits).write(options);
}

}  // namespace luna::model
