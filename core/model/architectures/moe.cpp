// Mixtures of experts: Mixtral, a Llama, and Qwen3-MoE, a Qwen3, whose FFN is several small ones of
// which each row takes a few.
// Source  Jiang et al. 2024 (Mixtral of experts), section 2; Yang et al. 2025 (Qwen3 technical
//         report), section 2; modeling_mixtral and modeling_qwen3_moe of huggingface/transformers
#include "core/model/architectures/all.hpp"
#include "core/model/architectures/common_parts.hpp"
#include "core/model/config_keys.hpp"
#include "core/model/hf_fields.hpp"
#include "core/model/layer_ops.hpp"

#include <array>

namespace luna::model {
namespace {

constexpr std::array kMixtralWeights = {LayerWeight::attention_norm,
                                        LayerWeight::query,
                                        LayerWeight::key,
                                        LayerWeight::value,
                                        LayerWeight::attention_out,
                                        LayerWeight::ffn_norm,
                                        LayerWeight::router,
                                        LayerWeight::expert_gate,
                                        LayerWeight::expert_up,
                                        LayerWeight::expert_down};
constexpr std::array kQwen3MoeWeights = {LayerWeight::attention_norm,
                                         LayerWeight::query,
                                         LayerWeight::query_norm,
                                         LayerWeight::key,
                                         LayerWeight::key_norm,
                                         LayerWeight::value,
                                         LayerWeight::attention_out,
                                         LayerWeight::ffn_norm,
                                         LayerWeight::router,
                                         LayerWeight::expert_gate,
                                         LayerWeight::expert_up,
                                         LayerWeight::expert_down};
constexpr std::array kMixtralFamilies = {
    HfFamily{.model_type = "mixtral", .class_name = "MixtralForCausalLM"}};
constexpr std::array kQwen3MoeFamilies = {
    HfFamily{.model_type = "qwen3_moe", .class_name = "Qwen3MoeForCausalLM"}};
// An expert's number stands where the star is.
constexpr std::array kMixtralModules = {
    HfModule{"block_sparse_moe.gate", "ffn_gate_inp"},
    HfModule{"block_sparse_moe.experts.*.w1", "ffn_gate_exps.*"},
    HfModule{"block_sparse_moe.experts.*.w3", "ffn_up_exps.*"},
    HfModule{"block_sparse_moe.experts.*.w2", "ffn_down_exps.*"}};
constexpr std::array kQwen3MoeModules = {HfModule{"mlp.gate", "ffn_gate_inp"},
                                         HfModule{"mlp.experts.*.gate_proj", "ffn_gate_exps.*"},
                                         HfModule{"mlp.experts.*.up_proj", "ffn_up_exps.*"},
                                         HfModule{"mlp.experts.*.down_proj", "ffn_down_exps.*"}};
constexpr std::string_view kNoSplit = "shares of experts are not built";
constexpr std::uint64_t kExpertsMax = 1024;

Result<void> read_experts(const ConfigKeys& keys, ModelConfig& config) {
  LUNA_TRY(config.experts.n, keys.count("expert_count", kExpertsMax));
  LUNA_TRY(config.experts.n_used, keys.count("expert_used_count", config.experts.n));
  LUNA_TRY(const auto ffn_size, keys.find_count("expert_feed_forward_length", kSizeMax));
  config.experts.ffn_size = ffn_size.value_or(config.ffn_size);
  return {};
}

Result<void> read_mixtral_keys(const ConfigKeys& keys, ModelConfig& config) {
  LUNA_TRY(const auto window, keys.find_count("attention.sliding_window", kWindowMax));
  config.window = {window.value_or(0), 0};
  return read_experts(keys, config);
}

Result<void> read_qwen3moe_keys(const ConfigKeys& keys, ModelConfig& config) {
  LUNA_TRY(keys.refuse("attention.sliding_window", "a sliding window"));
  LUNA_TRY(const auto normalizes, find_flag(keys.file(), keys.full("expert_weights_norm")));
  config.experts.normalizes = normalizes.value_or(true);  // as all published ones do
  return read_experts(keys, config);
}

Result<void> translate_mixtral_fields(const HfFields& fields, HfKeys& keys) {
  LUNA_TRY(fields.need_text("hidden_act", "silu"));
  LUNA_TRY(fields.refuse_partial_rotary());
  LUNA_TRY(const auto window, fields.find_count("sliding_window", kWindowMax));
  if (window) keys.add_count("attention.sliding_window", *window);
  LUNA_TRY(const std::uint32_t n, fields.count("num_local_experts", kExpertsMax));
  LUNA_TRY(const std::uint32_t n_used, fields.count("num_experts_per_tok", n));
  keys.add_count("expert_count", n);
  keys.add_count("expert_used_count", n_used);
  return {};
}

Result<void> translate_qwen3moe_fields(const HfFields& fields, HfKeys& keys) {
  LUNA_TRY(translate_qwen_fields(fields, keys));
  LUNA_TRY(const auto step, fields.find_count("decoder_sparse_step", kLayersMax));
  if (step.value_or(1) != 1)
    return fields.unsupported("decoder_sparse_step", "only experts in every layer are built");
  LUNA_TRY(const std::uint32_t n, fields.count("num_experts", kExpertsMax));
  LUNA_TRY(const std::uint32_t n_used, fields.count("num_experts_per_tok", n));
  LUNA_TRY(const std::uint32_t ffn_size, fields.count("moe_intermediate_size", kSizeMax));
  LUNA_TRY(const bool normalizes, fields.flag_or("norm_topk_prob", false));
  keys.add_count("expert_count", n);
  keys.add_count("expert_used_count", n_used);
  keys.add_count("expert_feed_forward_length", ffn_size);
  keys.add_flag("expert_weights_norm", normalizes);
  return {};
}

/// x += the weighted sum of what each row's experts make of norm(x).   x: [n, hidden_size]
void write_experts(LayerOps& ops, ViewId x) {
  const ViewId f = ops.norm(x, LayerWeight::ffn_norm);      // [n, hidden_size]
  const ViewId routes = ops.route(f, LayerWeight::router);  // [n, n_experts]
  const ViewId gate =                                       // [n, n_used * expert_ffn_size]
      ops.expert_linear(f, routes, LayerWeight::expert_gate);
  const ViewId up = ops.expert_linear(f, routes, LayerWeight::expert_up);
  const ViewId inner = ops.expert_act_mul(gate, up, LUNA_ACT_SILU);
  const ViewId out =  // [n, n_used * hidden_size]
      ops.expert_linear(inner, routes, LayerWeight::expert_down);
  ops.add(x, ops.expert_sum(out, routes));
}

/// x += attention(norm(x)); x += experts(norm(x)).   x: [n, hidden_size]
void write_mixtral_layer(LayerOps& ops, ViewId x) {
  write_attention(ops, x);
  write_experts(ops, x);
}

/// The same, with query and key heads normed.
void write_qwen3moe_layer(LayerOps& ops, ViewId x) {
  write_head_normed_attention(ops, x);
  write_experts(ops, x);
}

}  // namespace

const Architecture kMixtral = {.name = "mixtral",
                               .gguf_name = "llama",
                               .layer_weights = kMixtralWeights,
                               .hf_families = kMixtralFamilies,
                               .hf_modules = kMixtralModules,
                               .has_permuted_gguf_heads = true,
                               .why_no_tensor_split = kNoSplit,
                               .read_keys = read_mixtral_keys,
                               .translate_fields = translate_mixtral_fields,
                               .write_layer = write_mixtral_layer};

const Architecture kQwen3Moe = {.name = "qwen3moe",
                                .gguf_name = "qwen3moe",
                                .layer_weights = kQwen3MoeWeights,
                                .hf_families = kQwen3MoeFamilies,
                                .hf_modules = kQwen3MoeModules,
                                .why_no_tensor_split = kNoSplit,
                                .read_keys = read_qwen3moe_keys,
                                .translate_fields = translate_qwen3moe_fields,
                                .write_layer = write_qwen3moe_layer};

}  // namespace luna::model
