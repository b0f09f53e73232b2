// Canonical planes to the packed form: at load time, by ranges of rows.
#include "kernels/cpu/arithmetic.hpp"
#include "kernels/cpu/kernel_set.hpp"
#include "kernels/cpu/weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace luna::kernels {
namespace {

constexpr std::int64_t round_up(std::int64_t n, std::int64_t quantum) {
  return (n + quantum - 1) / quantum * quantum;
}

std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

/// FP16 bits of a value that FP16 holds; *exact becomes false for any other.
std::uint16_t to_f16(float x, bool* exact) {
  const std::uint32_t bits = bits_of(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude == 0) {
    return sign;
  }
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const std::uint32_t significand = (magnitude & 0x7FFFFFU) | 0x800000U;
  const int dropped = exponent >= -14 ? 13 : 13 + (-14 - exponent);
  if (exponent > 15 || exponent < -24 || (significand & ((1U << dropped) - 1U)) != 0) {
    *exact = false;
    return sign;
  }
  const std::uint32_t kept = significand >> dropped;
  return exponent >= -14
             ? static_cast<std::uint16_t>(
                   sign | ((static_cast<std::uint32_t>(exponent + 15) << 10) + (kept & 0x3FFU)))
             : static_cast<std::uint16_t>(sign | kept);
}

float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7FFFU;
  std::uint32_t word = sign;
  if (magnitude >= 0x7C00U) {
    word |= 0x7F800000U | (magnitude << 13);
  } else if (magnitude >= 0x0400U) {
    word |= (magnitude << 13) + (112U << 23);
  } else if (magnitude != 0) {
    word |= bits_of(static_cast<float>(magnitude) * 0x1p-24F);
  }
  float x;
  std::memcpy(&x, &word, sizeof x);
  return x;
}

