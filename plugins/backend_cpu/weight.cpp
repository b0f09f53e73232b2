#include "weight.hpp"

#include "kernels/cpu/arithmetic.hpp"

#include <luna/float16.hpp>
#include <luna/op_program.hpp>

#include <cmath>
#include <cstring>

namespace luna::cpu {
namespace {

// What core writes on a linear op and what the kernels derive from the weight is one rule, stated
// on both sides of the border; these hold the two together.
constexpr luna_weight_desc described(std::uint64_t n_cols,
                                     std::uint32_t bits,
                                     std::uint32_t group,
                                     std::uint32_t super) {
  luna_weight_desc d{};
  d.klass = LUNA_WEIGHT_AFFINE;
  d.n_cols = n_cols;
  d.bits = bits;
  d.group = group;
  d.super = super;
  return d;
}
constexpr bool is_same_rule(const luna_weight_desc& d, std::uint64_t n_rows) {
  const LinearNumerics n = linear_numerics(d, n_rows);
  const std::uint32_t short_bits = linear_numerics(d, n_rows, LUNA_NUMERICS_I8).activation_bits;
  return short_bits == kernels::kShortActivationBits &&
         n.segment == kernels::segment_length(static_cast<std::int64_t>(n_rows),
                                              static_cast<std::int64_t>(d.n_cols),
                                              d.group,
                                              d.super) &&
         n.activation_bits ==
             static_cast<std::uint32_t>(kernels::activation_bits(static_cast<int>(d.bits))) &&
         n.activation_group == kernels::activation_group(d.group, d.super);
}
static_assert(is_same_rule(described(576, 4, 32, 0), 576));
static_assert(is_same_rule(described(1536, 5, 32, 0), 576));
static_assert(is_same_rule(described(576, 8, 32, 0), 49152));
static_assert(is_same_rule(described(4096, 6, 16, 256), 4096));
static_assert(is_same_rule(described(4096, 3, 128, 0), 128));
static_assert(is_same_rule(described(4096, 7, 4096, 0), 14336));

Error unsupported(const luna_weight_desc& d, const std::string& why) {
  return {Code::unsupported,
          "a weight of " + std::to_string(d.bits) + " bits, group " + std::to_string(d.group) +
              ", super-block " + std::to_string(d.super) + ", " + std::to_string(d.n_rows) + " x " +
              std::to_string(d.n_cols) + ": " + why};
}

Result<kernels::DenseType> dense_type(std::uint32_t dtype) {
  switch (dtype) {
    case LUNA_DTYPE_F32:
      return kernels::DenseType::f32;
    case LUNA_DTYPE_F16:
      return kernels::DenseType::f16;
    case LUNA_DTYPE_BF16:
      return kernels::DenseType::bf16;
    default:
      return Error{Code::unsupported,
                   "dense weights of dtype " + std::to_string(dtype) +
                       " are not built; F32, F16 and BF16 are"};
  }
}

float dense_value(const luna_weight_desc& d, const std::byte* row, std::uint64_t col) {
  if (d.dtype == LUNA_DTYPE_F32) {
    float value;
    std::memcpy(&value, row + 4 * col, sizeof(value));
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, row + 2 * col, sizeof(bits));
  return d.dtype == LUNA_DTYPE_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

kernels::WeightRows kernel_rows(const luna_weight_desc& d, const luna_weight_rows& rows) {
  kernels::WeightRows r;
  r.codes = rows.planes[LUNA_PLANE_CODES];
  r.codes_stride_bytes = d.row_bytes[LUNA_PLANE_CODES];
  r.scale = static_cast<const float*>(rows.planes[LUNA_PLANE_SCALE]);
  r.scale_stride_bytes = d.row_bytes[LUNA_PLANE_SCALE];
  r.offset = static_cast<const float*>(rows.planes[LUNA_PLANE_OFFSET]);
  r.offset_stride_bytes = d.row_bytes[LUNA_PLANE_OFFSET];
  r.sub_scale = static_cast<const std::int8_t*>(rows.planes[LUNA_PLANE_SUB_SCALE]);
  r.sub_scale_stride_bytes = d.row_bytes[LUNA_PLANE_SUB_SCALE];
  r.sub_offset = static_cast<const std::int8_t*>(rows.planes[LUNA_PLANE_SUB_OFFSET]);
  r.sub_offset_stride_bytes = d.row_bytes[LUNA_PLANE_SUB_OFFSET];
  r.super_scale = static_cast<const float*>(rows.planes[LUNA_PLANE_SUPER_SCALE]);
  r.super_scale_stride_bytes = d.row_bytes[LUNA_PLANE_SUPER_SCALE];
  r.super_offset = static_cast<const float*>(rows.planes[LUNA_PLANE_SUPER_OFFSET]);
  r.super_offset_stride_bytes = d.row_bytes[LUNA_PLANE_SUPER_OFFSET];
  return r;
}

/// FP16 holds what block formats have, whose groups are of 32 columns. Longer groups come from
/// formats of F32 scales, or with offsets that are products and need more than FP16: 8 bytes over
/// 64 columns are at most a bit a weight.
kernels::ScaleStorage scale_storage(const luna_weight_desc& d) {
  const bool is_long = d.klass == LUNA_WEIGHT_AFFINE && d.super == 0 && d.group >= 64;
  return is_long ? kernels::ScaleStorage::f32 : kernels::ScaleStorage::f16;
}

Result<void> fill_code_book(const luna_weight_desc& d, kernels::WeightForm* form) {
  for (int i = 0; i < 16; ++i) {
    const float value = d.lut[i];
    if (value != std::rint(value) || value < -128.0F || value > 127.0F)
      return unsupported(d, "code books of other values than integers in -128..127 are not built");
    form->code_book[i] = static_cast<std::int8_t>(value);
  }
  return {};
}

}  // namespace

Result<kernels::PackedForm> plan_weight(const luna_weight_desc& d,
                                        std::uint64_t segment,
                                        std::uint32_t numerics) {
  kernels::WeightForm form;
  form.n_rows = static_cast<std::int64_t>(d.n_rows);
  form.n_cols = static_cast<std::int64_t>(d.n_cols);
  form.segment = static_cast<std::int64_t>(segment);
  if (d.klass == LUNA_WEIGHT_DENSE) {
    form.klass = kernels::WeightClass::dense;
    LUNA_TRY(form.dense_type, dense_type(d.dtype));
  } else {
    form.klass =
        d.klass == LUNA_WEIGHT_LUT ? kernels::WeightClass::code_book : kernels::WeightClass::affine;
    form.bits = static_cast<int>(d.bits);
    form.group = d.group;
    form.super_block = d.super;
    form.has_offset = d.has_offset != 0;
    if (d.zero != std::rint(d.zero) || d.zero < 0.0F || d.zero > 255.0F)
      return unsupported(d, "its zero must be an integer in 0..255");
    form.zero = form.has_offset ? 0 : static_cast<int>(d.zero);  // an offset replaces it
    if (numerics == LUNA_NUMERICS_I8) form.activation_bits_max = kernels::kShortActivationBits;
    form.is_dequantized = numerics == LUNA_NUMERICS_BF16;
    if (d.klass == LUNA_WEIGHT_LUT) {
      LUNA_TRY(fill_code_book(d, &form));
    }
  }
  kernels::PackedForm packed;
  if (!kernels::plan_packing(form, scale_storage(d), &packed))
    return unsupported(d, "the kernels do not know this form");
  return packed;
}

std::uint64_t weight_bytes_of(const luna_weight_desc& desc, const kernels::PackedForm& form) {
  const bool is_vector = desc.klass == LUNA_WEIGHT_DENSE && (desc.n_rows == 1 || desc.n_cols == 1);
  const std::uint64_t vector_bytes = is_vector ? desc.n_rows * desc.n_cols * sizeof(float) : 0;
  return (kernels::packed_bytes(form) + 4095) / 4096 * 4096 + vector_bytes;
}

Result<void> Weight::load(const luna_weight_rows& rows) {
  if (is_vector()) {
    const auto* values = static_cast<const std::byte*>(rows.planes[LUNA_PLANE_VALUES]);
    for (std::uint64_t r = 0; r < rows.n_rows; ++r)
      for (std::uint64_t col = 0; col < desc.n_cols; ++col)
        vector[(rows.first_row + r) * desc.n_cols + col] =
            dense_value(desc, values + r * desc.row_bytes[LUNA_PLANE_VALUES], col);
  }
  if (!kernels::pack_rows(form,
                          kernel_rows(desc, rows),
                          static_cast<std::int64_t>(rows.first_row),
                          static_cast<std::int64_t>(rows.n_rows),
                          packed.data))
    return unsupported(desc, "scales that are not FP16 values are not built");
  n_rows_loaded.fetch_add(rows.n_rows);
  return {};
}

}  // namespace luna::cpu
