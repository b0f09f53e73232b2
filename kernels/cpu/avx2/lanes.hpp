// Sixteen lanes in two AVX2 registers; each operation as portable/lanes.hpp defines it.
#pragma once

#include "kernels/cpu/isa_region.hpp"
#include "kernels/cpu/kernel_set.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

LUNA_ISA_BEGIN(LUNA_ISA_AVX2)
namespace luna::kernels::avx2 {

struct F {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};

// 16 registers, two to a value: small tiles.
inline constexpr int kTileRows = 3;
inline constexpr int kTileStrips = 1;
inline constexpr int kDirectStrips = 1;
inline constexpr int kShortStrips = 1;
inline constexpr std::int64_t kDirectPairRowsMax = 12;
inline constexpr std::int64_t kDirectQuadRowsMax = 12;
inline constexpr int kChainRows = 2;
constexpr int strips_beside(int /*rows*/) {
  return 1;
}

LUNA_ISA_INLINE __m256i lane_numbers(int first) {
  return _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
}
/// All ones in lanes 8 * part + i that are below n.
LUNA_ISA_INLINE __m256i below(int n, int part) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane_numbers(8 * part));
}
LUNA_ISA_INLINE F load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
LUNA_ISA_INLINE void store(float* p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
LUNA_ISA_INLINE F load_n(const float* p, int n) {
  return {_mm256_maskload_ps(p, below(n, 0)), _mm256_maskload_ps(p + 8, below(n, 1))};
}
LUNA_ISA_INLINE void store_n(float* p, F x, int n) {
  _mm256_maskstore_ps(p, below(n, 0), x.a);
  _mm256_maskstore_ps(p + 8, below(n, 1), x.b);
}
LUNA_ISA_INLINE F set(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
LUNA_ISA_INLINE F add(F x, F y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
LUNA_ISA_INLINE F sub(F x, F y) {
  return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
LUNA_ISA_INLINE F mul(F x, F y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
LUNA_ISA_INLINE F div(F x, F y) {
  return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
LUNA_ISA_INLINE F fma(F x, F y, F z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
LUNA_ISA_INLINE F max(F x, F y) {
  return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
LUNA_ISA_INLINE F min(F x, F y) {
  return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
LUNA_ISA_INLINE F round_even(F x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)};
}
template <int n>
LUNA_ISA_INLINE F swap_lanes(F x) {
  static_assert(n == 8 || n == 4 || n == 2 || n == 1);
  if constexpr (n == 8) {
    return {x.b, x.a};
  } else if constexpr (n == 4) {
    return {_mm256_permute2f128_ps(x.a, x.a, 1), _mm256_permute2f128_ps(x.b, x.b, 1)};
  } else {
    constexpr int kOrder = n == 2 ? 0x4E : 0xB1;
    return {_mm256_permute_ps(x.a, kOrder), _mm256_permute_ps(x.b, kOrder)};
  }
}
LUNA_ISA_INLINE float first_lane(F x) {
  return _mm256_cvtss_f32(x.a);
}
LUNA_ISA_INLINE F duplicate(F x) {
  const __m256i low = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  const __m256i high = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
  return {_mm256_permutevar8x32_ps(x.a, low), _mm256_permutevar8x32_ps(x.a, high)};
}
LUNA_ISA_INLINE F select_range(F x, F y, int first, int last) {
  const __m256i in_a = _mm256_andnot_si256(below(first, 0), below(last, 0));
  const __m256i in_b = _mm256_andnot_si256(below(first, 1), below(last, 1));
  return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(in_a)),
          _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(in_b))};
}
LUNA_ISA_INLINE F select(unsigned bits, F x, F y) {
  const __m256i lanes_a = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i lanes_b = _mm256_slli_epi32(lanes_a, 8);
  const __m256i all = _mm256_set1_epi32(static_cast<std::int32_t>(bits));
  const __m256i in_a = _mm256_cmpeq_epi32(_mm256_and_si256(all, lanes_a), lanes_a);
  const __m256i in_b = _mm256_cmpeq_epi32(_mm256_and_si256(all, lanes_b), lanes_b);
  return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(in_a)),
          _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(in_b))};
}
LUNA_ISA_INLINE unsigned greater(F x, F y) {
  const int a = _mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ));
  const int b = _mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ));
  return static_cast<unsigned>(a | (b << 8));
}

