#include "core/model/weight_names.hpp"

#include "core/base/assert.hpp"
#include "core/model/architecture.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_set>

namespace luna::model {
namespace {

constexpr std::array<std::string_view, kNLayerWeights> kNames = {
    "attn_norm.weight",     "attn_q.weight",        "attn_k.weight",
    "attn_v.weight",        "attn_output.weight",   "ffn_norm.weight",
    "ffn_gate.weight",      "ffn_up.weight",        "ffn_down.weight",
    "attn_q.bias",          "attn_k.bias",          "attn_v.bias",
    "attn_q_norm.weight",   "attn_k_norm.weight",   "post_attention_norm.weight",
    "post_ffw_norm.weight", "attn_qkv.weight",
    "ffn_up.weight",  // gate and up
    "ffn_gate_inp.weight",  "ffn_gate_exps.weight", "ffn_up_exps.weight",
    "ffn_down_exps.weight",
};

/// Tensors that some writers add and the architecture computes without.
constexpr std::string_view kIgnoredSuffix = ".attn_rot_embd";

std::string shape_text(const WeightShape& shape) {
  return "[" + std::to_string(shape.n_rows) + ", " + std::to_string(shape.n_cols) + "]";
}

Result<void> check_weight(const WeightFile& file, const std::string& name, WeightShape expected) {
  const TensorInfo* tensor = file.find_tensor(name);
  if (tensor == nullptr && !file.parts_of(name).empty()) return {};
  const std::string where = "tensor " + printable(file.name_in_file(name));
  if (tensor == nullptr)
    return Error{Code::corrupt, where + ": missing, expected " + shape_text(expected)};
  const WeightShape found = shape_of(*tensor);
  const std::uint32_t rank_max = is_of_experts(name) ? 3 : 2;
  if (tensor->rank == 0 || tensor->rank > rank_max || found != expected) {
    return Error{Code::corrupt,
                 where + ": of rank " + std::to_string(tensor->rank) + " and shape " +
                     shape_text(found) + ", expected " + shape_text(expected)};
  }
  return {};
}

/// "blk.0.ffn_up_exps.3.weight", where each expert's matrix is a tensor:
/// "blk.0.ffn_up_exps.weight".
std::string without_expert(const std::string& weight) {
  const std::size_t end = weight.rfind('.');
  const std::size_t dot = end == 0 || end == std::string::npos ? end : weight.rfind('.', end - 1);
  if (dot == std::string::npos || !is_of_experts(weight)) return weight;
  return weight.substr(0, dot) + weight.substr(end);
}

/// Whether a tensor is one of those that make a weight that is known.
bool is_part(const WeightFile& file,
             const TensorInfo& tensor,
             const std::unordered_set<std::string>& known) {
  const std::string weight = tensor.name.substr(0, tensor.name.rfind('.')) + ".weight";
  for (const std::string& whole : {weight, without_expert(weight)}) {
    if (!known.contains(whole)) continue;
    const auto parts = file.parts_of(whole);
    if (std::ranges::find(parts, &tensor) != parts.end()) return true;
  }
  return false;
}

}  // namespace

WeightShape shape_of(const TensorInfo& tensor) {
  if (tensor.rank == 0) return {};
  WeightShape shape{1, tensor.dims[tensor.rank - 1]};
  for (std::uint32_t d = 0; d + 1 < tensor.rank; ++d)
    shape.n_rows *= tensor.dims[d];
  return shape;
}

bool is_of_experts(std::string_view name) {
  return name.find("_exps.") != std::string_view::npos;
}

std::string layer_weight_name(std::uint32_t layer, LayerWeight weight) {
  return "blk." + std::to_string(layer) + "." +
         std::string(kNames[static_cast<std::size_t>(weight)]);
}

WeightShape layer_weight_shape(const ModelConfig& config, LayerWeight weight) {
  const std::uint64_t query_size = std::uint64_t{config.n_heads} * config.head_dim;
  const std::uint64_t kv_size = std::uint64_t{config.n_kv_heads} * config.head_dim;
  switch (weight) {
    case LayerWeight::attention_norm:
    case LayerWeight::ffn_norm:
    case LayerWeight::attention_post_norm:
    case LayerWeight::ffn_post_norm:
      return {1, config.hidden_size};
    case LayerWeight::query:
      return {query_size, config.hidden_size};
    case LayerWeight::key:
    case LayerWeight::value:
      return {kv_size, config.hidden_size};
    case LayerWeight::attention_out:
      return {config.hidden_size, query_size};
    case LayerWeight::gate:
    case LayerWeight::up:
      return {config.ffn_size, config.hidden_size};
    case LayerWeight::down:
      return {config.hidden_size, config.ffn_size};
    case LayerWeight::query_bias:
      return {1, query_size};
    case LayerWeight::key_bias:
    case LayerWeight::value_bias:
      return {1, kv_size};
    case LayerWeight::query_norm:
    case LayerWeight::key_norm:
      return {1, config.head_dim};
    case LayerWeight::query_key_value:
      return {query_size + 2 * kv_size, config.hidden_size};
    case LayerWeight::gate_up:
      return {std::uint64_t{2} * config.ffn_size, config.hidden_size};
    case LayerWeight::router:
      return {config.experts.n, config.hidden_size};
    case LayerWeight::expert_gate:
    case LayerWeight::expert_up:
      return {std::uint64_t{config.experts.n} * config.experts.ffn_size, config.hidden_size};
    case LayerWeight::expert_down:
      return {std::uint64_t{config.experts.n} * config.hidden_size, config.experts.ffn_size};
  }
  return {};
}

std::optional<WeightShape> weight_shape(const ModelConfig& config, std::string_view name) {
  if (name == kEmbeddingName || name == kHeadName)
    return WeightShape{config.vocab_size, config.hidden_size};
  if (name == kOutputNormName) return WeightShape{1, config.hidden_size};
  constexpr std::string_view kLayers = "blk.";
  if (!name.starts_with(kLayers)) return std::nullopt;
  std::uint32_t layer = 0;
  const char* first = name.data() + kLayers.size();
  if (std::from_chars(first, name.data() + name.size(), layer).ec != std::errc{} ||
      layer >= config.n_layers)
    return std::nullopt;
  for (const LayerWeight weight : architecture_of(config).layer_weights) {
    if (name == layer_weight_name(layer, weight)) return layer_weight_shape(config, weight);
  }
  return std::nullopt;
}

Result<void> check_weights(const ModelConfig& config, const WeightFile& file) {
  const WeightShape embedding{config.vocab_size, config.hidden_size};
  LUNA_TRY(check_weight(file, std::string(kEmbeddingName), embedding));
  LUNA_TRY(check_weight(file, std::string(kOutputNormName), {1, config.hidden_size}));
  if (!config.tied_head) LUNA_TRY(check_weight(file, std::string(kHeadName), embedding));
  std::unordered_set<std::string> known = {std::string(kEmbeddingName),
                                           std::string(kOutputNormName),
                                           std::string(kHeadName),
                                           std::string(kRopeFactorsName),
                                           std::string(kLongRopeFactorsName),
                                           std::string(kShortRopeFactorsName)};
  for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) {
    for (const LayerWeight weight : architecture_of(config).layer_weights) {
      std::string name = layer_weight_name(layer, weight);
      LUNA_TRY(check_weight(file, name, layer_weight_shape(config, weight)));
      known.insert(std::move(name));
    }
  }
  for (const TensorInfo& tensor : file.tensors()) {
    if (tensor.name.find(kIgnoredSuffix) != std::string::npos) continue;
    if (!known.contains(tensor.name) && !is_part(file, tensor, known)) {
      return Error{Code::unsupported,
                   "tensor " + printable(file.name_in_file(tensor.name)) + ": not a weight of a " +
                       config.architecture + " model of " + std::to_string(config.n_layers) +
                       " layers"};
    }
  }
  return {};
}

ModelBytes weigh_model(const ModelConfig& config, const WeightFile& file) {
  const auto weigh = [&](std::string_view name) {
    std::uint64_t n_bytes = 0;
    const auto parts = file.parts_of(name);
    LUNA_ASSERT(!parts.empty());
    for (const TensorInfo* part : parts)
      n_bytes += part->n_bytes;
    return n_bytes;
  };
  ModelBytes bytes;
  bytes.embedding = weigh(kEmbeddingName);
  bytes.head = config.tied_head ? bytes.embedding : weigh(kHeadName);
  for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) {
    std::uint64_t layer_bytes = 0;
    for (const LayerWeight weight : architecture_of(config).layer_weights)
      layer_bytes += weigh(layer_weight_name(layer, weight));
    bytes.layers.push_back(layer_bytes);
  }
  return bytes;
}

}  // namespace luna::model
