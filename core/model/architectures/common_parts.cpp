#include "core/model/architectures/common_parts.hpp"

#include "core/model/hf_fields.hpp"

namespace luna::model {
namespace {

void attend(LayerOps& ops, ViewId x, bool norms_heads) {
  const ViewId a = ops.norm(x, LayerWeight::attention_norm);  // [n, hidden_size]
  const ViewId q = ops.linear(a, LayerWeight::query);         // [n, n_heads * head_dim]
  const ViewId k = ops.linear(a, LayerWeight::key);           // [n, n_kv_heads * head_dim]
  const ViewId v = ops.linear(a, LayerWeight::value);         // [n, n_kv_heads * head_dim]
  if (norms_heads) {
    ops.norm_heads(q, LayerWeight::query_norm);
    ops.norm_heads(k, LayerWeight::key_norm);
  }
  const ViewId mixed = ops.attend(q, k, v);  // [n, n_heads * head_dim]
  ops.add(x, ops.project(mixed, LayerWeight::attention_out));
}

}  // namespace

void write_attention(LayerOps& ops, ViewId x) {
  attend(ops, x, false);
}

void write_head_normed_attention(LayerOps& ops, ViewId x) {
  attend(ops, x, true);
}

void write_silu_ffn(LayerOps& ops, ViewId x) {
  const ViewId f = ops.norm(x, LayerWeight::ffn_norm);        // [n, hidden_size]
  const ViewId gate = ops.linear(f, LayerWeight::gate);       // [n, ffn_size]
  const ViewId up = ops.linear(f, LayerWeight::up);           // [n, ffn_size]
  const ViewId inner = ops.act_mul(gate, up, LUNA_ACT_SILU);  // [n, ffn_size]
  ops.add(x, ops.project(inner, LayerWeight::down));
}

Result<void> translate_qwen_fields(const HfFields& fields, HfKeys& keys) {
  LUNA_TRY(fields.need_text("hidden_act", "silu"));
  LUNA_TRY(const bool has_window, fields.flag_or("use_sliding_window", false));
  if (has_window) LUNA_TRY(fields.refuse_window_below(keys.context_length));
  return fields.refuse_partial_rotary();
}

}  // namespace luna::model
