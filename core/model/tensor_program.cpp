#include "core/model/tensor_program.hpp"

#include "core/base/units.hpp"
#include "core/model/architecture.hpp"
#include "core/model/layer_ops.hpp"
#include "core/model/weight_names.hpp"

#include <algorithm>
#include <string>

namespace luna::model {
namespace {

// What ranks send each other beside the columns of every layer: hidden states to begin with,
// logits.
constexpr std::uint32_t kHiddenTag = 0;
constexpr std::uint32_t kLogitsTag = 2;

class TensorWriter : private LayerOps {
 public:
  TensorWriter(const ModelConfig& config,
               const ShardSpec& shard,
               std::span<const ShardWeight> weights,
               const ProgramLimits& limits)
      : LayerOps(config, shard, weights, limits),
        logits_columns_max_(logits_columns(config, shard.n_tensor_ranks, limits)) {}

  Result<Program> write(std::uint32_t n_candidates) && {
    b_.kv_copy();
    write_constants();
    const ViewId x = enter();  // [n, hidden_size], the same on every device
    write_layers(x);
    write_head(x, n_candidates);
    return std::move(b_).finish();
  }

 private:
  /// As many logits of a row as fill a message of the layers': no lane needs a larger one for them.
  static std::uint32_t logits_columns(const ModelConfig& config,
                                      std::uint32_t n_ranks,
                                      const ProgramLimits& limits) {
    const std::uint64_t n_floats =
        tensor_message_floats(config, n_ranks, limits.n_rows_max, limits.n_out_rows_max);
    const std::uint64_t n_columns = n_floats / std::max(1U, limits.n_out_rows_max);
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(
        n_columns / kColumnUnit * kColumnUnit, round_up(config.vocab_size, kColumnUnit)));
  }

  [[nodiscard]] bool is_last() const { return shard_.has_head; }

  /// The embedding lies on one device, which sends the others what it found.
  ViewId enter() {
    if (!shard_.has_embedding)
      return b_.recv(config_.hidden_size, shard_.n_tensor_ranks - 1, kHiddenTag);
    const ViewId x = embed();
    for (std::uint32_t rank = 0; rank + 1 < shard_.n_tensor_ranks; ++rank)
      b_.send(x, rank, kHiddenTag);
    return x;
  }

  /// Every device computes its part of the vocabulary; the last brings them together.
  void write_head(ViewId x, std::uint32_t n_candidates) {
    const ViewId wanted = b_.gather_rows(x);                      // [n_out, hidden_size]
    const ViewId normed = norm_by_name(wanted, kOutputNormName);  // [n_out, hidden_size]
    const auto head = static_cast<std::uint32_t>(weights_.size() - 1);
    const Columns vocab = vocab_columns(config_);
    if (!is_last()) {
      const ColumnShare own = vocab.share(shard_);
      const ViewId part = b_.activation(LUNA_DIM_OUT_ROWS, own.count);
      linear_into(normed, head, part);
      for_messages(own, [&](std::uint32_t first, std::uint32_t n) {
        b_.send(b_.columns(part, first - own.first, n), shard_.n_tensor_ranks - 1, kLogitsTag);
      });
      return;
    }
    const ViewId logits = b_.activation(LUNA_DIM_OUT_ROWS, config_.vocab_size);
    const ColumnShare own = vocab.share(shard_);
    linear_into(normed, head, b_.columns(logits, own.first, own.count));
    for (std::uint32_t rank = 0; rank + 1 < shard_.n_tensor_ranks; ++rank) {
      const ColumnShare theirs = column_share(vocab.count, vocab.unit, rank, shard_.n_tensor_ranks);
      for_messages(theirs, [&](std::uint32_t first, std::uint32_t n) {
        b_.recv_into(b_.columns(logits, first, n), rank, kLogitsTag);
      });
    }
    finish_logits(logits, n_candidates);
  }

  template <typename Message>
  void for_messages(const ColumnShare& share, const Message& message) const {
    for (std::uint32_t first = share.first; first < share.end(); first += logits_columns_max_)
      message(first, std::min(logits_columns_max_, share.end() - first));
  }

  const std::uint32_t logits_columns_max_;
};

}  // namespace

Result<std::vector<ShardSpec>> make_tensor_shards(const ModelConfig& config,
                                                  std::uint32_t n_ranks) {
  if (const auto why = architecture_of(config).why_no_tensor_split) {
    return Error{Code::unsupported,
                 "a tensor split of a " + config.architecture + " model: " + std::string(*why)};
  }
  if (n_ranks > config.n_kv_heads) {
    return Error{Code::unsupported,
                 "a tensor split over " + std::to_string(n_ranks) +
                     " devices: each needs a KV head, and the model has " +
                     std::to_string(config.n_kv_heads)};
  }
  const std::uint32_t n_columns =
      std::min({config.hidden_size, config.ffn_size, config.vocab_size});
  if (n_ranks > div_ceil(n_columns, kColumnUnit)) {
    return Error{Code::unsupported,
                 "a tensor split over " + std::to_string(n_ranks) +
                     " devices: " + std::to_string(n_columns) +
                     " columns are too few, in units of " + std::to_string(kColumnUnit)};
  }
  std::vector<ShardSpec> shards;
  for (std::uint32_t rank = 0; rank < n_ranks; ++rank) {
    ShardSpec& shard = shards.emplace_back();
    shard.layers = {0, config.n_layers};
    shard.has_embedding = rank + 1 == n_ranks;
    shard.has_head = rank + 1 == n_ranks;
    shard.tensor_rank = rank;
    shard.n_tensor_ranks = n_ranks;
  }
  return shards;
}

std::uint64_t tensor_message_floats(const ModelConfig& config,
                                    std::uint32_t n_ranks,
                                    std::uint32_t n_rows_max,
                                    std::uint32_t n_out_rows_max) {
  const auto largest = [&](const Columns& columns) {
    return column_share(columns.count, columns.unit, 0, n_ranks).count;
  };
  const std::uint64_t n_columns = std::max({config.hidden_size,  // what the embedding found
                                            largest(query_columns(config)),
                                            largest(ffn_columns(config))});
  return std::max(n_rows_max * n_columns, std::uint64_t{n_out_rows_max} * kColumnUnit);
}

ColumnShare tensor_kv_heads(const ModelConfig& config, const ShardSpec& shard) {
  const ColumnShare columns = kv_columns(config).share(shard);
  return {columns.first / config.head_dim, columns.count / config.head_dim};
}

std::vector<WeightPart> tensor_weight_parts(const ModelConfig& config, const ShardSpec& shard) {
  std::vector<WeightPart> parts;
  if (shard.has_embedding) parts.push_back({std::string(kEmbeddingName), std::nullopt});
  for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) {
    for (const LayerWeight weight : architecture_of(config).layer_weights) {
      WeightPart& part = parts.emplace_back();
      part.name = layer_weight_name(layer, weight);
      if (const auto rows = row_columns(config, weight)) part.rows = rows->share(shard);
    }
  }
  parts.push_back({std::string(kOutputNormName), std::nullopt});
  parts.push_back({std::string(config.tied_head ? kEmbeddingName : kHeadName),
                   vocab_columns(config).share(shard)});
  return parts;
}

Result<Program> build_tensor_program(const ModelConfig& config,
                                     const ShardSpec& shard,
                                     std::span<const ShardWeight> weights,
                                     const ProgramLimits& limits,
                                     std::uint32_t n_candidates) {
  return TensorWriter(config, shard, weights, limits).write(n_candidates);
}

}  // namespace luna::model
