// Sixteen lanes in plain C++: the vocabulary the shared kernels are written in. What an operation
// does here is its definition; the other sets do the same with their instructions.
//
// F is 16 floats, I is 16 words of 32 bits. "Halves" are the two 16-bit halves of a word.
#pragma once

#include "kernels/cpu/isa_region.hpp"
#include "kernels/cpu/kernel_set.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace luna::kernels::portable {

struct F {
  float v[16];
};
struct I {
  std::int32_t v[16];
};

// How the shared kernels cut their work; chosen by the number of registers, never seen in a bit.
inline constexpr int kTileRows = 2;
inline constexpr int kTileStrips = 1;
inline constexpr int kDirectStrips = 1;
inline constexpr int kShortStrips = 1;
inline constexpr std::int64_t kDirectPairRowsMax = 12;
inline constexpr std::int64_t kDirectQuadRowsMax = 12;
inline constexpr int kChainRows = 2;
/// Strips of 16 positions, or columns of V, that attention takes at once beside so many rows of a
/// chain: queries times terms.
constexpr int strips_beside(int /*rows*/) {
  return 1;
}

template <class Op>
LUNA_ISA_INLINE F map(Op op) {
  F r;
  for (int i = 0; i < 16; ++i) {
    r.v[i] = op(i);
  }
  return r;
}
template <class Op>
LUNA_ISA_INLINE I map_words(Op op) {
  I r;
  for (int i = 0; i < 16; ++i) {
    r.v[i] = static_cast<std::int32_t>(op(i));
  }
  return r;
}