/// Nearest even; a NaN becomes the quiet one.
std::uint16_t to_bf16(float x) {
  const std::uint32_t bits = bits_of(x);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return 0x7FC0U;
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

/// The row of a plane; none of a plane that is absent.
template <class T>
const T* plane_row(const void* plane, std::size_t stride_bytes, std::int64_t row) {
  if (plane == nullptr) return nullptr;
  return reinterpret_cast<const T*>(static_cast<const std::byte*>(plane) +
                                    static_cast<std::size_t>(row) * stride_bytes);
}

std::uint16_t dense_value(DenseType type, const void* row, std::int64_t k) {
  if (type == DenseType::f32) {
    return to_bf16(static_cast<const float*>(row)[k]);
  }
  const std::uint16_t half = static_cast<const std::uint16_t*>(row)[k];
  return type == DenseType::bf16 ? half : to_bf16(f16_to_f32(half));
}

/// The planes of one row of a weight with codes.
struct CodedRow {
  CodedRow(const WeightForm& form, const WeightRows& rows, std::int64_t row)
      : f(form),
        codes(plane_row<std::uint8_t>(rows.codes, rows.codes_stride_bytes, row)),
        scale(plane_row<float>(rows.scale, rows.scale_stride_bytes, row)),
        offset(plane_row<float>(rows.offset, rows.offset_stride_bytes, row)),
        sub_scale(plane_row<std::int8_t>(rows.sub_scale, rows.sub_scale_stride_bytes, row)),
        sub_offset(plane_row<std::int8_t>(rows.sub_offset, rows.sub_offset_stride_bytes, row)),
        super_scale(plane_row<float>(rows.super_scale, rows.super_scale_stride_bytes, row)),
        super_offset(plane_row<float>(rows.super_offset, rows.super_offset_stride_bytes, row)) {}

  /// fma(scale, q, offset), then nearest even: what the kernels' unpack_row() gives, as BF16.
  [[nodiscard]] std::uint16_t value(std::int64_t k) const {
    const std::int64_t g = k / f.group;
    int q = f.klass == WeightClass::code_book ? f.code_book[codes[k] & 15U] : codes[k];
    if (!f.has_offset) {
      q -= f.zero;
    }
    if (f.super_block == 0) {
      return to_bf16(std::fma(scale[g], static_cast<float>(q), f.has_offset ? offset[g] : 0.0F));
    }
    const std::int64_t s = k / f.super_block;
    const float own_offset =
        f.has_offset ? super_offset[s] * static_cast<float>(sub_offset[g]) : 0.0F;
    return to_bf16(std::fma(super_scale[s], static_cast<float>(q * sub_scale[g]), own_offset));
  }

  const WeightForm& f;
  const std::uint8_t* codes;
  const float* scale;
  const float* offset;
  const std::int8_t* sub_scale;
  const std::int8_t* sub_offset;
  const float* super_scale;
  const float* super_offset;
};

void put_bf16(std::byte* strip, int lane, std::int64_t k, std::uint16_t value) {
  std::memcpy(strip + (k / 2 * 16 + lane) * 4 + k % 2 * 2, &value, sizeof value);
}
void pack_dense_row(
    const PackedForm& p, const WeightRows& rows, std::int64_t row, int lane, std::byte* strip) {
  if (p.form.is_dequantized) {
    const CodedRow coded(p.form, rows, row);
    for (std::int64_t k = 0; k < p.form.n_cols; ++k) {
      put_bf16(strip, lane, k, coded.value(k));
    }
    return;
  }
  const void* values = plane_row<std::byte>(rows.codes, rows.codes_stride_bytes, row);
  for (std::int64_t k = 0; k < p.form.n_cols; ++k) {
    put_bf16(strip, lane, k, dense_value(p.form.dense_type, values, k));
  }
}

void pack_code_row(const PackedForm& p, const std::uint8_t* row, int lane, std::byte* strip) {
  if (p.storage == CodeStorage::nibbles) {
    // Bits 16p + 4i of word n of line j are input 8j + 2i + p.
    for (std::int64_t j = 0; j < p.form.n_cols / 8; ++j) {
      const std::uint8_t* q = row + 8 * j;
      std::uint32_t word = 0;
      for (int i = 0; i < 4; ++i) {
        word |= static_cast<std::uint32_t>(q[2 * i] & 15U) << (4 * i);
        word |= static_cast<std::uint32_t>(q[2 * i + 1] & 15U) << (16 + 4 * i);
      }
      std::memcpy(strip + (j * 16 + lane) * 4, &word, sizeof word);
    }
    return;
  }
  const int zero = p.codes_are_signed ? p.form.zero : 0;
  for (std::int64_t j = 0; j < p.form.n_cols / 4; ++j) {
    const std::uint8_t* q = row + j / 2 * 8;
    std::uint8_t bytes[4];
    for (int b = 0; b < 4; ++b) {
      bytes[b] = static_cast<std::uint8_t>(q[kQuadOrder[j % 2 * 4 + b]] - zero);
    }
    std::memcpy(strip + (j * 16 + lane) * 4, bytes, sizeof bytes);
  }
}

/// Stores lane `lane` of a record's vector of scales.
void put_scale(bool wide, float x, int lane, std::byte* vector, bool* exact) {
  if (wide) {
    std::memcpy(vector + lane * 4, &x, sizeof x);
  } else {
    const std::uint16_t half = to_f16(x, exact);
    std::memcpy(vector + lane * 2, &half, sizeof half);
  }
}

/// The second level of a row's record g: bytes of the sub-scales, then of the sub-offsets.
void put_sub_scales(
    const PackedForm& p, const WeightRows& rows, std::int64_t row, std::int64_t g, std::byte* out) {
  const std::int64_t lane = row % 16;
  const std::int64_t n_sub = p.scale_group / p.form.group;
  const auto put = [&](const std::int8_t* values, std::byte* at) {
    for (std::int64_t j = 0; j < n_sub; ++j) {
      std::memcpy(at + 16 * j + lane, values + g * n_sub + j, 1);
    }
  };
  put(plane_row<std::int8_t>(rows.sub_scale, rows.sub_scale_stride_bytes, row), out);
  if (p.has_offsets) {
    put(plane_row<std::int8_t>(rows.sub_offset, rows.sub_offset_stride_bytes, row),
        out + 16 * n_sub);
  }
}

/// One row's part of the scale records. `row` is relative to the range's first row.
void pack_scale_row(const PackedForm& p,
                    const WeightRows& rows,
                    std::int64_t row,
                    std::byte* records,
                    bool* exact) {
  const int lane = static_cast<int>(row % 16);
  const std::size_t vector = p.wide_scales ? 64 : 32;
  const bool two_levels = p.form.super_block != 0;
  const auto* scale = two_levels
                          ? plane_row<float>(rows.super_scale, rows.super_scale_stride_bytes, row)
                          : plane_row<float>(rows.scale, rows.scale_stride_bytes, row);
  const auto* offset =
      two_levels ? plane_row<float>(rows.super_offset, rows.super_offset_stride_bytes, row)
                 : plane_row<float>(rows.offset, rows.offset_stride_bytes, row);
  for (std::int64_t g = 0; g < p.n_groups; ++g) {
    std::byte* record = records + static_cast<std::size_t>(g) * p.record_bytes;
    const std::int64_t source = two_levels ? g : g * p.scale_group / p.form.group;
    put_scale(p.wide_scales, scale[source], lane, record, exact);
    std::byte* next = record + vector;
    if (p.has_offsets) {
      put_scale(p.wide_scales, offset[source], lane, next, exact);
      next += vector;
    }
    if (two_levels) {
      put_sub_scales(p, rows, row, g, next);
    }
  }
}

bool plan_dense(PackedForm* p) {
  p->storage = CodeStorage::bf16;
  p->codes_bytes = static_cast<std::size_t>(p->k_padded) * 32;
  p->strip_bytes = p->codes_bytes;
  return p->form.segment % 32 == 0;
}

bool is_known(const WeightForm& f) {
  const bool has_known_bits = f.klass == WeightClass::code_book
                                  ? f.bits == 4 && f.zero == 0 && !f.has_offset
                                  : f.bits >= 2 && f.bits <= 8;
  if (!has_known_bits || f.n_cols % 32 != 0 || f.group <= 0 || f.zero < 0 || f.zero > 255) {
    return false;
  }
  if (f.super_block != 0) {
    // 256 is what the activations' sums are kept for; a code times a sub-scale must fit 16 bits.
    return f.super_block == 256 && (f.group == 16 || f.group == 32) && f.n_cols % 256 == 0 &&
           f.bits <= 6 && f.klass == WeightClass::affine && f.zero <= 32;
  }
  return f.group == 32 || f.group == 64 || f.group % 128 == 0;
}

}  // namespace

