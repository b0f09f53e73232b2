// The rows of op conformance. A new op is one more of them, and its formula in the oracle.
#include "core/check/program_draft.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace luna::check {
namespace {

ViewId unchanged(ProgramDraft& /*draft*/, ViewId x) {
  return x;
}

ViewId embed(ProgramDraft& draft, ViewId x) {
  const std::uint32_t width = draft.width(x);
  const WeightForm* const form = draft.form_for(width);
  if (form == nullptr) return x;
  const ViewId other = draft.builder().embed(draft.matrix(ProgramDraft::kVocab, width, *form));
  draft.builder().add_in_place(other, x);
  return other;
}

ViewId rms_norm(ProgramDraft& draft, ViewId x) {
  const ViewId w = draft.vector(draft.width(x), 0.5F, 1.5F);
  const float eps = draft.one_of({1e-6F, 1e-5F, 0.25F});
  if (draft.coin()) return draft.builder().rms_norm(x, w, eps);
  draft.builder().add_op(LUNA_OP_RMS_NORM, {x, w}, {x}, {std::bit_cast<std::uint32_t>(eps)});
  return x;
}

ViewId head_norm(ProgramDraft& draft, ViewId x) {
  std::uint32_t n_heads = 1 + draft.below(4);
  while (draft.width(x) % n_heads != 0)
    --n_heads;
  const ViewId w = draft.vector(draft.width(x) / n_heads, 0.5F, 1.5F);
  draft.builder().head_norm_in_place(x, w, draft.one_of({1e-6F, 1e-5F, 0.25F}));
  return x;
}

ViewId layer_norm(ProgramDraft& draft, ViewId x) {
  const ViewId w = draft.vector(draft.width(x), 0.5F, 1.5F);
  const ViewId b = draft.vector(draft.width(x), -1.0F, 1.0F);
  return draft.builder().layer_norm(x, w, b, draft.one_of({1e-6F, 1e-5F, 0.25F}));
}

ViewId linear(ProgramDraft& draft, ViewId x) {
  return draft.linear(x, draft.one_of({1U, 5U, 48U, 130U, 256U}), false);
}

ViewId linear_with_bias(ProgramDraft& draft, ViewId x) {
  return draft.linear(x, draft.one_of({5U, 48U, 96U}), true);
}

// Two products as columns of one activation: gate and up, or q, k and v.
ViewId linear_into_columns(ProgramDraft& draft, ViewId x) {
  const std::uint32_t n_cols = draft.width(x);
  const WeightForm* const form = draft.form_for(n_cols);
  if (form == nullptr) return x;
  const std::array<std::uint32_t, 2> n = {16 * (1 + draft.below(4)), 16 * (1 + draft.below(4))};
  const ViewId y = draft.builder().activation(LUNA_DIM_ROWS, n[0] + n[1]);
  for (std::uint32_t part = 0; part < 2; ++part)
    draft.linear_into(
        x, *form, draft.builder().columns(y, part == 0 ? 0 : n[0], n[part]), n[0] + n[1]);
  return y;
}

ViewId rope(ProgramDraft& draft, ViewId x) {
  const std::uint32_t width = draft.width(x);
  std::uint32_t n_heads = 1 + draft.below(4);
  while (width % n_heads != 0 || width / n_heads < 2)
    if (--n_heads == 0) return x;
  const std::uint32_t head_dim = width / n_heads;
  const std::uint32_t n_rot = draft.coin() ? head_dim / 2 * 2 : 2 * (1 + draft.below(head_dim / 2));
  std::vector<double> frequencies(n_rot / 2);
  for (std::size_t p = 0; p < frequencies.size(); ++p)
    frequencies[p] = std::pow(1e4, -static_cast<double>(p) / static_cast<double>(head_dim / 2));
  draft.builder().rope_in_place(x,
                                draft.builder().constant(frequencies),
                                {n_heads,
                                 head_dim,
                                 n_rot,
                                 draft.coin() ? LUNA_ROPE_HALVES : LUNA_ROPE_INTERLEAVED,
                                 draft.coin() ? 1.0F : 1.2F});
  return x;
}

std::uint32_t attend_width(ProgramDraft& draft) {
  return (draft.n_heads() + 2 * draft.kv().n_kv_heads) * draft.kv().head_dim;
}

/// q, k and v of an input.
struct Heads {
  ViewId q, k, v;
};

Heads heads_of(ProgramDraft& draft, ViewId x) {
  ProgramBuilder& builder = draft.builder();
  const std::uint32_t n_q = draft.n_heads() * draft.kv().head_dim;
  const std::uint32_t n_kv = draft.kv().n_kv_heads * draft.kv().head_dim;
  return {builder.columns(x, 0, n_q),
          builder.columns(x, n_q, n_kv),
          builder.columns(x, n_q + n_kv, n_kv)};
}

ViewId attend(ProgramDraft& draft, ViewId x) {
  const ViewId qkv = draft.with_columns(x, attend_width(draft));
  const auto layer = draft.next_layer();
  if (!layer || draft.width(qkv) != attend_width(draft)) return x;
  const Heads heads = heads_of(draft, qkv);
  draft.builder().kv_write(heads.k, heads.v, *layer);
  return draft.builder().attend(
      heads.q,
      {*layer,
       draft.n_heads(),
       draft.between(0.5F, 1.5F) / std::sqrt(static_cast<float>(draft.kv().head_dim)),
       draft.one_of({0U, 0U, 0U, 1U, 4U, 33U, LUNA_PARTITION_TOKENS + 5U}),
       draft.one_of({0.0F, 0.0F, 2.0F, 30.0F})});
}

ViewId kv_copy(ProgramDraft& draft, ViewId x) {
  draft.builder().kv_copy();
  return attend(draft, x);
}

ViewId kv_prune(ProgramDraft& draft, ViewId x) {
  const Heads heads = heads_of(draft, x);
  // Scores far apart, so that what is kept is no matter of the last bit.
  const float scale = 2.0F / std::sqrt(static_cast<float>(draft.kv().head_dim));
  ViewId y = x;
  while (const auto layer = draft.next_layer()) {
    draft.builder().kv_write(heads.k, heads.v, *layer);
    y = draft.builder().attend(heads.q, {*layer, draft.n_heads(), scale, 0, 0.0F});
    draft.builder().kv_prune(heads.q,
                             {*layer, draft.n_heads(), scale, 0.0F, 0, ProgramDraft::kLayers - 1});
  }
  return y;
}

ViewId act_mul(ProgramDraft& draft, ViewId x) {
  ProgramBuilder& builder = draft.builder();
  const std::uint32_t kind = draft.coin() ? LUNA_ACT_SILU : LUNA_ACT_GELU_TANH;
  const std::uint32_t half = draft.width(x) / 2;
  if (half == 0 || draft.coin()) return builder.act_mul(x, x, kind);
  return builder.act_mul(builder.columns(x, 0, half), builder.columns(x, half, half), kind);
}

ViewId add(ProgramDraft& draft, ViewId x) {
  const ViewId y = draft.builder().add(x, x);
  if (draft.coin()) draft.builder().add_in_place(y, x);
  return y;
}

ViewId scale(ProgramDraft& draft, ViewId x) {
  draft.builder().scale_in_place(x, draft.between(-2.0F, 2.0F));
  return x;
}

ViewId softcap(ProgramDraft& draft, ViewId x) {
  draft.builder().softcap_in_place(x, draft.one_of({0.5F, 1.5F, 30.0F}));
  return x;
}

ViewId copy(ProgramDraft& draft, ViewId x) {
  return draft.builder().copy(x);
}

ViewId convert(ProgramDraft& draft, ViewId x) {
  const std::uint32_t dtype = draft.coin() ? LUNA_DTYPE_BF16 : LUNA_DTYPE_F16;
  return draft.builder().convert(draft.builder().convert(x, dtype), LUNA_DTYPE_F32);
}

ViewId send(ProgramDraft& draft, ViewId x) {
  draft.builder().send(x, draft.peer(), draft.next_tag());
  return x;
}

ViewId recv(ProgramDraft& draft, ViewId x) {
  const ViewId y = draft.builder().recv(draft.width(x), draft.peer(), draft.next_tag());
  draft.builder().add_in_place(y, x);
  return y;
}

ViewId all_reduce(ProgramDraft& draft, ViewId x) {
  return draft.builder().all_reduce(x);
}

ViewId barrier(ProgramDraft& draft, ViewId x) {
  draft.builder().barrier();
  return x;
}

ViewId all_gather(ProgramDraft& draft, ViewId x) {
  ColumnGather gather;
  gather.n_columns = 24 + draft.below(40);
  gather.unit = 1 + draft.below(12);
  gather.rank = draft.rank();
  gather.n_ranks = 2;
  gather.tag = draft.next_tag();
  const std::uint32_t own = gather.share(gather.rank).count;
  if (draft.width(x) < own) return x;
  return draft.builder().all_gather(draft.builder().columns(x, 0, own), gather);
}

std::uint32_t wide(ProgramDraft& draft) {
  return draft.one_of({64U, 100U, 256U});
}

std::uint32_t of_groups(ProgramDraft& draft) {
  return draft.one_of({32U, 64U, 256U, 512U});
}

constexpr auto kRows = std::to_array<OpRow>({
    {LUNA_OP_EMBED, "embed", embed, of_groups},
    {LUNA_OP_RMS_NORM, "rms_norm", rms_norm},
    {LUNA_OP_LAYER_NORM, "layer_norm", layer_norm},
    {LUNA_OP_HEAD_NORM, "head_norm", head_norm},
    {LUNA_OP_LINEAR, "linear", linear, of_groups},
    {LUNA_OP_LINEAR, "linear with a bias", linear_with_bias, of_groups},
    {LUNA_OP_LINEAR, "linear into columns", linear_into_columns, of_groups},
    {LUNA_OP_ROPE, "rope", rope},
    {.op = LUNA_OP_KV_WRITE,
     .name = "kv_write",
     .append = attend,
     .width = attend_width,
     .uses_kv = true},
    {.op = LUNA_OP_ATTEND,
     .name = "attend",
     .append = attend,
     .width = attend_width,
     .uses_kv = true},
    {LUNA_OP_ACT_MUL, "act_mul", act_mul},
    {LUNA_OP_ADD, "add", add},
    {LUNA_OP_SCALE, "scale", scale},
    {LUNA_OP_SOFTCAP, "softcap", softcap},
    {LUNA_OP_GATHER_ROWS, "gather_rows", unchanged},
    {LUNA_OP_LOGITS, "logits", unchanged},
    {LUNA_OP_TOP_CANDIDATES, "top_candidates", unchanged},
    {LUNA_OP_COPY, "copy", copy},
    {LUNA_OP_CONVERT, "convert", convert},
    {.op = LUNA_OP_KV_COPY,
     .name = "kv_copy",
     .append = kv_copy,
     .width = attend_width,
     .uses_kv = true},
    {.op = LUNA_OP_KV_PRUNE,
     .name = "kv_prune",
     .append = kv_prune,
     .width = attend_width,
     .uses_kv = true},
    {.op = LUNA_OP_SEND, .name = "send", .append = send, .uses_comm = true},
    {.op = LUNA_OP_RECV, .name = "recv", .append = recv, .uses_comm = true},
    {.op = LUNA_OP_ALL_REDUCE, .name = "all_reduce", .append = all_reduce, .uses_comm = true},
    {.op = LUNA_OP_BARRIER, .name = "barrier", .append = barrier, .uses_comm = true},
    {.op = LUNA_OP_ALL_GATHER,
     .name = "all_gather",
     .append = all_gather,
     .width = wide,
     .uses_comm = true},
});

}  // namespace

std::span<const OpRow> op_rows() {
  return kRows;
}

}  // namespace luna::check
