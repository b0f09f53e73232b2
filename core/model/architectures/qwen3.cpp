// Qwen3: a Llama whose query and key heads are normed before they are rotated.
// Source  Yang et al. 2025 (Qwen3 technical report), section 2; modeling_qwen3 of
//         huggingface/transformers
#include "core/model/architectures/all.hpp"
#include "core/model/architectures/common_parts.hpp"
#include "core/model/config_keys.hpp"
#include "core/model/layer_ops.hpp"

#include <array>

namespace luna::model {
namespace {

constexpr std::array kWeights = {LayerWeight::attention_norm,
                                 LayerWeight::query,
                                 LayerWeight::query_norm,
                                 LayerWeight::key,
                                 LayerWeight::key_norm,
                                 LayerWeight::value,
                                 LayerWeight::attention_out,
                                 LayerWeight::ffn_norm,
                                 LayerWeight::gate,
                                 LayerWeight::up,
                                 LayerWeight::down};
constexpr std::array kFamilies = {HfFamily{"qwen3", "Qwen3ForCausalLM"}};

Result<void> read_keys(const ConfigKeys& keys, ModelConfig& /*config*/) {
  return keys.refuse("attention.sliding_window", "a sliding window");
}

/// x += attention(norm(x)); x += ffn(norm(x)).   x: [n, hidden_size]
void write_layer(LayerOps& ops, ViewId x) {
  write_head_normed_attention(ops, x);
  write_silu_ffn(ops, x);
}

}  // namespace

const Architecture kQwen3 = {.name = "qwen3",
                             .gguf_name = "qwen3",
                             .layer_weights = kWeights,
                             .hf_families = kFamilies,
                             .hf_modules = {},
                             .read_keys = read_keys,
                             .translate_fields = translate_qwen_fields,
                             .write_layer = write_layer};

}  // namespace luna::model