bool plan_packing(const WeightForm& form, ScaleStorage storage, PackedForm* packed) {
  if (form.n_rows <= 0 || form.n_cols <= 0 || form.segment <= 0) {
    return false;
  }
  PackedForm p;
  p.form = form;
  p.n_strips = (form.n_rows + 15) / 16;
  p.k_padded = round_up(form.n_cols, 32);
  if (form.klass != WeightClass::dense && !is_known(form)) {
    return false;
  }
  if (form.klass == WeightClass::dense || form.is_dequantized) {
    if (!plan_dense(&p)) {
      return false;
    }
    *packed = p;
    return true;
  }
  p.storage = form.bits <= 4 ? CodeStorage::nibbles : CodeStorage::bytes;
  p.codes_are_signed =
      p.storage == CodeStorage::bytes && !form.has_offset &&
      (form.super_block != 0 ? form.zero != 0 : form.bits == 8 && form.zero == 128);
  p.wide_scales = storage == ScaleStorage::f32;
  p.has_offsets = form.has_offset;
  p.scale_group =
      form.super_block != 0 ? form.super_block : std::min<std::int64_t>(form.group, 128);
  p.n_groups = (form.n_cols + p.scale_group - 1) / p.scale_group;
  p.activation_bits =
      std::min(activation_bits(form.klass == WeightClass::code_book ? 8 : form.bits),
               form.activation_bits_max);
  p.activation_group = p.scale_group;
  const std::size_t vectors = p.has_offsets ? 2 : 1;
  p.record_bytes = vectors * (p.wide_scales ? 64U : 32U);
  if (form.super_block != 0) {
    p.record_bytes += vectors * 16 * static_cast<std::size_t>(form.super_block / form.group);
  }
  p.codes_bytes =
      static_cast<std::size_t>(form.n_cols) * (p.storage == CodeStorage::nibbles ? 8U : 16U);
  p.strip_bytes =
      (p.codes_bytes + static_cast<std::size_t>(p.n_groups) * p.record_bytes + 63) / 64 * 64;
  if (form.segment % std::max<std::int64_t>(p.scale_group, 32) != 0) {
    return false;
  }
  *packed = p;
  return true;
}

std::size_t packed_bytes(const PackedForm& packed) {
  return static_cast<std::size_t>(packed.n_strips) * packed.strip_bytes;
}

bool pack_rows(const PackedForm& packed,
               const WeightRows& rows,
               std::int64_t first_row,
               std::int64_t n_rows,
               std::byte* dst) {
  bool exact = true;
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const std::int64_t row = first_row + r;
    std::byte* strip = dst + static_cast<std::size_t>(row / 16) * packed.strip_bytes;
    const int lane = static_cast<int>(row % 16);
    if (lane == 0) {
      std::memset(strip, 0, packed.strip_bytes);  // columns beyond the weight, padding of K
    }
    if (packed.is_dense()) {
      pack_dense_row(packed, rows, r, lane, strip);
      continue;
    }
    pack_code_row(
        packed, plane_row<std::uint8_t>(rows.codes, rows.codes_stride_bytes, r), lane, strip);
    pack_scale_row(packed, rows, r, strip + packed.codes_bytes, &exact);
  }
  return exact;
}

}  // namespace luna::kernels
