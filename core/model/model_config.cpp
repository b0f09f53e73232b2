#include "core/model/model_config.hpp"

#include "core/model/architecture.hpp"
#include "core/model/architectures/all.hpp"
#include "core/model/config_keys.hpp"
#include "core/model/rope_frequencies.hpp"
#include "core/model/weight_file.hpp"
#include "core/model/weight_names.hpp"

#include <luna/abi/quant.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace luna::model {
namespace {

Result<const Architecture*> read_architecture(const WeightFile& file) {
  LUNA_TRY(const auto name, find_text(file, "general.architecture"));
  if (!name) return Error{Code::corrupt, "general.architecture: the key is missing"};
  LUNA_TRY(const auto n_experts, find_unsigned(file, std::string(*name) + ".expert_count"));
  // One name in GGUF stands for both.
  if (*name == kLlama.gguf_name && n_experts.value_or(0) > 0) return &kMixtral;
  for (const Architecture* known : architectures())
    if (known->gguf_name == *name) return known;
  return Error{
      Code::unsupported,
      "general.architecture = \"" + printable(*name) + "\": Luna knows " + known_architectures()};
}

Result<RopeScaling> read_rope_scaling(const ConfigKeys& keys) {
  RopeScaling scaling;
  LUNA_TRY(const auto type, find_text(keys.file(), keys.full("rope.scaling.type")));
  // Files from before the type was stated have a factor alone, and it meant linear scaling.
  LUNA_TRY(const double old_factor, keys.positive("rope.scale_linear", 1.0));
  LUNA_TRY(scaling.factor, keys.positive("rope.scaling.factor", old_factor));
  const std::string_view kind = type.value_or(scaling.factor != 1.0 ? "linear" : "none");
  if (kind == "none") return RopeScaling{};
  if (kind == "linear") {
    scaling.kind = RopeScalingKind::linear;
    return scaling;
  }
  if (kind != "yarn") {
    return Error{Code::unsupported,
                 keys.full("rope.scaling.type") + " = \"" + printable(kind) +
                     "\": Luna knows none, linear, yarn"};
  }
  scaling.kind = RopeScalingKind::yarn;
  LUNA_TRY(const auto context,
           keys.count("rope.scaling.original_context_length",
                      std::numeric_limits<std::uint32_t>::max()));
  scaling.original_context = context;
  LUNA_TRY(scaling.beta_fast, keys.positive("rope.scaling.yarn_beta_fast", 32.0));
  LUNA_TRY(scaling.beta_slow, keys.positive("rope.scaling.yarn_beta_slow", 1.0));
  LUNA_TRY(const double attention, keys.positive("rope.scaling.attn_factor", 1.0));
  LUNA_TRY(scaling.attention_factor, keys.positive("rope.scaling.yarn_attn_factor", attention));
  LUNA_TRY(const auto mix, find_number(keys.file(), keys.full("rope.scaling.yarn_ext_factor")));
  // Below 0 is how writers say "the usual", which is 1.
  if (mix && (!std::isfinite(*mix) || *mix > 1.0)) {
    return Error{Code::corrupt,
                 keys.full("rope.scaling.yarn_ext_factor") + " = " + std::to_string(*mix) +
                     ": must be at most 1"};
  }
  scaling.extrapolation_factor = mix && *mix >= 0.0 ? *mix : 1.0;
  return scaling;
}

/// The divisors of the frequencies that a file carries as a tensor; empty for others.
Result<std::vector<float>> read_rope_factors(const WeightFile& file,
                                             std::string_view tensor_name,
                                             std::uint32_t n_rot) {
  std::vector<float> factors;
  const TensorInfo* tensor = file.find_tensor(tensor_name);
  if (tensor == nullptr) return factors;
  const std::string name = "tensor " + std::string(tensor_name);
  if (tensor->type_name != "F32" || tensor->n_elements() != n_rot / 2) {
    return Error{Code::corrupt,
                 name + ": " + std::to_string(tensor->n_elements()) + " values of type " +
                     std::string(tensor->type_name) + ", expected " + std::to_string(n_rot / 2) +
                     " of type F32"};
  }
  factors.resize(n_rot / 2);
  std::memcpy(factors.data(), tensor->bytes.data(), tensor->bytes.size());
  for (const float factor : factors) {
    if (!std::isfinite(factor) || factor <= 0.0F) {
      return Error{Code::corrupt,
                   name + ": " + std::to_string(factor) + ", must be finite and above 0"};
    }
  }
  return factors;
}

Result<RopeConfig> read_rope(const ConfigKeys& keys,
                             const Architecture& family,
                             std::uint32_t head_dim) {
  LUNA_TRY(const auto stated, keys.find_count("rope.dimension_count", kSizeMax));
  const std::uint32_t n_rot = stated.value_or(head_dim);
  if (n_rot > head_dim || n_rot % 2 != 0) {
    return Error{Code::corrupt,
                 keys.full("rope.dimension_count") + " = " + std::to_string(n_rot) +
                     ": must be even and at most " + std::to_string(head_dim)};
  }
  LUNA_TRY(const double base, keys.positive("rope.freq_base", 10000.0));
  if (base <= 1.0) {
    return Error{Code::corrupt,
                 keys.full("rope.freq_base") + " = " + std::to_string(base) + ": must be above 1"};
  }
  LUNA_TRY(const RopeScaling scaling, read_rope_scaling(keys));
  LUNA_TRY(const auto factors, read_rope_factors(keys.file(), kRopeFactorsName, n_rot));
  LUNA_TRY(const auto long_factors, read_rope_factors(keys.file(), kLongRopeFactorsName, n_rot));
  LUNA_TRY(const auto short_factors, read_rope_factors(keys.file(), kShortRopeFactorsName, n_rot));
  if (long_factors.empty() != short_factors.empty() ||
      (!factors.empty() && !long_factors.empty())) {
    return Error{Code::corrupt,
                 "tensors " + std::string(kLongRopeFactorsName) + " and " +
                     std::string(kShortRopeFactorsName) + ": must be both there, without " +
                     std::string(kRopeFactorsName)};
  }
  const bool is_long = !long_factors.empty();
  RopeConfig rope = make_rope(n_rot, base, scaling, is_long ? short_factors : factors);
  if (is_long) {
    rope.long_frequencies = make_rope(n_rot, base, scaling, long_factors).frequencies;
    LUNA_TRY(rope.original_context,
             keys.count("rope.scaling.original_context_length",
                        std::numeric_limits<std::uint32_t>::max()));
    LUNA_TRY(rope.magnitude, keys.positive("rope.scaling.attn_factor", 1.0));
  }
  rope.interleaved =
      family.has_permuted_gguf_heads && keys.file().container() == LUNA_CONTAINER_GGUF;
  return rope;
}

Result<void> read_heads(const ConfigKeys& keys, ModelConfig& config) {
  LUNA_TRY(config.n_heads, keys.count("attention.head_count", kSizeMax));
  LUNA_TRY(const auto n_kv_heads, keys.find_count("attention.head_count_kv", kSizeMax));
  config.n_kv_heads = n_kv_heads.value_or(config.n_heads);
  if (config.n_heads % config.n_kv_heads != 0) {
    return Error{Code::corrupt,
                 keys.full("attention.head_count_kv") + " = " + std::to_string(config.n_kv_heads) +
                     ": must divide " + std::to_string(config.n_heads) + " heads"};
  }
  LUNA_TRY(const auto key_length, keys.find_count("attention.key_length", kSizeMax));
  LUNA_TRY(const auto value_length, keys.find_count("attention.value_length", kSizeMax));
  if (!key_length && config.hidden_size % config.n_heads != 0) {
    return Error{Code::corrupt,
                 keys.full("embedding_length") + " = " + std::to_string(config.hidden_size) +
                     ": no multiple of " + std::to_string(config.n_heads) + " heads"};
  }
  config.head_dim = key_length.value_or(config.hidden_size / config.n_heads);
  if (value_length.value_or(config.head_dim) != config.head_dim) {
    return Error{Code::unsupported,
                 keys.full("attention.value_length") + " = " + std::to_string(*value_length) +
                     ": values of another length than keys (" + std::to_string(config.head_dim) +
                     ") are not built"};
  }
  return {};
}

/// vocab_size is what the embedding holds; the key is often absent.
Result<std::uint32_t> read_vocab_size(const ConfigKeys& keys) {
  const TensorInfo* embedding = keys.file().find_tensor(kEmbeddingName);
  if (embedding == nullptr || embedding->rank != 2) {
    return Error{Code::corrupt,
                 "tensor " + std::string(kEmbeddingName) + ": missing, or no matrix"};
  }
  const std::uint64_t n_rows = embedding->dims[0];
  LUNA_TRY(const auto stated, keys.find_count("vocab_size", kSizeMax));
  if (n_rows > kSizeMax || stated.value_or(static_cast<std::uint32_t>(n_rows)) != n_rows) {
    return Error{Code::corrupt,
                 keys.full("vocab_size") + " = " + std::to_string(stated.value_or(0)) + ": " +
                     std::string(kEmbeddingName) + " has " + std::to_string(n_rows) + " rows"};
  }
  return static_cast<std::uint32_t>(n_rows);
}

}  // namespace

