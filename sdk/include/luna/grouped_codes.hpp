// For formats of integer codes with a scale and an integer zero a group: w = scale * (q - zero).
// A format says where its codes, scales and zeros lie; how they become canonical is decided here.
#pragma once

#include <luna/backend_blocks.hpp>
#include <luna/quant.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace luna {

/// What a format tells of a weight [n_rows, n_cols] whose groups are `group` columns long; the last
/// may be shorter. Nothing is checked in the calls: whoever makes the object has done it.
template <typename S>
concept GroupedCodes =
    requires(const S& s, std::uint64_t row, std::uint64_t group, std::uint8_t* out) {
  { s.n_rows() } -> std::convertible_to<std::uint64_t>;
  { s.n_cols() } -> std::convertible_to<std::uint64_t>;
  { s.group() } -> std::convertible_to<std::uint64_t>;
  { s.bits() } -> std::convertible_to<std::uint32_t>;  // 2..8
  { s.scale(row, group) } -> std::convertible_to<float>;
  { s.zero(row, group) } -> std::convertible_to<std::int32_t>;  // 0..2^bits
  { s.has_short_scales() } -> std::convertible_to<bool>;        // FP16, BF16 or FP8 values
  s.codes(row, out);                                            // [n_cols], below 2^bits
};

/// The group of the canonical form: the format's own where backends know it, else a part of it, so
/// that several groups have the same scale. Backends take 32, 64 and multiples of 128.
constexpr std::uint64_t canonical_group(std::uint64_t group, std::uint64_t n_cols) {
  const std::uint64_t whole = std::min(group, n_cols);
  if (whole == 32 || whole == 64 || whole % 128 == 0) return whole;
  return std::min<std::uint64_t>(whole & (~whole + 1), 128);  // its largest power of two
}
static_assert(canonical_group(128, 4096) == 128 && canonical_group(576, 576) == 64);

namespace grouped {

/// Groups this long bear F32 scales and offsets: 8 bytes over 64 columns are a bit a weight.
inline constexpr std::uint64_t kOffsetGroupMin = 64;

/// The smallest and the largest zero of a weight, all scales being finite.
struct ZeroRange {
  std::int32_t min = 0;
  std::int32_t max = 0;
};

template <GroupedCodes S>
Result<ZeroRange> survey(const S& source, std::string_view weight) {
  const std::uint64_t n_groups = (source.n_cols() + source.group() - 1) / source.group();
  ZeroRange range{source.zero(0, 0), source.zero(0, 0)};
  for (std::uint64_t row = 0; row < source.n_rows(); ++row) {
    for (std::uint64_t g = 0; g < n_groups; ++g) {
      if (!std::isfinite(source.scale(row, g))) {
        return Error{Code::corrupt,
                     "weight " + std::string(weight) + ": the scale of row " + std::to_string(row) +
                         ", group " + std::to_string(g) + " is not a finite number"};
      }
      range.min = std::min(range.min, static_cast<std::int32_t>(source.zero(row, g)));
      range.max = std::max(range.max, static_cast<std::int32_t>(source.zero(row, g)));
    }
  }
  return range;
}

}  // namespace grouped

/// Describes a weight in canonical form. With one zero for all it is the description's; else long
/// groups have offsets, and short ones codes with one bit more, shifted so that their zeros agree.
///
/// Errors  corrupt: a scale is not finite
/// Cost    reads all scales and zeros
template <GroupedCodes S>
Result<luna_weight_desc> describe_grouped(const S& source, std::string_view weight) {
  LUNA_TRY(const grouped::ZeroRange zeros, grouped::survey(source, weight));
  luna_weight_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.klass = LUNA_WEIGHT_AFFINE;
  desc.n_rows = source.n_rows();
  desc.n_cols = source.n_cols();
  desc.group = static_cast<std::uint32_t>(canonical_group(source.group(), source.n_cols()));
  desc.bits = source.bits();
  desc.flags = LUNA_WEIGHT_EXACT;
  desc.zero = static_cast<float>(zeros.max);
  const auto span = static_cast<std::uint32_t>(zeros.max - zeros.min);
  const std::uint32_t shifted_max = (1U << source.bits()) - 1 + span;
  if (span != 0 && (desc.group >= grouped::kOffsetGroupMin || shifted_max > 255)) {
    desc.has_offset = 1;
    desc.zero = 0.0F;
    if (!source.has_short_scales()) desc.flags = 0;  // -zero * scale is rounded
  } else {
    desc.bits = std::max(desc.bits, static_cast<std::uint32_t>(std::bit_width(shifted_max)));
  }
  const auto row_bytes = plane_row_bytes(desc);
  std::copy(row_bytes.begin(), row_bytes.end(), desc.row_bytes);
  return desc;
}

