// Gemma 2 and 3 (text): norms before and after attention and FFN, GeGLU, an embedding that is
// scaled, windows in most layers. Gemma 2 caps scores and logits; Gemma 3 norms query and key heads
// instead and rotates layers with a window by a base of their own.
// Source  Gemma Team 2024 (Gemma 2), section 2; Gemma Team 2025 (Gemma 3), section 2;
// modeling_gemma2
//         and modeling_gemma3 of huggingface/transformers
#include "core/model/architectures/all.hpp"
#include "core/model/config_keys.hpp"
#include "core/model/hf_fields.hpp"
#include "core/model/layer_ops.hpp"
#include "core/model/rope_frequencies.hpp"

#include <luna/abi/quant.h>

#include <array>
#include <cmath>

namespace luna::model {
namespace {

constexpr std::array kGemma2Weights = {LayerWeight::attention_norm,
                                       LayerWeight::query,
                                       LayerWeight::key,
                                       LayerWeight::value,
                                       LayerWeight::attention_out,
                                       LayerWeight::attention_post_norm,
                                       LayerWeight::ffn_norm,
                                       LayerWeight::gate,
                                       LayerWeight::up,
                                       LayerWeight::down,
                                       LayerWeight::ffn_post_norm};
constexpr std::array kGemma3Weights = {LayerWeight::attention_norm,
                                       LayerWeight::query,
                                       LayerWeight::query_norm,
                                       LayerWeight::key,
                                       LayerWeight::key_norm,
                                       LayerWeight::value,
                                       LayerWeight::attention_out,
                                       LayerWeight::attention_post_norm,
                                       LayerWeight::ffn_norm,
                                       LayerWeight::gate,
                                       LayerWeight::up,
                                       LayerWeight::down,
                                       LayerWeight::ffn_post_norm};
constexpr std::array kGemma2Families = {
    HfFamily{.model_type = "gemma2", .class_name = "Gemma2ForCausalLM", .has_tied_head = true}};
constexpr std::array kGemma3Families = {HfFamily{.model_type = "gemma3_text",
                                                 .class_name = "Gemma3ForCausalLM",
                                                 .has_tied_head = true,
                                                 .rope_base = 1e6}};
constexpr std::array kModules = {HfModule{"post_attention_layernorm", "post_attention_norm"},
                                 HfModule{"pre_feedforward_layernorm", "ffn_norm"},
                                 HfModule{"post_feedforward_layernorm", "post_ffw_norm"}};

/// What differs between the two where a file does not say it.
struct Defaults {
  std::uint32_t window_period;  // one layer of so many sees everything
  std::uint32_t
      n_layers_wide;  // the one model whose scores are scaled by another width than heads'
};
constexpr Defaults kGemma2Defaults = {2, 46};
constexpr Defaults kGemma3Defaults = {6, 62};
constexpr double kGemma2ScoreCap = 50.0;
constexpr double kGemma2LogitCap = 30.0;
constexpr double kGemma3LocalBase = 10000.0;

Result<void> read_common_keys(const ConfigKeys& keys,
                              const Defaults& defaults,
                              ModelConfig& config) {
  LUNA_TRY(const auto window, keys.find_count("attention.sliding_window", kWindowMax));
  LUNA_TRY(const auto period, keys.find_count("attention.sliding_window_pattern", kLayersMax));
  config.window = {window.value_or(0), period.value_or(defaults.window_period)};
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  LUNA_TRY(const auto scale, keys.find_positive("attention.scale"));
  if (!scale && config.n_layers == defaults.n_layers_wide) {
    config.attention_scale = 1.0F / std::sqrt(static_cast<float>(config.hidden_size) /
                                              static_cast<float>(config.n_heads));
  }
  return {};
}

Result<void> read_gemma2_keys(const ConfigKeys& keys, ModelConfig& config) {
  LUNA_TRY(read_common_keys(keys, kGemma2Defaults, config));
  // GGUF files of before the keys were written mean these; a folder says what it has.
  const bool is_gguf = keys.file().container() == LUNA_CONTAINER_GGUF;
  LUNA_TRY(const auto scores, keys.find_positive("attn_logit_softcapping"));
  LUNA_TRY(const auto logits, keys.find_positive("final_logit_softcapping"));
  config.attention_softcap = static_cast<float>(scores.value_or(is_gguf ? kGemma2ScoreCap : 0.0));
  config.logit_softcap = static_cast<float>(logits.value_or(is_gguf ? kGemma2LogitCap : 0.0));
  return {};
}

Result<void> read_gemma3_keys(const ConfigKeys& keys, ModelConfig& config) {
  LUNA_TRY(read_common_keys(keys, kGemma3Defaults, config));
  LUNA_TRY(const auto scores, keys.find_positive("attn_logit_softcapping"));
  LUNA_TRY(const auto logits, keys.find_positive("final_logit_softcapping"));
  config.attention_softcap = static_cast<float>(scores.value_or(0.0));
  config.logit_softcap = static_cast<float>(logits.value_or(0.0));
  LUNA_TRY(const double base, keys.positive("rope.freq_base_swa", kGemma3LocalBase));
  config.local_rope = make_rope(config.rope.n_rot, base, {}, {});
  config.local_rope->interleaved = config.rope.interleaved;
  return {};
}

Result<void> translate_common_fields(const HfFields& fields,
                                     const Defaults& defaults,
                                     HfKeys& keys) {
  LUNA_TRY(fields.need_text("hidden_activation", "gelu_pytorch_tanh"));
  LUNA_TRY(fields.refuse_flag("attention_bias"));
  LUNA_TRY(fields.refuse_flag("use_bidirectional_attention"));
  LUNA_TRY(fields.refuse_partial_rotary());
  LUNA_TRY(const auto width, fields.find_positive("query_pre_attn_scalar"));
  keys.add_number("attention.scale", 1.0 / std::sqrt(width.value_or(256.0)));
  LUNA_TRY(const auto window, fields.find_count("sliding_window", kWindowMax));
  if (window) keys.add_count("attention.sliding_window", *window);
  LUNA_TRY(const auto stated, fields.find_count("sliding_window_pattern", kLayersMax));
  LUNA_TRY(const std::uint32_t period,
           fields.window_period(keys.n_layers, stated.value_or(defaults.window_period)));
  keys.add_count("attention.sliding_window_pattern", period);
  return {};
}

/// A cap of null is none; one that is absent is the family's.
Result<void> translate_cap(const HfFields& fields,
                           std::string_view field,
                           std::string_view key,
                           std::optional<double> otherwise,
                           HfKeys& keys) {
  LUNA_TRY(const auto cap, fields.find_positive(field));
  const std::optional<double> used = cap || fields.has(field) ? cap : otherwise;
  if (used) keys.add_number(key, *used);
  return {};
}

Result<void> translate_gemma2_fields(const HfFields& fields, HfKeys& keys) {
  LUNA_TRY(translate_common_fields(fields, kGemma2Defaults, keys));
  LUNA_TRY(translate_cap(
      fields, "attn_logit_softcapping", "attn_logit_softcapping", kGemma2ScoreCap, keys));
  return translate_cap(
      fields, "final_logit_softcapping", "final_logit_softcapping", kGemma2LogitCap, keys);
}

Result<void> translate_gemma3_fields(const HfFields& fields, HfKeys& keys) {
  LUNA_TRY(translate_common_fields(fields, kGemma3Defaults, keys));
  LUNA_TRY(translate_cap(
      fields, "attn_logit_softcapping", "attn_logit_softcapping", std::nullopt, keys));
  LUNA_TRY(translate_cap(
      fields, "final_logit_softcapping", "final_logit_softcapping", std::nullopt, keys));
  // Older files name the local base, newer ones describe both kinds of layers.
  LUNA_TRY(const auto older, fields.find_positive("rope_local_base_freq"));
  double base = older.value_or(kGemma3LocalBase);
  LUNA_TRY(const auto both, fields.find_object("rope_parameters"));
  if (both) {
    LUNA_TRY(const auto local, both->find_object("sliding_attention"));
    if (local) {
      LUNA_TRY(local->need_text("rope_type", "default"));
      LUNA_TRY(base, local->positive("rope_theta"));
    }
  }
  keys.add_number("rope.freq_base_swa", base);
  return {};
}

/// x += norm(gelu(gate) * up, down), the half that both have.   x: [n, hidden_size]
void write_ffn(LayerOps& ops, ViewId x) {
  const ViewId f = ops.norm(x, LayerWeight::ffn_norm);             // [n, hidden_size]
  const ViewId gate = ops.linear(f, LayerWeight::gate);            // [n, ffn_size]
  const ViewId up = ops.linear(f, LayerWeight::up);                // [n, ffn_size]
  const ViewId inner = ops.act_mul(gate, up, LUNA_ACT_GELU_TANH);  // [n, ffn_size]
  const ViewId out = ops.project(inner, LayerWeight::down);        // [n, hidden_size]
  ops.add(x, ops.norm(out, LayerWeight::ffn_post_norm));
}

/// x += norm(attention(norm(x))); x += norm(ffn(norm(x))).   x: [n, hidden_size]
void write_gemma2_layer(LayerOps& ops, ViewId x) {
  const ViewId a = ops.norm(x, LayerWeight::attention_norm);          // [n, hidden_size]
  const ViewId q = ops.linear(a, LayerWeight::query);                 // [n, n_heads * head_dim]
  const ViewId k = ops.linear(a, LayerWeight::key);                   // [n, n_kv_heads * head_dim]
  const ViewId v = ops.linear(a, LayerWeight::value);                 // [n, n_kv_heads * head_dim]
  const ViewId mixed = ops.attend(q, k, v);                           // [n, n_heads * head_dim]
  const ViewId out = ops.project(mixed, LayerWeight::attention_out);  // [n, hidden_size]
  ops.add(x, ops.norm(out, LayerWeight::attention_post_norm));
  write_ffn(ops, x);
}

/// The same, with query and key heads normed.
void write_gemma3_layer(LayerOps& ops, ViewId x) {
  const ViewId a = ops.norm(x, LayerWeight::attention_norm);  // [n, hidden_size]
  const ViewId q = ops.linear(a, LayerWeight::query);         // [n, n_heads * head_dim]
  const ViewId k = ops.linear(a, LayerWeight::key);           // [n, n_kv_heads * head_dim]
  const ViewId v = ops.linear(a, LayerWeight::value);         // [n, n_kv_heads * head_dim]
  ops.norm_heads(q, LayerWeight::query_norm);
  ops.norm_heads(k, LayerWeight::key_norm);
  const ViewId mixed = ops.attend(q, k, v);                           // [n, n_heads * head_dim]
  const ViewId out = ops.project(mixed, LayerWeight::attention_out);  // [n, hidden_size]
  ops.add(x, ops.norm(out, LayerWeight::attention_post_norm));
  write_ffn(ops, x);
}

}  // namespace

const Architecture kGemma2 = {.name = "gemma2",
                              .gguf_name = "gemma2",
                              .layer_weights = kGemma2Weights,
                              .hf_families = kGemma2Families,
                              .hf_modules = kModules,
                              .has_hf_norms_less_one = true,
                              .read_keys = read_gemma2_keys,
                              .translate_fields = translate_gemma2_fields,
                              .write_layer = write_gemma2_layer};

const Architecture kGemma3 = {.name = "gemma3",
                              .gguf_name = "gemma3",
                              .layer_weights = kGemma3Weights,
                              .hf_families = kGemma3Families,
                              .hf_modules = kModules,
                              .has_hf_norms_less_one = true,
                              .read_keys = read_gemma3_keys,
                              .translate_fields = translate_gemma3_fields,
                              .write_layer = write_gemma3_layer};

}  // namespace luna::model
