// Qwen2 and Qwen2.5: a Llama with biases on query, key and value.
// Source  Yang et al. 2024 (Qwen2 technical report), section 2.2; modeling_qwen2 of
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
                                 LayerWeight::query_bias,
                                 LayerWeight::key,
                                 LayerWeight::key_bias,
                                 LayerWeight::value,
                                 LayerWeight::value_bias,
                                 LayerWeight::attention_out,
                                 LayerWeight::ffn_norm,
                                 LayerWeight::gate,
                                 LayerWeight::up,
                                 LayerWeight::down};
constexpr std::array kFamilies = {HfFamily{"qwen2", "Qwen2ForCausalLM"}};

Result<void> read_keys(const ConfigKeys& keys, ModelConfig& /*config*/) {
  return keys.refuse("attention.sliding_window", "a sliding window");
}

/// x += attention(norm(x)); x += ffn(norm(x)).   x: [n, hidden_size]
void write_layer(LayerOps& ops, ViewId x) {
  const ViewId a = ops.norm(x, LayerWeight::attention_norm);  // [n, hidden_size]
  const ViewId q =                                            // [n, n_heads * head_dim]
      ops.linear(a, LayerWeight::query, LayerWeight::query_bias);
  const ViewId k =  // [n, n_kv_heads * head_dim]
      ops.linear(a, LayerWeight::key, LayerWeight::key_bias);
  const ViewId v =  // [n, n_kv_heads * head_dim]
      ops.linear(a, LayerWeight::value, LayerWeight::value_bias);
  const ViewId mixed = ops.attend(q, k, v);  // [n, n_heads * head_dim]
  ops.add(x, ops.project(mixed, LayerWeight::attention_out));
  write_silu_ffn(ops, x);
}

}  // namespace

const Architecture kQwen2 = {.name = "qwen2",
                             .gguf_name = "qwen2",
                             .layer_weights = kWeights,
                             .hf_families = kFamilies,
                             .hf_modules = {},
                             .why_no_tensor_split = "shares of biases are not built",
                             .read_keys = read_keys,
                             .translate_fields = translate_qwen_fields,
                             .write_layer = write_layer};

}  // namespace luna::model
