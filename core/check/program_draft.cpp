#include "core/check/program_draft.hpp"

#include <algorithm>

namespace luna::check {
namespace {

constexpr const char* kNumerics[] = {"f32", "i12", "i8", "bf16"};

const char* dtype_name(std::uint32_t dtype) {
  switch (dtype) {
    case LUNA_DTYPE_F32:
      return "FP32";
    case LUNA_DTYPE_F16:
      return "FP16";
    case LUNA_DTYPE_BF16:
      return "BF16";
    case LUNA_DTYPE_I8:
      return "INT8";
    default:
      return "of another type";
  }
}

bool fits(const WeightForm& form, std::uint32_t width) {
  const std::uint32_t unit = std::max(form.group, form.super);
  return unit == 0 || width % unit == 0;
}

}  // namespace

std::string offer_text(const DeviceOffer& offer) {
  return std::string("class ") + (offer.numerics < 4 ? kNumerics[offer.numerics] : "unknown") +
         ", KV " + dtype_name(offer.kv_dtype);
}

ProgramLimits ProgramDraft::draw_limits(std::mt19937_64& random,
                                        const DeviceOffer& offer,
                                        bool observes) {
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  constexpr std::uint32_t kHeadDims[] = {32, 32, 64, 96, 128};
  ProgramLimits limits;
  limits.numerics = offer.numerics;
  limits.n_rows_max = 17 + below(48);
  limits.n_seqs_max = 4;
  limits.n_out_rows_max = limits.n_rows_max;
  // Two partitions of attention in one program of three.
  limits.n_positions_max = below(3) == 0 ? LUNA_PARTITION_TOKENS + 60 : 160;
  limits.kv = {kLayers,
               1 + below(2),
               kHeadDims[below(5)],
               offer.kv_dtype,
               32U << below(3),
               observes ? LUNA_KV_OBSERVED : 0U};
  limits.n_blocks_per_seq_max =
      (limits.n_positions_max + limits.kv.block_tokens - 1) / limits.kv.block_tokens;
  return limits;
}

ProgramDraft::ProgramDraft(std::uint64_t seed, const DeviceOffer& offer, bool observes)
    : random_(seed),
      offer_(offer),
      limits_(draw_limits(random_, offer, observes)),
      kv_(limits_.kv),
      n_heads_(kv_.n_kv_heads * (1 + below(3))),
      builder_(limits_) {
  drawn_.comm_rank = below(2);
}

// Rough numbers have more bits than any 16-bit type: their roundings count.
void ProgramDraft::begin(std::uint32_t width, bool is_rough) {
  drawn_.weights.push_back(draw_embedding(random_, kVocab, width));
  x_ = builder_.embed(builder_.weight(0, kVocab, width));
  if (is_rough) builder_.scale_in_place(x_, 0.37F);
}

void ProgramDraft::append(const OpRow& row) {
  drawn_.has_kv |= row.uses_kv;
  drawn_.has_comm |= row.uses_comm;
  drawn_.can_copy_kv |= row.op == LUNA_OP_KV_COPY;
  drawn_.can_prune |= row.op == LUNA_OP_KV_PRUNE;
  x_ = row.append(*this, x_);
  drawn_.text += (drawn_.text.empty() ? "" : ", ") + std::string(row.name);
}

Result<DrawnProgram> ProgramDraft::finish() {
  const ViewId y = builder_.gather_rows(x_);
  builder_.logits(y);
  builder_.top_candidates(y, 1 + below(std::min<std::uint32_t>(width(y), 40)));
  LUNA_TRY(drawn_.program, std::move(builder_).finish());
  drawn_.text += "; " + offer_text(offer_);
  return std::move(drawn_);
}

Result<DrawnProgram> ProgramDraft::of_row(const OpRow& row,
                                          std::uint64_t seed,
                                          const DeviceOffer& offer) {
  constexpr std::uint32_t kWidths[] = {7, 32, 64, 77, 100, 128, 192, 256, 576};
  ProgramDraft draft(seed, offer, row.op == LUNA_OP_KV_PRUNE);
  const std::uint32_t width = row.width != nullptr ? row.width(draft) : draft.one_of(kWidths);
  draft.begin(width, row.op != LUNA_OP_SCALE && draft.coin());
  draft.append(row);
  return draft.finish();
}

Result<DrawnProgram> ProgramDraft::of_rows(std::span<const OpRow* const> rows,
                                           std::uint64_t seed,
                                           const DeviceOffer& offer) {
  constexpr std::uint32_t kWidths[] = {32, 64, 96, 128, 256, 288};
  ProgramDraft draft(seed, offer, false);
  draft.begin(draft.one_of(kWidths), false);
  for (std::uint32_t n = 3 + draft.below(6); n > 0; --n) {
    const OpRow& row = *rows[draft.below(static_cast<std::uint32_t>(rows.size()))];
    // Blocks are copied before anybody reads them; two layers are written.
    const bool is_late = row.op == LUNA_OP_KV_COPY && draft.drawn_.has_kv;
    if (is_late || (row.uses_kv && draft.n_layers_written_ == kLayers)) continue;
    draft.append(row);
  }
  return draft.finish();
}

Result<DrawnProgram> ProgramDraft::of_form(const WeightForm& form,
                                           std::uint64_t seed,
                                           const DeviceOffer& offer) {
  constexpr std::uint32_t kOutputs[] = {1, 5, 48, 130};
  ProgramDraft draft(seed, offer, false);
  const std::uint32_t unit = std::max({form.group, form.super, 1U});
  const std::uint32_t n_cols = form.is_dense()     ? 30 + draft.below(300)
                               : form.group == 512 ? 512
                                                   : unit * (1 + draft.below(576 / unit + 1));
  draft.begin(n_cols, draft.coin());
  const std::uint32_t n_rows = draft.one_of(kOutputs);
  const ViewId w = draft.matrix(n_rows, n_cols, form);
  const LinearNumerics numerics =
      linear_numerics(draft.drawn_.weights.back().desc, n_rows, offer.numerics);
  draft.x_ = draft.builder_.linear(draft.x_, w, numerics);
  draft.drawn_.text = "a linear op over a weight of " + std::string(form.name) + ", " +
                      std::to_string(n_rows) + " x " + std::to_string(n_cols);
  return draft.finish();
}

const WeightForm* ProgramDraft::form_for(std::uint32_t width) {
  std::vector<const WeightForm*> fitting;
  for (const WeightForm& form : offer_.forms)
    if (fits(form, width) && form.group != 512) fitting.push_back(&form);
  return fitting.empty() ? nullptr : fitting[below(static_cast<std::uint32_t>(fitting.size()))];
}

ViewId ProgramDraft::matrix(std::uint32_t n_rows, std::uint32_t n_cols, const WeightForm& form) {
  const auto index = static_cast<std::uint32_t>(drawn_.weights.size());
  drawn_.weights.push_back(draw_weight(random_, n_rows, n_cols, form));
  return builder_.weight(index, n_rows, n_cols);
}

ViewId ProgramDraft::vector(std::uint32_t n, float low, float high) {
  const auto index = static_cast<std::uint32_t>(drawn_.weights.size());
  drawn_.weights.push_back(draw_vector(random_, n, low, high));
  return builder_.weight(index, n);
}

ViewId ProgramDraft::linear(ViewId x, std::uint32_t n, bool has_bias) {
  const std::uint32_t n_cols = width(x);
  const WeightForm* const form = form_for(n_cols);
  if (form == nullptr) return x;
  const ViewId w = matrix(n, n_cols, *form);
  const LinearNumerics numerics = linear_numerics(drawn_.weights.back().desc, n, limits_.numerics);
  if (!has_bias) return builder_.linear(x, w, numerics);
  return builder_.linear(x, w, numerics, vector(n, -1.0F, 1.0F));
}

void ProgramDraft::linear_into(ViewId x, const WeightForm& form, ViewId y, std::uint32_t n_total) {
  const ViewId w = matrix(width(y), width(x), form);
  const LinearNumerics numerics =
      linear_numerics(drawn_.weights.back().desc, n_total, limits_.numerics);
  builder_.linear_into(x, w, numerics, std::nullopt, y);
}

ViewId ProgramDraft::with_columns(ViewId x, std::uint32_t n) {
  if (width(x) >= n) return builder_.columns(x, 0, n);
  return linear(x, n, false);
}

std::optional<std::uint32_t> ProgramDraft::next_layer() {
  if (n_layers_written_ == kLayers) return std::nullopt;
  return n_layers_written_++;
}

}  // namespace luna::check
