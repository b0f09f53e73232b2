// Dense weights by the chains of BF16 products. Included like vector_math.inl, after
// linear_direct.inl.

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
      const ChainRows a{chain_row(x, row) + k, chain_stride(x), 0};
      chain_step<1, rows, kDenseTerms>(
          acc, a, Bf16Lines{lines + static_cast<std::size_t>(k) * 32, 64, 0, nullptr});
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
