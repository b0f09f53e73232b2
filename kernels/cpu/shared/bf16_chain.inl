// Products of BF16 values in the order of the AMX BF16 tile instruction (TDPBF16PS): for each step
// of 32 inputs an FMA chain over the even products and one over the odd ones, both from +0, their
// sum added to the accumulator. Included like vector_math.inl.
//
// The right side lies as [k / 2][16 columns][2] BF16, the left side as FP32 values that are BF16
// numbers, in one or more terms.

/// The left side: row r of term t starts at values + t * term_stride + r * row_stride.
struct ChainRows {
  const float* values;
  std::int64_t row_stride;
  std::int64_t term_stride;
};

/// acc[r] += step sums of 32 inputs, term after term. line_stride: bytes between pairs of inputs.
template <int rows, int terms>
LUNA_ISA_INLINE void chain_step(F (&acc)[rows],
                                const ChainRows& a,
                                const std::byte* lines,
                                std::size_t line_stride) {
  F even[terms][rows];
  F odd[terms][rows];
#pragma GCC unroll 16
  for (int t = 0; t < terms; ++t) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      even[t][r] = set(0.0F);
      odd[t][r] = set(0.0F);
    }
  }
#pragma GCC unroll 2
  for (int i = 0; i < 16; ++i) {
    const I line = load_words(lines + static_cast<std::size_t>(i) * line_stride);
    const F b_even = as_floats(shift_left<16>(line));
    const F b_odd = as_floats(and_words(line, set_word(static_cast<std::int32_t>(0xFFFF0000U))));
#pragma GCC unroll 16
    for (int t = 0; t < terms; ++t) {
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const float* pair = a.values + t * a.term_stride + r * a.row_stride + 2 * i;
        even[t][r] = fma(set(pair[0]), b_even, even[t][r]);
        odd[t][r] = fma(set(pair[1]), b_odd, odd[t][r]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int t = 0; t < terms; ++t) {
      acc[r] = add(acc[r], add(even[t][r], odd[t][r]));
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
    F acc[rows];
    for (int r = 0; r < rows; ++r) {
      acc[r] = set(0.0F);
    }
    for (std::int64_t k = first; k < last; k += kChainStep) {
      const ChainRows a{x.values + row * x.stride + k, x.stride, 0};
      chain_step<rows, kDenseTerms>(acc, a, lines + static_cast<std::size_t>(k) * 32, 64);
    }
    for (int r = 0; r < rows; ++r) {
      add_segment(y + r * args.y_stride, acc[r], columns_of(form, strip), first == 0);
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
