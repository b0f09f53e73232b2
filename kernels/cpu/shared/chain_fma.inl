// Products of BF16 values in the order of the AMX BF16 tile instruction (TDPBF16PS): for each step
// of 32 inputs an FMA chain over the even products and one over the odd ones, both from +0, their
// sum added to the accumulator. Included after lines.inl; chain_pairs.inl stands for it where one
// instruction is two such steps.

/// The left side lies as FP32 values that are BF16 numbers, in one or more terms.
using ChainValue = float;

/// Writes 16 values in BF16 terms: each is what rounding left of the value before.
template <int terms>
LUNA_ISA_INLINE void store_terms(F x, ChainValue* to, std::int64_t term_stride) {
  for (int t = 0; t < terms; ++t) {
    const F term = round_to_bf16(x);
    store(to + t * term_stride, term);
    x = sub(x, term);
  }
}

/// The left side: row r of term t starts at values + t * term_stride + r * row_stride.
struct ChainRows {
  const ChainValue* values;
  std::int64_t row_stride;
  std::int64_t term_stride;
};

/// Inputs 2 * pair and 2 * pair + 1 of 16 columns.
struct PairOfFloats {
  F even;
  F odd;
};
LUNA_ISA_INLINE PairOfFloats load_pair(const Bf16Lines& lines, int pair, int strip) {
  const I line = lines.load(pair, strip);
  return {as_floats(shift_left<16>(line)),
          as_floats(and_words(line, set_word(static_cast<std::int32_t>(0xFFFF0000U))))};
}
LUNA_ISA_INLINE PairOfFloats load_pair(const ByteLines& lines, int pair, int strip) {
  return {lines.load(2 * pair, strip), lines.load(2 * pair + 1, strip)};
}

/// The chains of a step, each for itself, in even[s][t][r] and odd[s][t][r].
template <bool fetches, int strips, int terms, int rows, class Lines>
LUNA_ISA_INLINE void multiply_step(F (&even)[strips][terms][rows],
                                   F (&odd)[strips][terms][rows],
                                   const ChainRows& a,
                                   const Lines& lines) {
#pragma GCC unroll 2
  for (int i = 0; i < kChainStep / 2; ++i) {
    if constexpr (fetches) {
      fetch_part<strips * Lines::kPairBytes>(lines.fetched, i);
    }
    PairOfFloats b[strips];
#pragma GCC unroll 16
    for (int s = 0; s < strips; ++s) {
      b[s] = load_pair(lines, i, s);
    }
#pragma GCC unroll 16
    for (int t = 0; t < terms; ++t) {
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const ChainValue* pair = a.values + t * a.term_stride + r * a.row_stride + 2 * i;
        const F a_even = set(pair[0]);
        const F a_odd = set(pair[1]);
#pragma GCC unroll 16
        for (int s = 0; s < strips; ++s) {
          even[s][t][r] = fma(a_even, b[s].even, even[s][t][r]);
          odd[s][t][r] = fma(a_odd, b[s].odd, odd[s][t][r]);
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
