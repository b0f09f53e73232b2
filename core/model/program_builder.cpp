#include "core/model/program_builder.hpp"

#include "core/base/assert.hpp"
#include "core/base/units.hpp"
#include "core/model/architecture.hpp"
#include "core/model/layer_ops.hpp"
#include "core/model/tensor_program.hpp"
#include "core/model/weight_names.hpp"

namespace luna::model {
namespace {

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

class ProgramWriter : private LayerOps {
 public:
  ProgramWriter(const ModelConfig& config,
                const ShardSpec& shard,
                std::span<const ShardWeight> weights,
                const ProgramLimits& limits)
      : LayerOps(config, shard, weights, limits) {}

  Result<Program> write(const ProgramOptions& options) && {
    b_.kv_copy();
    if (options.n_slice_peers > 0) b_.allow_slices();
    write_constants();
    const ViewId x = shard_.has_embedding ? embed() : receive();  // [n, hidden_size]
    write_layers(x);
    if (shard_.has_head) {
      write_head(x, options.n_candidates);
    } else {
      b_.send(x, shard_.send_to.value_or(0), kHiddenTag);
    }
    return std::move(b_).finish();
  }

 private:
  ViewId receive() {
    return b_.recv(config_.hidden_size, shard_.recv_from.value_or(0), kHiddenTag);
  }

  /// Only rows whose logits are wanted pass the last norm and the head.
  void write_head(ViewId x, std::uint32_t n_candidates) {
    const ViewId wanted = b_.gather_rows(x);                      // [n_out, hidden_size]
    const ViewId normed = norm_by_name(wanted, kOutputNormName);  // [n_out, hidden_size]
    const ViewId logits =                                         // [n_out, vocab_size]
        linear_by_name(normed, config_.tied_head ? kEmbeddingName : kHeadName);
    finish_logits(logits, n_candidates);
  }
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

std::vector<WeightPart> shard_weight_parts(const ModelConfig& config, const ShardSpec& shard) {
  if (shard.is_tensor_part()) return tensor_weight_parts(config, shard);
  std::vector<WeightPart> parts;
  const auto add = [&](std::string name) { parts.push_back({std::move(name), std::nullopt}); };
  if (shard.has_embedding) add(std::string(kEmbeddingName));
  for (std::uint32_t layer = shard.layers.first; layer < shard.layers.end(); ++layer)
    for (const LayerWeight weight : architecture_of(config).layer_weights)
      add(layer_weight_name(layer, weight));
  if (shard.has_head) {
    add(std::string(kOutputNormName));
    if (!config.tied_head) add(std::string(kHeadName));
    if (config.tied_head && !shard.has_embedding) add(std::string(kEmbeddingName));
  }
  return parts;
}

std::vector<std::string> shard_weight_names(const ModelConfig& config, const ShardSpec& shard) {
  std::vector<std::string> names;
  for (WeightPart& part : shard_weight_parts(config, shard))
    names.push_back(std::move(part.name));
  return names;
}

ShardWeight take_rows(ShardWeight weight, const ColumnShare& rows) {
  LUNA_VERIFY(rows.count > 0 && rows.end() <= weight.desc.n_rows);
  weight.file_bytes = weight.file_bytes / weight.desc.n_rows * rows.count;
  weight.n_rows_elsewhere += weight.desc.n_rows - rows.count;
  weight.first_row += rows.first;
  weight.desc.n_rows = rows.count;
  return weight;
}

luna_kv_layout shard_kv_layout(const ModelConfig& config,
                               const ShardSpec& shard,
                               const ProgramOptions& options) {
  luna_kv_layout kv{};
  kv.n_layers = shard.layers.count;
  kv.n_kv_heads = tensor_kv_heads(config, shard).count;
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
  if (options.prunes && config.window.n_tokens != 0) {
    return Error{Code::unsupported,
                 "KV of a " + config.architecture +
                     " model with a sliding window is not pruned: a window counts positions"};
  }
  const ProgramLimits limits = program_limits(shard_kv_layout(config, shard, options), options);
  if (shard.is_tensor_part())
    return build_tensor_program(config, shard, weights, limits, options.n_candidates);
  return ProgramWriter(config, shard, weights, limits).write(options);
}

}  // namespace luna::model
