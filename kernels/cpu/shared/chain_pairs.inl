// The chains of chain_fma.inl two products an instruction, for sets that have dot_bf16: the chain
// over even products takes the pairs (0, 2), (4, 6), .. and that over odd ones (1, 3), (5, 7), ..,
// the first product of a pair in the high half. Included after lines.inl, in place of
// chain_fma.inl.

/// The left side lies as BF16, each four inputs as the words (x2, x0), (x3, x1), low half first.
using ChainValue = std::uint16_t;

/// Writes 16 values in BF16 terms: each is what rounding left of the value before.
template <int terms>
LUNA_ISA_INLINE void store_terms(F x, ChainValue* to, std::int64_t term_stride) {
  for (int t = 0; t < terms; ++t) {
    const Halves term = round_halves(x);
    store_pairs(to + t * term_stride, term);
    x = sub(x, widen_halves(term));
  }
}

/// The left side: row r of term t starts at values + t * term_stride + r * row_stride.
struct ChainRows {
  const ChainValue* values;
  std::int64_t row_stride;
  std::int64_t term_stride;
};

/// The pairs of inputs 4 * quad .. 4 * quad + 3 of 16 columns.
struct QuadPairs {
  I even;
  I odd;
};
LUNA_ISA_INLINE QuadPairs make_pairs(I first, I second) {
  return {even_pair(first, second), odd_pair(first, second)};
}
LUNA_ISA_INLINE QuadPairs load_quad(const Bf16Lines& lines, int quad, int strip) {
  return make_pairs(lines.load(2 * quad, strip), lines.load(2 * quad + 1, strip));
}
LUNA_ISA_INLINE QuadPairs load_quad(const ByteLines& lines, int quad, int strip) {
  const I x0 = as_words(lines.load(4 * quad, strip));
  const I x1 = as_words(lines.load(4 * quad + 1, strip));
  const I x2 = as_words(lines.load(4 * quad + 2, strip));
  const I x3 = as_words(lines.load(4 * quad + 3, strip));
  return {odd_pair(x0, x2), odd_pair(x1, x3)};  // an integer's BF16 is its FP32's high half
}

/// The chains of a step, each for itself, in even[s][t][r] and odd[s][t][r].
template <bool fetches, int strips, int terms, int rows, class Lines>
LUNA_ISA_INLINE void multiply_step(F (&even)[strips][terms][rows],
                                   F (&odd)[strips][terms][rows],
                                   const ChainRows& a,
                                   const Lines& lines) {
#pragma GCC unroll 2
  for (int i = 0; i < kChainStep / 4; ++i) {
    if constexpr (fetches) {
      fetch_part<2 * strips * Lines::kPairBytes>(lines.fetched, i);
    }
    QuadPairs b[strips];
#pragma GCC unroll 16
    for (int s = 0; s < strips; ++s) {
      b[s] = load_quad(lines, i, s);
    }
#pragma GCC unroll 16
    for (int t = 0; t < terms; ++t) {
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const ChainValue* quad = a.values + t * a.term_stride + r * a.row_stride + 4 * i;
        const I a_even = set_word(load_word(quad));
        const I a_odd = set_word(load_word(quad + 2));
#pragma GCC unroll 16
        for (int s = 0; s < strips; ++s) {
          even[s][t][r] = dot_bf16(even[s][t][r], a_even, b[s].even);
          odd[s][t][r] = dot_bf16(odd[s][t][r], a_odd, b[s].odd);
        }
      }
    }
  }
}

/// acc[s][r] += step sums of 32 inputs, term after term, for rows of the left side and strips of
/// the right one.
template <int strips, int rows, int terms, class Lines>
LUNA_ISA_INLINE void chain_step(F (&acc)[strips][rows], const ChainRows& a, const Lines& lines) {
  F even[strips][terms][rows];
  F odd[strips][terms][rows];
#pragma GCC unroll 16
  for (int s = 0; s < strips; ++s) {
#pragma GCC unroll 16
    for (int t = 0; t < terms; ++t) {
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        even[s][t][r] = set(0.0F);
        odd[s][t][r] = set(0.0F);
      }
    }
  }
  if (lines.fetched != nullptr) {
    multiply_step<true>(even, odd, a, lines);
  } else {
    multiply_step<false>(even, odd, a, lines);
  }
#pragma GCC unroll 16
  for (int s = 0; s < strips; ++s) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
      for (int t = 0; t < terms; ++t) {
        acc[s][r] = add(acc[s][r], add(even[s][t][r], odd[s][t][r]));
      }
    }
  }
}
