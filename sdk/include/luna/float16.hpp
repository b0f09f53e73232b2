// FP16 and BF16 as bit patterns: exact widening, rounding to nearest even. For loading and for
// references; hot loops use instructions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace luna {

constexpr float bf16_to_f32(std::uint16_t h) {
  return std::bit_cast<float>(std::uint32_t{h} << 16);
}
constexpr std::uint16_t f32_to_bf16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((u >> 16) | 0x40U);  // NaN
  return static_cast<std::uint16_t>((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16);
}

constexpr float f16_to_f32(std::uint16_t h) {
  const std::uint32_t sign = (std::uint32_t{h} & 0x8000U) << 16;
  const std::uint32_t exponent = (h >> 10) & 0x1FU;
  std::uint32_t mantissa = h & 0x3FFU;
  if (exponent == 0x1FU) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  std::uint32_t shift = 0;  // a denormal: find its leading bit
  while ((mantissa & 0x400U) == 0) {
    mantissa <<= 1;
    ++shift;
  }
  return std::bit_cast<float>(sign | ((113 - shift) << 23) | ((mantissa & 0x3FFU) << 13));
}
constexpr std::uint16_t f32_to_f16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000U);
  const std::uint32_t magnitude = u & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);   // NaN
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // rounds to inf
  const auto rounded = [](std::uint32_t value, std::uint32_t bits) {
    const std::uint32_t half = 1U << (bits - 1);
    return (value + half - 1 + ((value >> bits) & 1U)) >> bits;
  };
  if (magnitude >= 0x38800000U)
    return static_cast<std::uint16_t>(sign | rounded(magnitude - (112U << 23), 13));
  const std::uint32_t exponent = magnitude >> 23;
  if (exponent < 102) return sign;  // below half of the least denormal
  const std::uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
  return static_cast<std::uint16_t>(sign | rounded(mantissa, 126 - exponent));
}
static_assert(f32_to_f16(1.0F) == 0x3C00 && f16_to_f32(0x0001) == 0x1p-24F);
static_assert(f32_to_f16(0x1p-24F) == 1 && f32_to_f16(0x1p-25F) == 0);

}  // namespace luna
