// FP8 as bit patterns: both types of the OCP specification, widened exactly.
#pragma once

#include <luna/float16.hpp>

#include <cstdint>

namespace luna {

/// E5M2 is the upper half of an FP16.
constexpr float f8_e5m2_to_f32(std::uint8_t v) {
  return f16_to_f32(static_cast<std::uint16_t>(v << 8));
}

/// E4M3 without infinities: S.1111.111 is the only NaN, the largest value is 448.
/// Source  OCP 8-bit Floating Point Specification 1.0, section 5
constexpr float f8_e4m3_to_f32(std::uint8_t v) {
  const std::uint32_t sign = (std::uint32_t{v} & 0x80U) << 24;
  const std::uint32_t exponent = (v >> 3) & 0xFU;
  const std::uint32_t mantissa = v & 7U;
  if (exponent == 0xFU && mantissa == 7U) return std::bit_cast<float>(sign | 0x7FC00000U);
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-9F;  // a denormal
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}
static_assert(f8_e4m3_to_f32(0x7E) == 448.0F && f8_e4m3_to_f32(0x01) == 0x1p-9F);
static_assert(f8_e4m3_to_f32(0xB8) == -1.0F && f8_e5m2_to_f32(0x7B) == 57344.0F);

}  // namespace luna