Result<ModelConfig> read_model_config(const WeightFile& file) {
  ModelConfig config;
  LUNA_TRY(const Architecture* family, read_architecture(file));
  config.architecture = family->name;
  LUNA_TRY(const auto name, find_text(file, "general.name"));
  config.name = name.value_or("");
  const ConfigKeys keys(file, std::string(family->gguf_name));
  LUNA_TRY(config.n_layers, keys.count("block_count", kLayersMax));
  LUNA_TRY(config.hidden_size, keys.count("embedding_length", kSizeMax));
  LUNA_TRY(config.ffn_size, keys.count("feed_forward_length", kSizeMax));
  LUNA_TRY(config.context_length,
           keys.count("context_length", std::numeric_limits<std::uint32_t>::max()));
  LUNA_TRY(read_heads(keys, config));
  LUNA_TRY(const double eps, keys.positive("attention.layer_norm_rms_epsilon", 0.0));
  if (eps == 0.0) {
    return Error{Code::corrupt,
                 keys.full("attention.layer_norm_rms_epsilon") + ": the key is missing"};
  }
  config.norm_eps = static_cast<float>(eps);
  LUNA_TRY(const double scale, keys.positive("attention.scale", 1.0 / std::sqrt(config.head_dim)));
  config.attention_scale = static_cast<float>(scale);
  LUNA_TRY(config.vocab_size, read_vocab_size(keys));
  config.tied_head = file.parts_of(kHeadName).empty();
  LUNA_TRY(config.rope, read_rope(keys, *family, config.head_dim));
  LUNA_TRY(family->read_keys(keys, config));
  return config;
}

}  // namespace luna::model
