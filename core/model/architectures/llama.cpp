// Llama 2 and 3, Mistral.
// Source  Touvron et al. 2023 (LLaMA), section 2.2; Ainslie et al. 2023 (GQA); Jiang et al. 2023
//         (Mistral 7B), section 2
#include "core/model/architectures/all.hpp"
#include "core/model/architectures/common_parts.hpp"
#include "core/model/config_keys.hpp"
#include "core/model/hf_fields.hpp"
#include "core/model/layer_ops.hpp"

#include <array>

namespace luna::model {
namespace {

constexpr std::array kWeights = {LayerWeight::attention_norm,
                                 LayerWeight::query,
                                 LayerWeight::key,
                                 LayerWeight::value,
                                 LayerWeight::attention_out,
                                 LayerWeight::ffn_norm,
                                 LayerWeight::gate,
                                 LayerWeight::up,
                                 LayerWeight::down};
constexpr std::array kFamilies = {HfFamily{"llama", "LlamaForCausalLM"},
                                  HfFamily{"mistral", "MistralForCausalLM"}};

Result<void> read_keys(const ConfigKeys& keys, ModelConfig& config) {
  LUNA_TRY(const auto window, keys.find_count("attention.sliding_window", kWindowMax));
  config.window = {window.value_or(0), 0};
  return {};
}

Result<void> translate_fields(const HfFields& fields, HfKeys& keys) {
  LUNA_TRY(fields.need_text("hidden_act", "silu"));
  LUNA_TRY(fields.refuse_partial_rotary());
  LUNA_TRY(const auto type, fields.find_text("model_type"));
  if (type != "mistral") return fields.refuse_window_below(keys.context_length);
  LUNA_TRY(const auto window, fields.find_count("sliding_window", kWindowMax));
  if (window && *window < keys.context_length) keys.add_count("attention.sliding_window", *window);
  return {};
}

/// x += attention(norm(x)); x += ffn(norm(x)).   x: [n, hidden_size]
void write_layer(LayerOps& ops, ViewId x) {
  write_attention(ops, x);
  write_silu_ffn(ops, x);
}

}  // namespace

const Architecture kLlama = {.name = "llama",
                             .gguf_name = "llama",
                             .layer_weights = kWeights,
                             .hf_families = kFamilies,
                             .hf_modules = {},
                             .has_permuted_gguf_heads = true,
                             .read_keys = read_keys,
                             .translate_fields = translate_fields,
                             .write_layer = write_layer};

}  // namespace luna::model
