// Sixteen lanes in one AVX-512 register; each operation as portable/lanes.hpp defines it.
#pragma once

#include "kernels/cpu/isa_region.hpp"
#include "kernels/cpu/kernel_set.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

LUNA_ISA_BEGIN(LUNA_ISA_AVX512)
namespace luna::kernels::avx512 {

using F = __m512;
using I = __m512i;

// 32 registers: a tile holds 2 * rows * strips accumulators, its codes and a broadcast. A chain
// tile holds 2 * terms * rows.
inline constexpr int kTileRows = 6;
inline constexpr int kTileStrips = 2;
inline constexpr int kDirectStrips = 2;
inline constexpr int kShortStrips = 3;
inline constexpr std::int64_t kDirectPairRowsMax = 18;
inline constexpr std::int64_t kDirectQuadRowsMax = 18;
inline constexpr int kChainRows = 6;
// A row costs two accumulators a strip, and each of its operands is broadcast once for all strips:
// with one strip the loads would be the limit.
constexpr int strips_beside(int rows) {
  return rows <= 6 ? 2 : 1;
}

LUNA_ISA_INLINE __mmask16 first_lanes(int n) {
  return static_cast<__mmask16>(n >= 16 ? 0xFFFFU : (1U << (n < 0 ? 0 : n)) - 1U);
}
LUNA_ISA_INLINE F load(const float* p) {
  return _mm512_loadu_ps(p);
}
LUNA_ISA_INLINE void store(float* p, F a) {
  _mm512_storeu_ps(p, a);
}
LUNA_ISA_INLINE F load_n(const float* p, int n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
LUNA_ISA_INLINE void store_n(float* p, F a, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), a);
}
LUNA_ISA_INLINE F set(float x) {
  return _mm512_set1_ps(x);
}
LUNA_ISA_INLINE F add(F a, F b) {
  return _mm512_add_ps(a, b);
}
LUNA_ISA_INLINE F sub(F a, F b) {
  return _mm512_sub_ps(a, b);
}
LUNA_ISA_INLINE F mul(F a, F b) {
  return _mm512_mul_ps(a, b);
}
LUNA_ISA_INLINE F div(F a, F b) {
  return _mm512_div_ps(a, b);
}
LUNA_ISA_INLINE F fma(F a, F b, F c) {
  return _mm512_fmadd_ps(a, b, c);
}
LUNA_ISA_INLINE F max(F a, F b) {
  return _mm512_max_ps(a, b);
}
LUNA_ISA_INLINE F min(F a, F b) {
  return _mm512_min_ps(a, b);
}
LUNA_ISA_INLINE F round_even(F a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
template <int n>
LUNA_ISA_INLINE F swap_lanes(F a) {
  static_assert(n == 8 || n == 4 || n == 2 || n == 1);
  if constexpr (n >= 4) {
    return _mm512_shuffle_f32x4(a, a, n == 8 ? 0x4E : 0xB1);
  } else {
    return _mm512_permute_ps(a, n == 2 ? 0x4E : 0xB1);
  }
}
LUNA_ISA_INLINE float first_lane(F a) {
  return _mm512_cvtss_f32(a);
}
LUNA_ISA_INLINE F duplicate(F a) {
  const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return _mm512_permutexvar_ps(twice, a);
}
LUNA_ISA_INLINE F select_range(F a, F b, int first, int last) {
  const auto mask = static_cast<__mmask16>(first_lanes(last) & ~first_lanes(first));
  return _mm512_mask_blend_ps(mask, b, a);
}
LUNA_ISA_INLINE F select(unsigned bits, F a, F b) {
  return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), b, a);
}
LUNA_ISA_INLINE unsigned greater(F a, F b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

LUNA_ISA_INLINE I load_words(const void* p) {
  return _mm512_loadu_si512(p);
}
LUNA_ISA_INLINE void store_words(void* p, I a) {
  _mm512_storeu_si512(p, a);
}
LUNA_ISA_INLINE I set_word(std::int32_t x) {
  return _mm512_set1_epi32(x);
}
LUNA_ISA_INLINE I add_words(I a, I b) {
  return _mm512_add_epi32(a, b);
}
LUNA_ISA_INLINE I sub_words(I a, I b) {
  return _mm512_sub_epi32(a, b);
}
LUNA_ISA_INLINE I mul_words(I a, I b) {
  return _mm512_mullo_epi32(a, b);
}
LUNA_ISA_INLINE I and_words(I a, I b) {
  return _mm512_and_si512(a, b);
}
LUNA_ISA_INLINE I max_words(I a, I b) {
  return _mm512_max_epi32(a, b);
}
template <int n>
LUNA_ISA_INLINE I shift_left(I a) {
  return _mm512_slli_epi32(a, n);
}
template <int n>
LUNA_ISA_INLINE I shift_right(I a) {
  return _mm512_srli_epi32(a, n);
}
LUNA_ISA_INLINE F as_floats(I a) {
  return _mm512_castsi512_ps(a);
}
LUNA_ISA_INLINE I as_words(F a) {
  return _mm512_castps_si512(a);
}
LUNA_ISA_INLINE F to_floats(I a) {
  return _mm512_cvtepi32_ps(a);
}
LUNA_ISA_INLINE I to_words(F a) {
  return _mm512_cvtps_epi32(a);
}

// Not _mm512_reduce_*: GCC 12 warns about its own header there.
LUNA_ISA_INLINE std::int32_t sum_of_words(I a) {
  const __m256i eight =
      _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
  __m128i v = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4E));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xB1));
  return _mm_cvtsi128_si32(v);
}
LUNA_ISA_INLINE std::int32_t max_of_words(I a) {
  const __m256i eight =
      _mm256_max_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
  __m128i v = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0x4E));
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0xB1));
  return _mm_cvtsi128_si32(v);
}
/// Lane i: the lanes of the vector a[i] joined, in any order.
template <class Op>
LUNA_ISA_INLINE I join_each(const I* a, Op op) {
  I quarters[4];  // [i]: each 128 bits hold a part of vectors 4 i .. 4 i + 3
  for (int i = 0; i < 4; ++i) {
    const I* v = a + 4 * i;
    const I first = op(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    const I second = op(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    quarters[i] = op(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
  }
  const auto join = [&](I x, I y) LUNA_LAMBDA_INLINE {
    return op(_mm512_shuffle_i32x4(x, y, 0x88), _mm512_shuffle_i32x4(x, y, 0xDD));
  };
  return join(join(quarters[0], quarters[1]), join(quarters[2], quarters[3]));
}
LUNA_ISA_INLINE I sum_of_each(const I* a) {
  return join_each(a, [&](I x, I y) LUNA_LAMBDA_INLINE { return add_words(x, y); });
}
LUNA_ISA_INLINE I max_of_each(const I* a) {
  return join_each(a, [&](I x, I y) LUNA_LAMBDA_INLINE { return max_words(x, y); });
}
LUNA_ISA_INLINE I dot_halves(I acc, I a, I b) {
  return _mm512_dpwssd_epi32(acc, a, b);
}
LUNA_ISA_INLINE I dot_bytes(I acc, I a, I b) {
  return _mm512_dpbusd_epi32(acc, a, b);
}
LUNA_ISA_INLINE I xor_words(I a, I b) {
  return _mm512_xor_si512(a, b);
}
LUNA_ISA_INLINE I sub_halves(I a, I b) {
  return _mm512_sub_epi16(a, b);
}
LUNA_ISA_INLINE I mul_halves(I a, I b) {
  return _mm512_mullo_epi16(a, b);
}
LUNA_ISA_INLINE I low_bytes_signed(I a) {
  return _mm512_srai_epi16(_mm512_slli_epi16(a, 8), 8);
}
LUNA_ISA_INLINE I high_bytes_signed(I a) {
  return _mm512_srai_epi16(a, 8);
}
// The look-up takes five bits of an index: the book stands twice, the neighbour's bit does no harm.
using Book = __m512i;
LUNA_ISA_INLINE Book load_book(const std::int8_t* p) {
  const __m256i once = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_inserti64x4(_mm512_castsi256_si512(once), once, 1);
}
LUNA_ISA_INLINE I look_up(Book book, I a) {
  return _mm512_permutexvar_epi16(a, book);
}
LUNA_ISA_INLINE I look_up_bytes(Book book, I a) {
  // The book's low bytes once a lane of 128 bits, as VPSHUFB wants them.
  const __m512i once = _mm512_broadcast_i32x4(_mm256_cvtepi16_epi8(_mm512_castsi512_si256(book)));
  return _mm512_xor_si512(_mm512_shuffle_epi8(once, a), _mm512_set1_epi8(-128));
}
LUNA_ISA_INLINE I load_bytes(const void* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
LUNA_ISA_INLINE F load_f16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
LUNA_ISA_INLINE I load_halves(const void* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
LUNA_ISA_INLINE void store_low_halves(void* p, I a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a));
}
LUNA_ISA_INLINE void store_halves_apart(void* p, I a) {
  _mm512_mask_storeu_epi16(p, 0x55555555U, a);
}
LUNA_ISA_INLINE void store_quads(void* p, I a) {
  const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  _mm_storeu_si128(static_cast<__m128i*>(p),
                   _mm512_cvtepi32_epi8(_mm512_permutexvar_epi32(order, a)));
}

}  // namespace luna::kernels::avx512
LUNA_ISA_END
