// Random numbers as a function of (seed, sequence, position): restarts, pre-emption and speculation
// do not change them.
#pragma once

#include <array>
#include <cstdint>

namespace luna {

/// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  constexpr std::uint32_t kMul0 = 0xD2511F53, kMul1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{kMul0} * counter[0];
    const std::uint64_t p1 = std::uint64_t{kMul1} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

/// Two independent numbers in [0, 1) with 53 random bits each.
struct UniformPair {
  double first;
  double second;
};

/// seed       the request's seed
/// sequence   which of the request's n sequences
/// position   index of the token that is drawn
constexpr UniformPair uniform01(std::uint64_t seed,
                                std::uint32_t sequence,
                                std::uint64_t position) {
  const auto bits =
      philox4x32({static_cast<std::uint32_t>(position),
                  static_cast<std::uint32_t>(position >> 32),
                  sequence,
                  0},
                 {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const auto number = [](std::uint32_t high, std::uint32_t low) {
    const std::uint64_t mantissa = (std::uint64_t{high} << 21) ^ (low >> 11);
    return static_cast<double>(mantissa) * 0x1.0p-53;
  };
  return {number(bits[0], bits[1]), number(bits[2], bits[3])};
}

}  // namespace luna