LUNA_ISA_INLINE F load(const float* p) {
  F r;
  std::memcpy(&r, p, sizeof r);
  return r;
}
LUNA_ISA_INLINE void store(float* p, F a) {
  std::memcpy(p, &a, sizeof a);
}
LUNA_ISA_INLINE F load_n(const float* p, int n) {  // lanes from n on are zero
  return map([&](int i) { return i < n ? p[i] : 0.0F; });
}
LUNA_ISA_INLINE void store_n(float* p, F a, int n) {
  for (int i = 0; i < 16 && i < n; ++i) {
    p[i] = a.v[i];
  }
}
LUNA_ISA_INLINE F set(float x) {
  return map([&](int) { return x; });
}
LUNA_ISA_INLINE F add(F a, F b) {
  return map([&](int i) { return a.v[i] + b.v[i]; });
}
LUNA_ISA_INLINE F sub(F a, F b) {
  return map([&](int i) { return a.v[i] - b.v[i]; });
}
LUNA_ISA_INLINE F mul(F a, F b) {
  return map([&](int i) { return a.v[i] * b.v[i]; });
}
LUNA_ISA_INLINE F div(F a, F b) {
  return map([&](int i) { return a.v[i] / b.v[i]; });
}
LUNA_ISA_INLINE F fma(F a, F b, F c) {
  return map([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
LUNA_ISA_INLINE F max(F a, F b) {  // b where the two do not compare
  return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
LUNA_ISA_INLINE F min(F a, F b) {
  return map([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
LUNA_ISA_INLINE F round_even(F a) {
  return map([&](int i) { return std::nearbyint(a.v[i]); });
}
/// Lanes i and i ^ n exchanged, n a power of two.
template <int n>
LUNA_ISA_INLINE F swap_lanes(F a) {
  return map([&](int i) { return a.v[i ^ n]; });
}
LUNA_ISA_INLINE float first_lane(F a) {
  return a.v[0];
}
/// The first eight lanes, each twice: 0, 0, 1, 1, ..
LUNA_ISA_INLINE F duplicate(F a) {
  return map([&](int i) { return a.v[i / 2]; });
}
/// Lanes first..last-1 of a, the others of b.
LUNA_ISA_INLINE F select_range(F a, F b, int first, int last) {
  return map([&](int i) { return i >= first && i < last ? a.v[i] : b.v[i]; });
}
/// Lanes whose bit is set of a, the others of b.
LUNA_ISA_INLINE F select(unsigned bits, F a, F b) {
  return map([&](int i) { return ((bits >> i) & 1U) != 0 ? a.v[i] : b.v[i]; });
}
/// Bit i: lane i of a is greater than lane i of b.
LUNA_ISA_INLINE unsigned greater(F a, F b) {
  unsigned bits = 0;
  for (int i = 0; i < 16; ++i) {
    bits |= static_cast<unsigned>(a.v[i] > b.v[i]) << i;
  }
  return bits;
}

LUNA_ISA_INLINE I load_words(const void* p) {
  I r;
  std::memcpy(&r, p, sizeof r);
  return r;
}
LUNA_ISA_INLINE void store_words(void* p, I a) {
  std::memcpy(p, &a, sizeof a);
}
LUNA_ISA_INLINE I set_word(std::int32_t x) {
  return map_words([&](int) { return x; });
}
LUNA_ISA_INLINE I add_words(I a, I b) {
  return map_words([&](int i) {
    return static_cast<std::uint32_t>(a.v[i]) + static_cast<std::uint32_t>(b.v[i]);
  });
}
LUNA_ISA_INLINE I sub_words(I a, I b) {
  return map_words([&](int i) {
    return static_cast<std::uint32_t>(a.v[i]) - static_cast<std::uint32_t>(b.v[i]);
  });
}
LUNA_ISA_INLINE I mul_words(I a, I b) {
  return map_words([&](int i) {
    return static_cast<std::uint32_t>(a.v[i]) * static_cast<std::uint32_t>(b.v[i]);
  });
}
LUNA_ISA_INLINE I and_words(I a, I b) {
  return map_words([&](int i) { return a.v[i] & b.v[i]; });
}
LUNA_ISA_INLINE I max_words(I a, I b) {
  return map_words([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
template <int n>
LUNA_ISA_INLINE I shift_left(I a) {
  return map_words([&](int i) { return static_cast<std::uint32_t>(a.v[i]) << n; });
}
template <int n>
LUNA_ISA_INLINE I shift_right(I a) {  // zeros enter
  return map_words([&](int i) { return static_cast<std::uint32_t>(a.v[i]) >> n; });
}
LUNA_ISA_INLINE F as_floats(I a) {
  F r;
  std::memcpy(&r, &a, sizeof r);
  return r;
}
LUNA_ISA_INLINE I as_words(F a) {
  I r;
  std::memcpy(&r, &a, sizeof r);
  return r;
}
LUNA_ISA_INLINE F to_floats(I a) {
  return map([&](int i) { return static_cast<float>(a.v[i]); });
}
/// Nearest even. What does not fit (NaN too) becomes INT32_MIN, as the instruction has it.
LUNA_ISA_INLINE I to_words(F a) {
  return map_words([&](int i) {
    const float x = std::nearbyint(a.v[i]);
    return x >= -0x1p31F && x < 0x1p31F ? static_cast<std::int32_t>(x) : INT32_MIN;
  });
}

/// Sums and maxima of integers: any order gives the same.
LUNA_ISA_INLINE std::int32_t sum_of_words(I a) {
  std::uint32_t sum = 0;
  for (const std::int32_t x : a.v) {
    sum += static_cast<std::uint32_t>(x);
  }
  return static_cast<std::int32_t>(sum);
}
LUNA_ISA_INLINE std::int32_t max_of_words(I a) {
  std::int32_t best = a.v[0];
  for (const std::int32_t x : a.v) {
    best = x > best ? x : best;
  }
  return best;
}
/// Lane i: that of the vector a[i], i in 0..15.
LUNA_ISA_INLINE I sum_of_each(const I* a) {
  return map_words([&](int i) { return sum_of_words(a[i]); });
}
LUNA_ISA_INLINE I max_of_each(const I* a) {
  return map_words([&](int i) { return max_of_words(a[i]); });
}
LUNA_ISA_INLINE std::int32_t half(std::int32_t word, int which) {
  return static_cast<std::int16_t>(static_cast<std::uint32_t>(word) >> (16 * which));
}
LUNA_ISA_INLINE std::uint32_t join_halves(std::int32_t low, std::int32_t high) {
  return (static_cast<std::uint32_t>(low) & 0xFFFFU) | (static_cast<std::uint32_t>(high) << 16);
}
/// acc + a.low * b.low + a.high * b.high, halves signed.
LUNA_ISA_INLINE I dot_halves(I acc, I a, I b) {
  return map_words([&](int i) {
    return static_cast<std::uint32_t>(acc.v[i]) +
           static_cast<std::uint32_t>(half(a.v[i], 0) * half(b.v[i], 0)) +
           static_cast<std::uint32_t>(half(a.v[i], 1) * half(b.v[i], 1));
  });
}
/// acc + the sum of a.byte * b.byte over the four bytes of a word: a's unsigned, b's signed.
LUNA_ISA_INLINE I dot_bytes(I acc, I a, I b) {
  return map_words([&](int i) {
    auto sum = static_cast<std::uint32_t>(acc.v[i]);
    for (int byte = 0; byte < 4; ++byte) {
      const auto x =
          static_cast<std::int32_t>((static_cast<std::uint32_t>(a.v[i]) >> (8 * byte)) & 0xFFU);
      const auto y = static_cast<std::int8_t>(static_cast<std::uint32_t>(b.v[i]) >> (8 * byte));
      sum += static_cast<std::uint32_t>(x * y);
    }
    return sum;
  });
}
LUNA_ISA_INLINE I xor_words(I a, I b) {
  return map_words([&](int i) { return a.v[i] ^ b.v[i]; });
}
LUNA_ISA_INLINE I sub_halves(I a, I b) {
  return map_words([&](int i) {
    return join_halves(half(a.v[i], 0) - half(b.v[i], 0), half(a.v[i], 1) - half(b.v[i], 1));
  });
}
LUNA_ISA_INLINE I mul_halves(I a, I b) {
  return map_words([&](int i) {
    return join_halves(half(a.v[i], 0) * half(b.v[i], 0), half(a.v[i], 1) * half(b.v[i], 1));
  });
}
/// The low bytes of both halves, sign-extended; and the high bytes.
LUNA_ISA_INLINE I low_bytes_signed(I a) {
  return map_words([&](int i) {
    return join_halves(static_cast<std::int8_t>(a.v[i]), static_cast<std::int8_t>(a.v[i] >> 16));
  });
}
LUNA_ISA_INLINE I high_bytes_signed(I a) {
  return map_words([&](int i) {
    return join_halves(static_cast<std::int8_t>(a.v[i] >> 8),
                       static_cast<std::int8_t>(a.v[i] >> 24));
  });
}
/// A code book of 16 signed bytes, looked up by the low 4 bits of each half.
struct Book {
  std::int16_t v[16];
};
LUNA_ISA_INLINE Book load_book(const std::int8_t* p) {
  Book r;
  for (int i = 0; i < 16; ++i) {
    r.v[i] = p[i];
  }
  return r;
}
LUNA_ISA_INLINE I look_up(Book book, I a) {
  return map_words(
      [&](int i) { return join_halves(book.v[a.v[i] & 15], book.v[(a.v[i] >> 16) & 15]); });
}
/// The book's entries plus 128 for the four bytes of each word; the high nibbles are zero.
LUNA_ISA_INLINE I look_up_bytes(Book book, I a) {
  return map_words([&](int i) {
    std::uint32_t word = 0;
    for (int byte = 0; byte < 4; ++byte) {
      const std::uint32_t entry = (static_cast<std::uint32_t>(a.v[i]) >> (8 * byte)) & 15U;
      word |= static_cast<std::uint32_t>(book.v[entry] + 128) << (8 * byte);
    }
    return word;
  });
}
/// 16 signed bytes, widened to words.
LUNA_ISA_INLINE I load_bytes(const void* p) {
  std::int8_t bytes[16];
  std::memcpy(bytes, p, sizeof bytes);
  return map_words([&](int i) { return bytes[i]; });
}
/// 16 FP16 values, widened exactly.
LUNA_ISA_INLINE F load_f16(const void* p) {
  std::uint16_t bits[16];
  std::memcpy(bits, p, sizeof bits);
  return map([&](int i) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits[i] & 0x8000U) << 16;
    const std::uint32_t magnitude = bits[i] & 0x7FFFU;
    std::uint32_t word = sign | ((magnitude << 13) + (112U << 23));  // normal
    if (magnitude >= 0x7C00U) {                                      // infinity, NaN
      word = sign | 0x7F800000U | (magnitude << 13);
    }
    float x;
    if (magnitude < 0x0400U) {  // subnormal: magnitude * 2^-24 is a normal FP32
      x = static_cast<float>(magnitude) * 0x1p-24F;
      std::memcpy(&word, &x, sizeof word);
      word |= sign;
    }
    std::memcpy(&x, &word, sizeof x);
    return x;
  });
}
/// 16 halves, widened with zeros.
LUNA_ISA_INLINE I load_halves(const void* p) {
  std::uint16_t halves[16];
  std::memcpy(halves, p, sizeof halves);
  return map_words([&](int i) { return halves[i]; });
}
/// Stores the low halves of the words.
LUNA_ISA_INLINE void store_low_halves(void* p, I a) {
  std::uint16_t halves[16];
  for (int i = 0; i < 16; ++i) {
    halves[i] = static_cast<std::uint16_t>(a.v[i]);
  }
  std::memcpy(p, halves, sizeof halves);
}
/// Stores the low half of word i at p + 4 * i and touches nothing in between.
LUNA_ISA_INLINE void store_halves_apart(void* p, I a) {
  auto* bytes = static_cast<std::byte*>(p);
  for (int i = 0; i < 16; ++i) {
    const auto one = static_cast<std::uint16_t>(a.v[i]);
    std::memcpy(bytes + 4 * i, &one, sizeof one);
  }
}
/// Stores the low bytes of the words, each 8 of them in the order kQuadOrder.
LUNA_ISA_INLINE void store_quads(void* p, I a) {
  std::int8_t bytes[16];
  for (int i = 0; i < 16; ++i) {
    bytes[i] = static_cast<std::int8_t>(a.v[i / 8 * 8 + kQuadOrder[i % 8]]);
  }
  std::memcpy(p, bytes, sizeof bytes);
}

}  // namespace luna::kernels::portable
