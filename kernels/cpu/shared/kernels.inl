// All kernels of an instruction set, in the order they build on each other, and its table. Included
// after vector_math.inl, lines.inl and the set's chain.
// clang-format off
#include "kernels/cpu/shared/quantize.inl"
#include "kernels/cpu/shared/norm_rope.inl"
#include "kernels/cpu/shared/logits.inl"
#include "kernels/cpu/shared/codes.inl"
#include "kernels/cpu/shared/linear.inl"
#include "kernels/cpu/shared/linear_direct.inl"
#include "kernels/cpu/shared/linear_dense.inl"
#include "kernels/cpu/shared/kv.inl"
#include "kernels/cpu/shared/attend_panel.inl"
#include "kernels/cpu/shared/attend.inl"
#include "kernels/cpu/shared/merge.inl"
#include "kernels/cpu/shared/observe.inl"
// clang-format on

constexpr KernelSet make_set(Isa isa, const char* name) {
  KernelSet set{};
  set.isa = isa;
  set.name = name;
  set.quantize_rows = quantize_rows;
  set.round_rows = round_rows;
  set.linear = linear;
  set.unpack_row = unpack_row;
  set.kv_write = kv_write;
  set.attend = attend;
  set.attend_together = attend_together;
  set.attend_partial = attend_partial;
  set.merge_partials = merge_partials;
  set.observe = observe;
  set.rms_norm = rms_norm;
  set.layer_norm = layer_norm;
  set.rope = rope;
  set.act_mul = act_mul;
  set.add = add_rows;
  set.scale = scale_rows;
  set.softcap = softcap_rows;
  set.exp = exp_rows;
  set.round_bf16 = round_bf16;
  set.logits_chunks = logits_chunks;
  return set;
}
