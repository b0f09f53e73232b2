// Decoding by the definition in abi/quant.h: w = scale * q + offset, rounded to FP32 once.
#include "weight.hpp"

#include <luna/float16.hpp>

#include <cstring>

namespace luna::reference {
namespace {

template <typename T>
T load_as(const void* plane, std::uint64_t row_bytes, std::uint64_t row, std::uint64_t i) {
  T value;
  std::memcpy(
      &value, static_cast<const std::byte*>(plane) + row * row_bytes + i * sizeof(T), sizeof(T));
  return value;
}

/// One row of a range: reads the planes, knows the formulas.
class RowDecoder {
 public:
  RowDecoder(const luna_weight_desc& desc, const luna_weight_rows& rows, std::uint64_t row)
      : d_(desc), rows_(rows), row_(row) {}

  [[nodiscard]] float value(std::uint64_t col) const {
    if (d_.klass == LUNA_WEIGHT_DENSE) return dense(col);
    const auto q = at<std::uint8_t>(LUNA_PLANE_CODES, col);
    const std::uint64_t group = col / d_.group;
    const double s = scale(group, col);
    if (d_.klass == LUNA_WEIGHT_LUT) return static_cast<float>(s * d_.lut[q & 15]);
    const double m = d_.has_offset != 0 ? offset(group, col) : -double{d_.zero} * s;
    return static_cast<float>(s * q + m);
  }

 private:
  template <typename T>
  [[nodiscard]] T at(std::uint32_t plane, std::uint64_t i) const {
    return load_as<T>(rows_.planes[plane], d_.row_bytes[plane], row_, i);
  }
  [[nodiscard]] double scale(std::uint64_t group, std::uint64_t col) const {
    if (d_.super == 0) return at<float>(LUNA_PLANE_SCALE, group);
    return double{at<float>(LUNA_PLANE_SUPER_SCALE, col / d_.super)} *
           at<std::int8_t>(LUNA_PLANE_SUB_SCALE, group);
  }
  [[nodiscard]] double offset(std::uint64_t group, std::uint64_t col) const {
    if (d_.super == 0) return at<float>(LUNA_PLANE_OFFSET, group);
    return double{at<float>(LUNA_PLANE_SUPER_OFFSET, col / d_.super)} *
           at<std::int8_t>(LUNA_PLANE_SUB_OFFSET, group);
  }
  [[nodiscard]] float dense(std::uint64_t col) const {
    if (d_.dtype == LUNA_DTYPE_F32) return at<float>(LUNA_PLANE_VALUES, col);
    const auto bits = at<std::uint16_t>(LUNA_PLANE_VALUES, col);
    return d_.dtype == LUNA_DTYPE_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }

  const luna_weight_desc& d_;
  const luna_weight_rows& rows_;
  std::uint64_t row_;
};

}  // namespace

Result<void> Weight::check_supported(const luna_weight_desc& desc) {
  const bool known =
      desc.dtype == LUNA_DTYPE_F32 || desc.dtype == LUNA_DTYPE_F16 || desc.dtype == LUNA_DTYPE_BF16;
  if (desc.klass == LUNA_WEIGHT_DENSE && !known)
    return Error{Code::unsupported,
                 "dense weights of dtype " + std::to_string(desc.dtype) +
                     " are not built; F32, F16 and BF16 are"};
  return {};
}

void Weight::load(const luna_weight_rows& rows) {
  for (std::uint64_t row = 0; row < rows.n_rows; ++row) {
    const RowDecoder decoder(desc, rows, row);
    float* out = values.data() + (rows.first_row + row) * desc.n_cols;
    for (std::uint64_t col = 0; col < desc.n_cols; ++col)
      out[col] = decoder.value(col);
  }
  n_rows_loaded.fetch_add(rows.n_rows);
}

}  // namespace luna::reference