/// Writes rows by a description that describe_grouped() has made of the same weight.
/// Errors  invalid_argument: rows or planes that do not fit
template <GroupedCodes S>
Result<void> decode_grouped(const S& source,
                            std::string_view weight,
                            const luna_weight_desc& desc,
                            const luna_weight_rows& rows) {
  const auto bad = [&](const std::string& why) {
    return Error{Code::invalid_argument, "weight " + std::string(weight) + ": " + why};
  };
  if (rows.first_row > source.n_rows() || rows.n_rows > source.n_rows() - rows.first_row) {
    return bad("rows " + std::to_string(rows.first_row) + " + " + std::to_string(rows.n_rows) +
               " of " + std::to_string(source.n_rows()));
  }
  const bool is_ours = desc.klass == LUNA_WEIGHT_AFFINE && desc.super == 0 &&
                       desc.n_cols == source.n_cols() && desc.bits >= source.bits() &&
                       desc.group != 0 && source.n_cols() >= desc.group &&
                       (source.group() % desc.group == 0 || source.group() >= source.n_cols());
  if (!is_ours) return bad("described in another way");
  const auto need = plane_row_bytes(desc);
  for (std::uint32_t p = 0; p < LUNA_N_PLANES; ++p)
    if (need[p] != 0 && (rows.planes[p] == nullptr || desc.row_bytes[p] < need[p]))
      return bad("plane " + std::to_string(p) + " is too small");
  const std::uint64_t n_groups = (desc.n_cols + desc.group - 1) / desc.group;
  const auto plane = [&](std::uint32_t number, std::uint64_t i) {
    return static_cast<std::uint8_t*>(rows.planes[number]) + i * desc.row_bytes[number];
  };
  for (std::uint64_t i = 0; i < rows.n_rows; ++i) {
    const std::uint64_t row = rows.first_row + i;
    std::uint8_t* codes = plane(LUNA_PLANE_CODES, i);
    source.codes(row, codes);
    for (std::uint64_t g = 0; g < n_groups; ++g) {
      const std::uint64_t from = g * desc.group / source.group();
      const float scale = source.scale(row, from);
      const std::int32_t zero = source.zero(row, from);
      std::memcpy(plane(LUNA_PLANE_SCALE, i) + 4 * g, &scale, sizeof(scale));
      if (desc.has_offset != 0) {
        const float offset = scale * static_cast<float>(-zero);
        std::memcpy(plane(LUNA_PLANE_OFFSET, i) + 4 * g, &offset, sizeof(offset));
        continue;
      }
      const std::int32_t shift = static_cast<std::int32_t>(desc.zero) - zero;
      if (shift == 0) continue;
      const std::uint64_t end = std::min<std::uint64_t>((g + 1) * desc.group, desc.n_cols);
      for (std::uint64_t col = g * desc.group; col < end; ++col)
        codes[col] = static_cast<std::uint8_t>(codes[col] + shift);
    }
  }
  return {};
}

/// One row by the definition, rounded once. codes  [n_cols], room for the row's codes
template <GroupedCodes S>
void row_of_grouped(const S& source, std::uint64_t row, std::uint8_t* codes, float* out) {
  source.codes(row, codes);
  for (std::uint64_t col = 0; col < source.n_cols(); ++col) {
    const std::uint64_t g = col / source.group();
    const double scale = source.scale(row, g);
    out[col] = static_cast<float>(scale * (std::int32_t{codes[col]} - source.zero(row, g)));
  }
}

namespace grouped {

/// Errors  invalid_argument: a row that the weight does not have
template <GroupedCodes S>
Result<void> check_row(const S& source, std::string_view weight, std::uint64_t row) {
  if (row < source.n_rows()) return {};
  return Error{Code::invalid_argument,
               "weight " + std::string(weight) + ": row " + std::to_string(row) + " of " +
                   std::to_string(source.n_rows())};
}

}  // namespace grouped

/// A format all of whose weights are of this kind: left to say are create() and score().
///
/// S  has static Result<S> find(const TensorTable&, std::string_view weight)
template <GroupedCodes S>
class GroupedQuantization : public Quantization {
 public:
  [[nodiscard]] Result<luna_weight_desc> describe(const TensorTable& table,
                                                  const WeightId& weight) const override {
    LUNA_TRY(const S source, S::find(table, weight.name));
    return describe_grouped(source, weight.name);
  }

  Result<void> decode(const TensorTable& table,
                      const WeightId& weight,
                      const luna_weight_desc& desc,
                      const luna_weight_rows& rows) const override {
    LUNA_TRY(const S source, S::find(table, weight.name));
    return decode_grouped(source, weight.name, desc, rows);
  }

  Result<void> row_f32(const TensorTable& table,
                       const WeightId& weight,
                       std::uint64_t row,
                       float* out) const override {
    LUNA_TRY(const S source, S::find(table, weight.name));
    LUNA_TRY(grouped::check_row(source, weight.name, row));
    std::vector<std::uint8_t> codes(source.n_cols());
    row_of_grouped(source, row, codes.data(), out);
    return {};
  }
};

}  // namespace luna
