// How far a computed number may be from the exact one, by the format that carries it and by the
// length of the sum that made it. Nothing here is measured or tuned.
#pragma once

#include <luna/abi/types.h>
#include <luna/float16.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

namespace luna::check {

/// An exact value and how far what a device holds may be from it.
struct Bounded {
  double value = 0.0;
  double error = 0.0;
  [[nodiscard]] double size() const { return std::abs(value) + error; }
};

/// Unit roundoff: half a unit of the last of p significant bits is 2^-p of the value.
inline constexpr double kF32Unit = 0x1p-24;
inline constexpr double kBf16Unit = 0x1p-8;
inline constexpr double kF16Unit = 0x1p-11;
/// A query is carried in two BF16 terms, each of 8 bits.
inline constexpr double kQueryUnit = 0x1p-16;
/// Absolute: denormals may be flushed, and groups below 2^-100 may count as zero.
inline constexpr double kFlushed = 0x1p-99;

/// Of n roundings in a row, relative to the sum of magnitudes: n u / (1 - n u).
/// Source  Higham, Accuracy and Stability of Numerical Algorithms, lemma 3.1
constexpr double sum_unit(double n_roundings) {
  return n_roundings * kF32Unit / (1.0 - n_roundings * kF32Unit);
}

/// The roundoff of a type of KV or activations that is a float; nullopt: it is none.
constexpr std::optional<double> float_unit(std::uint32_t dtype) {
  switch (dtype) {
    case LUNA_DTYPE_F32:
      return kF32Unit;
    case LUNA_DTYPE_F16:
      return kF16Unit;
    case LUNA_DTYPE_BF16:
      return kBf16Unit;
    case LUNA_DTYPE_F8_E4M3:
      return 0x1p-4;
    case LUNA_DTYPE_F8_E5M2:
      return 0x1p-3;
    default:
      return std::nullopt;
  }
}

/// The nearest number of a 16-bit type, ties to even.
inline double to_nearest(double x, std::uint32_t dtype) {
  const auto f = static_cast<float>(x);
  if (dtype == LUNA_DTYPE_BF16) return bf16_to_f32(f32_to_bf16(f));
  return dtype == LUNA_DTYPE_F16 ? f16_to_f32(f32_to_f16(f)) : f;
}

/// What is left of x where a device may carry it in a float of the type, or exactly: numbers that
/// the type has stay what they are.
inline Bounded carried(const Bounded& x, std::uint32_t dtype) {
  const bool is_known = dtype == LUNA_DTYPE_BF16 || dtype == LUNA_DTYPE_F16;
  if (x.error == 0.0 && is_known) return {x.value, std::abs(to_nearest(x.value, dtype) - x.value)};
  return {x.value, x.error + float_unit(dtype).value_or(0.0) * x.size()};
}

/// As carried(), in two BF16 terms.
inline Bounded carried_in_two_terms(const Bounded& x) {
  const double rest = x.value - to_nearest(x.value, LUNA_DTYPE_BF16);
  if (x.error == 0.0) return {x.value, std::abs(rest - to_nearest(rest, LUNA_DTYPE_BF16))};
  return {x.value, x.error + kQueryUnit * x.size()};
}

/// One rounding to FP32 of a result.
inline Bounded stored(double value, double error) {
  return {value, error + kF32Unit * (std::abs(value) + error) + kFlushed};
}

}  // namespace luna::check
