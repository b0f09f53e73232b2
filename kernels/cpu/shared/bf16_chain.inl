// Products of BF16 values in the order of the AMX BF16 tile instruction (TDPBF16PS): for each step
// of 32 inputs an FMA chain over the even products and one over the odd ones, both from +0, their
// sum added to the accumulator. Included like vector_math.inl.
//
// The left side lies as FP32 values that are BF16 numbers, in one or more terms; the right side in
// lines of 16 columns, a pair of inputs after the other.

/// The left side: row r of term t starts at values + t * term_stride + r * row_stride.
struct ChainRows {
  const float* values;
  std::int64_t row_stride;
  std::int64_t term_stride;
};

/// The right side as BF16: a line holds a pair of inputs, [16 columns][2].
struct Bf16Lines {
  const std::byte* first;
  std::size_t pair_stride;     // bytes between pairs of inputs
  std::size_t strip_stride;    // bytes to the next 16 columns
  std::ptrdiff_t fetch_ahead;  // each line asks for the one so many bytes away; 0: none

  LUNA_MEMBER_INLINE void load_pair(int pair, int strip, F& even, F& odd) const {
    const std::byte* p = first + static_cast<std::size_t>(pair) * pair_stride +
                         static_cast<std::size_t>(strip) * strip_stride;
    __builtin_prefetch(p + fetch_ahead);
    const I line = load_words(p);
    even = as_floats(shift_left<16>(line));
    odd = as_floats(and_words(line, set_word(static_cast<std::int32_t>(0xFFFF0000U))));
  }
};

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
#pragma GCC unroll 2
  for (int i = 0; i < 16; ++i) {
    F b_even[strips];
    F b_odd[strips];
#pragma GCC unroll 16
    for (int s = 0; s < strips; ++s) {
      lines.load_pair(i, s, b_even[s], b_odd[s]);
    }
#pragma GCC unroll 16
    for (int t = 0; t < terms; ++t) {
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const float* pair = a.values + t * a.term_stride + r * a.row_stride + 2 * i;
        const F a_even = set(pair[0]);
        const F a_odd = set(pair[1]);
#pragma GCC unroll 16
        for (int s = 0; s < strips; ++s) {
          even[s][t][r] = fma(a_even, b_even[s], even[s][t][r]);
          odd[s][t][r] = fma(a_odd, b_odd[s], odd[s][t][r]);
        }
      }
    }
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

/// Dense weights: one strip, `rows` rows, all of K.
template <int rows>
void dense_tile(const LinearArgs& args, std::int64_t row, std::int64_t strip) {
  const PackedForm& form = *args.form;
  const DenseRows& x = *args.dense;
  const std::byte* lines = args.packed + static_cast<std::size_t>(strip) * form.strip_bytes;
  float* y = args.y + row * args.y_stride + 16 * strip;
  for (std::int64_t first = 0; first < form.k_padded; first += form.form.segment) {
    const std::int64_t last = std::min(first + form.form.segment, form.k_padded);
    F acc[1][rows];
    for (int r = 0; r < rows; ++r) {
      acc[0][r] = set(0.0F);
    }
    for (std::int64_t k = first; k < last; k += kChainStep) {
      const ChainRows a{x.values + row * x.stride + k, x.stride, 0};
      chain_step<1, rows, kDenseTerms>(
          acc, a, Bf16Lines{lines + static_cast<std::size_t>(k) * 32, 64, 0, 0});
    }
    for (int r = 0; r < rows; ++r) {
      add_segment(y + r * args.y_stride, acc[0][r], columns_of(form, strip), first == 0);
    }
  }
}

template <int rows = kChainRows>
LUNA_ISA_INLINE void dense_rows(const LinearArgs& args,
                                std::int64_t row,
                                std::int64_t n_rows,
                                std::int64_t strip) {
  if constexpr (rows > 1) {
    if (n_rows < rows) {
      dense_rows<rows - 1>(args, row, n_rows, strip);
      return;
    }
  }
  dense_tile<rows>(args, row, strip);
}

void linear_dense(const LinearArgs& args) {
  for (std::int64_t c = 0; c < args.n_strips; ++c) {
    for (std::int64_t r = 0; r < args.n_rows; r += kChainRows) {
      dense_rows(args, args.first_row + r, args.n_rows - r, args.first_strip + c);
    }
  }
}