LUNA_ISA_INLINE I load_words(const void* p) {
  const auto* words = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
}
LUNA_ISA_INLINE void store_words(void* p, I x) {
  auto* words = static_cast<__m256i*>(p);
  _mm256_storeu_si256(words, x.a);
  _mm256_storeu_si256(words + 1, x.b);
}
LUNA_ISA_INLINE I set_word(std::int32_t x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
LUNA_ISA_INLINE I add_words(I x, I y) {
  return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
LUNA_ISA_INLINE I sub_words(I x, I y) {
  return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
LUNA_ISA_INLINE I mul_words(I x, I y) {
  return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)};
}
LUNA_ISA_INLINE I and_words(I x, I y) {
  return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
LUNA_ISA_INLINE I max_words(I x, I y) {
  return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)};
}
template <int n>
LUNA_ISA_INLINE I shift_left(I x) {
  return {_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)};
}
template <int n>
LUNA_ISA_INLINE I shift_right(I x) {
  return {_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)};
}
LUNA_ISA_INLINE F as_floats(I x) {
  return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}
LUNA_ISA_INLINE I as_words(F x) {
  return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
}
LUNA_ISA_INLINE F to_floats(I x) {
  return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
LUNA_ISA_INLINE I to_words(F x) {
  return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)};
}

