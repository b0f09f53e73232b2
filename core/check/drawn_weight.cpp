#include "core/check/drawn_weight.hpp"

#include "core/check/number_bounds.hpp"

#include <luna/backend_blocks.hpp>
#include <luna/float16.hpp>

#include <array>
#include <cmath>
#include <cstring>

namespace luna::check {
namespace {

constexpr auto kForms = std::to_array<WeightForm>({
    {.name = "FP32", .dtype = LUNA_DTYPE_F32},
    {.name = "FP16", .dtype = LUNA_DTYPE_F16},
    {.name = "BF16", .dtype = LUNA_DTYPE_BF16},
    {.name = "4 bits, groups of 32, offsets", .bits = 4, .group = 32, .has_offset = true},
    {.name = "4 bits, groups of 32", .bits = 4, .group = 32},
    {.name = "5 bits, groups of 32, offsets", .bits = 5, .group = 32, .has_offset = true},
    {.name = "5 bits, groups of 32", .bits = 5, .group = 32},
    {.name = "8 bits, groups of 32", .bits = 8, .group = 32},
    {.name = "4 bits, groups of 64, offsets", .bits = 4, .group = 64, .has_offset = true},
    {.name = "4 bits, groups of 128, offsets", .bits = 4, .group = 128, .has_offset = true},
    {.name = "8 bits, groups of 128, offsets", .bits = 8, .group = 128, .has_offset = true},
    {.name = "3 bits, groups of 128, offsets", .bits = 3, .group = 128, .has_offset = true},
    {.name = "8 bits, one scale a row", .bits = 8, .group = 512},
    {.name = "2 bits, 16 in 256, offsets",
     .bits = 2,
     .group = 16,
     .super = 256,
     .has_offset = true},
    {.name = "3 bits, 16 in 256", .bits = 3, .group = 16, .super = 256},
    {.name = "4 bits, 32 in 256, offsets",
     .bits = 4,
     .group = 32,
     .super = 256,
     .has_offset = true},
    {.name = "5 bits, 32 in 256, offsets",
     .bits = 5,
     .group = 32,
     .super = 256,
     .has_offset = true},
    {.name = "6 bits, 16 in 256", .bits = 6, .group = 16, .super = 256},
    {.name = "code book, groups of 32", .bits = 4, .group = 32, .has_code_book = true},
});

/// A format's code book: integers of a byte, wider apart at the ends.
constexpr std::array<float, 16> kCodeBook = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/// The planes as somebody reads them who knows the formulas of abi/quant.h.
class PlaneReader {
 public:
  explicit PlaneReader(const DrawnWeight& weight) : w_(weight), d_(weight.desc) {}

  [[nodiscard]] double code(std::uint64_t row, std::uint64_t col) const {
    return static_cast<double>(w_.planes[LUNA_PLANE_CODES][row * d_.n_cols + col]);
  }
  [[nodiscard]] double scale(std::uint64_t row, std::uint64_t col) const {
    return level(row, col, LUNA_PLANE_SCALE, LUNA_PLANE_SUB_SCALE, LUNA_PLANE_SUPER_SCALE);
  }
  [[nodiscard]] double offset(std::uint64_t row, std::uint64_t col) const {
    if (d_.has_offset == 0) return -double{d_.zero} * scale(row, col);
    return level(row, col, LUNA_PLANE_OFFSET, LUNA_PLANE_SUB_OFFSET, LUNA_PLANE_SUPER_OFFSET);
  }

 private:
  template <typename T>
  [[nodiscard]] T read(std::uint32_t plane, std::uint64_t row, std::uint64_t i) const {
    T value;
    std::memcpy(
        &value, w_.planes[plane].data() + row * d_.row_bytes[plane] + i * sizeof(T), sizeof(T));
    return value;
  }
  [[nodiscard]] double level(std::uint64_t row,
                             std::uint64_t col,
                             std::uint32_t one_level,
                             std::uint32_t sub,
                             std::uint32_t super) const {
    if (d_.super == 0) return read<float>(one_level, row, col / d_.group);
    return double{read<float>(super, row, col / d_.super)} *
           read<std::int8_t>(sub, row, col / d_.group);
  }

