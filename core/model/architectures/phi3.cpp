// Phi-3, Phi-3.5, Phi-4-mini: a Llama with fused weights, a window and, for long contexts, rotary
// frequencies that are divided pair by pair.
// Source  Abdin et al. 2024 (Phi-3), section 2; Ding et al. 2024 (LongRoPE), section 3;
// modeling_phi3
//         of huggingface/transformers
#include "core/model/architectures/all.hpp"
#include "core/model/config_keys.hpp"
#include "core/model/hf_fields.hpp"
#include "core/model/layer_ops.hpp"

#include <array>

namespace luna::model {
namespace {

constexpr std::array kWeights = {LayerWeight::attention_norm,
                                 LayerWeight::query_key_value,
                                 LayerWeight::attention_out,
                                 LayerWeight::ffn_norm,
                                 LayerWeight::gate_up,
                                 LayerWeight::down};
constexpr std::array kFamilies = {HfFamily{.model_type = "phi3", .class_name = "Phi3ForCausalLM"}};
constexpr std::array kModules = {HfModule{"self_attn.qkv_proj", "attn_qkv"},
                                 HfModule{"mlp.gate_up_proj", "ffn_up"}};

Result<void> read_keys(const ConfigKeys& keys, ModelConfig& config) {
  LUNA_TRY(const auto window, keys.find_count("attention.sliding_window", kWindowMax));
  config.window = {window.value_or(0), 0};
  return {};
}

Result<void> translate_fields(const HfFields& fields, HfKeys& keys) {
  LUNA_TRY(fields.need_text("hidden_act", "silu"));
  LUNA_TRY(fields.refuse_flag("attention_bias"));
  LUNA_TRY(const auto window, fields.find_count("sliding_window", kWindowMax));
  if (window) keys.add_count("attention.sliding_window", *window);
  return {};
}

/// x += attention(norm(x)); x += ffn(norm(x)).   x: [n, hidden_size]
void write_layer(LayerOps& ops, ViewId x) {
  const ModelConfig& c = ops.config();
  const std::uint32_t n_query = c.n_heads * c.head_dim;
  const std::uint32_t n_kv = c.n_kv_heads * c.head_dim;
  const ViewId a = ops.norm(x, LayerWeight::attention_norm);       // [n, hidden_size]
  const ViewId qkv = ops.linear(a, LayerWeight::query_key_value);  // [n, n_query + 2 * n_kv]
  const ViewId q = ops.columns(qkv, 0, n_query);
  const ViewId k = ops.columns(qkv, n_query, n_kv);
  const ViewId v = ops.columns(qkv, n_query + n_kv, n_kv);
  const ViewId mixed = ops.attend(q, k, v);  // [n, n_heads * head_dim]
  ops.add(x, ops.project(mixed, LayerWeight::attention_out));

  const ViewId f = ops.norm(x, LayerWeight::ffn_norm);                   // [n, hidden_size]
  const ViewId gate_up = ops.linear(f, LayerWeight::gate_up);            // [n, 2 * ffn_size]
  const ViewId inner = ops.act_mul(ops.columns(gate_up, 0, c.ffn_size),  // [n, ffn_size]
                                   ops.columns(gate_up, c.ffn_size, c.ffn_size),
                                   LUNA_ACT_SILU);
  ops.add(x, ops.project(inner, LayerWeight::down));
}

}  // namespace

const Architecture kPhi3 = {.name = "phi3",
                            .gguf_name = "phi3",
                            .layer_weights = kWeights,
                            .hf_families = kFamilies,
                            .hf_modules = kModules,
                            .why_no_tensor_split = "shares of fused weights are not built",
                            .read_keys = read_keys,
                            .translate_fields = translate_fields,
                            .write_layer = write_layer};

}  // namespace luna::model