LUNA_ISA_INLINE std::int32_t sum_of_words(I x) {
  const __m256i eight = _mm256_add_epi32(x.a, x.b);
  __m128i v = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4E));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xB1));
  return _mm_cvtsi128_si32(v);
}
LUNA_ISA_INLINE std::int32_t max_of_words(I x) {
  const __m256i eight = _mm256_max_epi32(x.a, x.b);
  __m128i v = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0x4E));
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0xB1));
  return _mm_cvtsi128_si32(v);
}
/// Lane i of 8: the lanes of the vector v[i] joined, in any order.
template <class Op>
LUNA_ISA_INLINE __m256i join_eight(const I* v, Op op) {
  __m256i quarters[2];  // [i]: each 128 bits hold a part of vectors 4 i .. 4 i + 3
  for (int i = 0; i < 2; ++i) {
    __m256i w[4];
    for (int j = 0; j < 4; ++j) {
      w[j] = op(v[4 * i + j].a, v[4 * i + j].b);
    }
    const __m256i first = op(_mm256_unpacklo_epi32(w[0], w[1]), _mm256_unpackhi_epi32(w[0], w[1]));
    const __m256i second = op(_mm256_unpacklo_epi32(w[2], w[3]), _mm256_unpackhi_epi32(w[2], w[3]));
    quarters[i] = op(_mm256_unpacklo_epi64(first, second), _mm256_unpackhi_epi64(first, second));
  }
  return op(_mm256_permute2x128_si256(quarters[0], quarters[1], 0x20),
            _mm256_permute2x128_si256(quarters[0], quarters[1], 0x31));
}
LUNA_ISA_INLINE I sum_of_each(const I* v) {
  const auto op = [&](__m256i x, __m256i y) LUNA_LAMBDA_INLINE { return _mm256_add_epi32(x, y); };
  return {join_eight(v, op), join_eight(v + 8, op)};
}
LUNA_ISA_INLINE I max_of_each(const I* v) {
  const auto op = [&](__m256i x, __m256i y) LUNA_LAMBDA_INLINE { return _mm256_max_epi32(x, y); };
  return {join_eight(v, op), join_eight(v + 8, op)};
}
LUNA_ISA_INLINE I dot_halves(I acc, I x, I y) {
  return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(x.a, y.a)),
          _mm256_add_epi32(acc.b, _mm256_madd_epi16(x.b, y.b))};
}
/// Not VPMADDUBSW: a pair of products of 8-bit codes would saturate.
LUNA_ISA_INLINE __m256i dot_bytes_part(__m256i acc, __m256i x, __m256i y) {
  const __m256i x_even = _mm256_and_si256(x, _mm256_set1_epi16(0x00FF));
  const __m256i y_even = _mm256_srai_epi16(_mm256_slli_epi16(y, 8), 8);
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x, 8), _mm256_srai_epi16(y, 8));
  return _mm256_add_epi32(acc, _mm256_add_epi32(_mm256_madd_epi16(x_even, y_even), odd));
}
LUNA_ISA_INLINE I dot_bytes(I acc, I x, I y) {
  return {dot_bytes_part(acc.a, x.a, y.a), dot_bytes_part(acc.b, x.b, y.b)};
}
LUNA_ISA_INLINE I xor_words(I x, I y) {
  return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)};
}
LUNA_ISA_INLINE I sub_halves(I x, I y) {
  return {_mm256_sub_epi16(x.a, y.a), _mm256_sub_epi16(x.b, y.b)};
}
LUNA_ISA_INLINE I mul_halves(I x, I y) {
  return {_mm256_mullo_epi16(x.a, y.a), _mm256_mullo_epi16(x.b, y.b)};
}
LUNA_ISA_INLINE I low_bytes_signed(I x) {
  return {_mm256_srai_epi16(_mm256_slli_epi16(x.a, 8), 8),
          _mm256_srai_epi16(_mm256_slli_epi16(x.b, 8), 8)};
}
LUNA_ISA_INLINE I high_bytes_signed(I x) {
  return {_mm256_srai_epi16(x.a, 8), _mm256_srai_epi16(x.b, 8)};
}
using Book = __m256i;
LUNA_ISA_INLINE Book load_book(const std::int8_t* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
LUNA_ISA_INLINE I look_up(Book book, I x) {
  const __m256i nibble = _mm256_set1_epi16(0x000F);
  const __m256i a = _mm256_shuffle_epi8(book, _mm256_and_si256(x.a, nibble));
  const __m256i b = _mm256_shuffle_epi8(book, _mm256_and_si256(x.b, nibble));
  return low_bytes_signed({a, b});  // the high bytes hold entry 0
}
LUNA_ISA_INLINE I look_up_bytes(Book book, I x) {
  const __m256i centre = _mm256_set1_epi8(-128);
  return {_mm256_xor_si256(_mm256_shuffle_epi8(book, x.a), centre),
          _mm256_xor_si256(_mm256_shuffle_epi8(book, x.b), centre)};
}
LUNA_ISA_INLINE I load_bytes(const void* p) {
  const auto* bytes = static_cast<const std::int8_t*>(p);
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes))),
          _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + 8)))};
}
LUNA_ISA_INLINE F load_f16(const void* p) {
  const auto* halves = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
LUNA_ISA_INLINE I load_halves(const void* p) {
  const auto* halves = static_cast<const __m128i*>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(halves)),
          _mm256_cvtepu16_epi32(_mm_loadu_si128(halves + 1))};
}
LUNA_ISA_INLINE void store_low_halves(void* p, I x) {
  const __m256i low = _mm256_set1_epi32(0xFFFF);  // packus saturates: only low halves may enter
  const __m256i packed =
      _mm256_packus_epi32(_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}
LUNA_ISA_INLINE void store_halves_apart(void* p, I x) {
  std::int32_t words[16];
  store_words(words, x);
  auto* bytes = static_cast<std::byte*>(p);
  for (int i = 0; i < 16; ++i) {
    std::memcpy(bytes + 4 * i, words + i, 2);  // the low half: bytes ascend
  }
}
LUNA_ISA_INLINE void store_quads(void* p, I x) {
  const __m256i halves = _mm256_packs_epi32(x.a, x.b);  // 0-3, 8-11 | 4-7, 12-15
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  const __m128i order = _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm_shuffle_epi8(bytes, order));
}

}  // namespace luna::kernels::avx2
LUNA_ISA_END
