// The AVX-512 kernels with BF16 products by VDPBF16PS, two an instruction.
#include "kernels/cpu/avx512/lanes.hpp"
#include "kernels/cpu/shared/isa_sets.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <xmmintrin.h>

LUNA_ISA_BEGIN(LUNA_ISA_AVX512_BF16)
namespace luna::kernels::avx512_bf16 {
namespace {
using namespace avx512;  // the lanes; not its table

// Measured on Zen 5: unpacking in registers is free beside dot products of pairs at any count,
// beside the fewer ones of bytes up to somewhere in 64..128 rows.
inline constexpr std::int64_t kDirectPairRowsMax = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kDirectQuadRowsMax = 96;

/// fma(a.low, b.low, fma(a.high, b.high, acc)) of BF16 halves, where has_chained_pairs().
LUNA_ISA_INLINE F dot_bf16(F acc, I a, I b) {
  return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
/// Of words (x0, x1) and (x2, x3), low half first: the pair (x2, x0), and the pair (x3, x1).
LUNA_ISA_INLINE I even_pair(I first, I second) {
  return _mm512_mask_blend_epi16(0xAAAAAAAAU, second, _mm512_slli_epi32(first, 16));
}
LUNA_ISA_INLINE I odd_pair(I first, I second) {
  return _mm512_mask_blend_epi16(0xAAAAAAAAU, _mm512_srli_epi32(second, 16), first);
}
using Halves = __m256i;
/// 16 BF16 numbers, as round_to_bf16() rounds; denormals become zeros, which they are in products.
LUNA_ISA_INLINE Halves round_halves(F x) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
}
LUNA_ISA_INLINE F widen_halves(Halves x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
/// Stores 16 BF16 numbers as the pairs (x2, x0), (x3, x1), (x6, x4), ..
LUNA_ISA_INLINE void store_pairs(void* p, Halves x) {
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(4, 5, 0, 1, 6, 7, 2, 3, 12, 13, 8, 9, 14, 15, 10, 11));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_shuffle_epi8(x, order));
}

// clang-format off
#include "kernels/cpu/shared/vector_math.inl"
#include "kernels/cpu/shared/lines.inl"
#include "kernels/cpu/shared/chain_pairs.inl"
#include "kernels/cpu/shared/kernels.inl"
#include "kernels/cpu/shared/dense_pairs.inl"
// clang-format on

constexpr KernelSet make_pair_set() {
  KernelSet set = make_set(Isa::avx512_bf16, "avx512_bf16");
  set.linear = linear_with_pairs;
  return set;
}

/// A BF16 number of random sign and mantissa with an exponent of `low` .. `low` + 15.
std::uint16_t random_bf16(std::uint64_t* state, unsigned low) {
  *state = *state * 6364136223846793005U + 1442695040888963407U;
  const auto bits = static_cast<unsigned>(*state >> 40);
  return static_cast<std::uint16_t>((bits & 0x807FU) | ((low + (bits >> 8 & 15U)) << 7));
}
float widen(std::uint16_t bf16) {
  const std::uint32_t bits = static_cast<std::uint32_t>(bf16) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
}  // namespace

bool has_chained_pairs() {
  const unsigned mode = _mm_getcsr();
  set_thread_float_mode();
  std::uint64_t state = 20260117;
  int n_different = 0;
  for (int turn = 0; turn < 512; ++turn) {
    // Ordinary products, sums that cancel, products near the smallest and the largest number.
    constexpr unsigned kExponents[] = {120, 120, 56, 184};
    const unsigned low = kExponents[turn % 4];
    std::uint16_t a[32];
    std::uint16_t b[32];
    float acc[16];
    for (int i = 0; i < 32; ++i) {
      a[i] = random_bf16(&state, low);
      b[i] = random_bf16(&state, low);
    }
    for (int i = 0; i < 16; ++i) {
      acc[i] = turn % 4 == 1 ? -(widen(a[2 * i + 1]) * widen(b[2 * i + 1]))
                             : widen(random_bf16(&state, turn % 4 == 2 ? 1 : low));
    }
    float found[16];
    store(found, dot_bf16(load(acc), load_words(a), load_words(b)));
    for (int i = 0; i < 16; ++i) {
      const float high = std::fma(widen(a[2 * i + 1]), widen(b[2 * i + 1]), acc[i]);
      const float both = std::fma(widen(a[2 * i]), widen(b[2 * i]), high);
      n_different += std::memcmp(&both, &found[i], sizeof both) != 0 ? 1 : 0;
    }
  }
  _mm_setcsr(mode);
  return n_different == 0;
}

constinit const KernelSet kSet = make_pair_set();

}  // namespace luna::kernels::avx512_bf16
LUNA_ISA_END
