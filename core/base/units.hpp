// Sizes and exact integer division.
#pragma once

#include <cstdint>

namespace luna {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

/// ceil(a / b) for b > 0, without overflow.
template <typename T>
constexpr T div_ceil(T a, T b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

/// The least multiple of b that is at least a.
template <typename T>
constexpr T round_up(T a, T b) {
  return div_ceil(a, b) * b;
}

}  // namespace luna