  const DrawnWeight& w_;
  const luna_weight_desc& d_;
};

void make_planes(DrawnWeight& weight) {
  const auto bytes = plane_row_bytes(weight.desc);
  for (std::uint32_t p = 0; p < LUNA_N_PLANES; ++p) {
    weight.desc.row_bytes[p] = bytes[p];
    weight.planes[p].assign(bytes[p] * weight.desc.n_rows, std::byte{0});
  }
}

template <typename T, typename Make>
void fill(DrawnWeight& weight, std::uint32_t plane, Make&& make) {
  for (std::size_t at = 0; at + sizeof(T) <= weight.planes[plane].size(); at += sizeof(T)) {
    const T value = make();
    std::memcpy(&weight.planes[plane][at], &value, sizeof(value));
  }
}

DrawnWeight make_dense(std::uint64_t n_rows, std::uint64_t n_cols, std::uint32_t dtype) {
  DrawnWeight weight;
  weight.desc.struct_size = sizeof(weight.desc);
  weight.desc.klass = LUNA_WEIGHT_DENSE;
  weight.desc.dtype = dtype;
  weight.desc.n_rows = n_rows;
  weight.desc.n_cols = n_cols;
  make_planes(weight);
  weight.values.resize(n_rows * n_cols);
  return weight;
}

/// Draws the values of a dense weight; what it holds of them is what is exact.
template <typename Make>
void fill_dense(DrawnWeight& weight, Make&& make) {
  std::size_t i = 0;
  const auto next = [&]() -> float {
    const auto value = static_cast<float>(to_nearest(make(), weight.desc.dtype));
    weight.values[i++] = value;
    return value;
  };
  if (weight.desc.dtype == LUNA_DTYPE_F32) {
    fill<float>(weight, LUNA_PLANE_VALUES, next);
  } else {
    const bool is_bf16 = weight.desc.dtype == LUNA_DTYPE_BF16;
    fill<std::uint16_t>(weight, LUNA_PLANE_VALUES, [&] {
      const float value = next();
      return is_bf16 ? f32_to_bf16(value) : f32_to_f16(value);
    });
  }
  weight.magnitudes.resize(weight.values.size());
  for (std::size_t n = 0; n < weight.values.size(); ++n)
    weight.magnitudes[n] = std::abs(weight.values[n]);
}

/// Codes of any value, and scales as files hold them: FP16 numbers and signed bytes.
void fill_codes(DrawnWeight& weight, std::mt19937_64& random) {
  const luna_weight_desc& d = weight.desc;
  const std::uint32_t n_codes = 1U << d.bits;
  const bool has_code_book = d.klass == LUNA_WEIGHT_LUT;
  const float size = 1.0F / std::sqrt(static_cast<float>(d.n_cols));
  const float step = size * 3.0F / static_cast<float>(has_code_book ? 128 : n_codes / 2);
  const auto f16 = [&](float low, float high) {
    return f16_to_f32(f32_to_f16(std::uniform_real_distribution<float>(low, high)(random)));
  };
  const auto byte = [&] { return static_cast<std::int8_t>(1 + random() % 60); };
  fill<std::uint8_t>(
      weight, LUNA_PLANE_CODES, [&] { return static_cast<std::uint8_t>(random() % n_codes); });
  fill<float>(weight, LUNA_PLANE_SCALE, [&] { return f16(0.2F * step, step); });
  fill<float>(weight, LUNA_PLANE_OFFSET, [&] { return f16(-2 * size, 0.0F); });
  fill<std::int8_t>(weight, LUNA_PLANE_SUB_SCALE, byte);
  fill<std::int8_t>(weight, LUNA_PLANE_SUB_OFFSET, byte);
  fill<float>(weight, LUNA_PLANE_SUPER_SCALE, [&] { return f16(0.2F * step / 60, step / 60); });
  fill<float>(weight, LUNA_PLANE_SUPER_OFFSET, [&] { return f16(-size / 30, 0.0F); });
}

}  // namespace

std::span<const WeightForm> weight_forms() {
  return kForms;
}

DrawnWeight draw_weight(std::mt19937_64& random,
                        std::uint64_t n_rows,
                        std::uint64_t n_cols,
                        const WeightForm& form) {
  if (form.is_dense()) {
    DrawnWeight weight = make_dense(n_rows, n_cols, form.dtype);
    std::normal_distribution<float> normal(0.0F, 1.0F / std::sqrt(static_cast<float>(n_cols)));
    fill_dense(weight, [&] { return normal(random); });
    return weight;
  }
  DrawnWeight weight;
  luna_weight_desc& d = weight.desc;
  d.struct_size = sizeof(d);
  d.klass = form.has_code_book ? LUNA_WEIGHT_LUT : LUNA_WEIGHT_AFFINE;
  d.bits = form.bits;
  d.group = form.group;
  d.super = form.super;
  d.has_offset = form.has_offset ? 1 : 0;
  if (!form.has_offset && !form.has_code_book) d.zero = static_cast<float>(1U << (form.bits - 1));
  if (form.has_code_book) std::copy(kCodeBook.begin(), kCodeBook.end(), d.lut);
  d.n_rows = n_rows;
  d.n_cols = n_cols;
  make_planes(weight);
  fill_codes(weight, random);
  const PlaneReader planes(weight);
  weight.values.resize(n_rows * n_cols);
  weight.magnitudes.resize(n_rows * n_cols);
  for (std::uint64_t row = 0; row < n_rows; ++row)
    for (std::uint64_t col = 0; col < n_cols; ++col) {
      const double code = form.has_code_book
                              ? kCodeBook[static_cast<std::size_t>(planes.code(row, col))]
                              : planes.code(row, col);
      const double product = planes.scale(row, col) * code;
      const double offset = form.has_code_book ? 0.0 : planes.offset(row, col);
      weight.values[row * n_cols + col] = product + offset;
      weight.magnitudes[row * n_cols + col] = std::abs(product) + std::abs(offset);
    }
  return weight;
}

DrawnWeight draw_vector(std::mt19937_64& random, std::uint64_t n, float low, float high) {
  DrawnWeight weight = make_dense(1, n, LUNA_DTYPE_F32);
  std::uniform_real_distribution<float> uniform(low, high);
  fill_dense(weight, [&] { return uniform(random); });
  return weight;
}

DrawnWeight draw_embedding(std::mt19937_64& random, std::uint64_t n_rows, std::uint64_t n_cols) {
  DrawnWeight weight = make_dense(n_rows, n_cols, LUNA_DTYPE_BF16);
  fill_dense(weight, [&] { return (static_cast<float>(random() % 65) - 32.0F) / 16.0F; });
  return weight;
}

}  // namespace luna::check
