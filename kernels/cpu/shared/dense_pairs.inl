// Dense weights by chain_pairs.inl. Included after kernels.inl by sets that have dot_bf16.
//
// Weights become pairs in registers (few rows) or once a segment in scratch that stays in L1.

// 24 registers of sums, four of weights, and the broadcasts.
inline constexpr int kPairRows = 4;
inline constexpr int kPairStrips = 2;

/// Straight from packed strips; each line asks for the same line of the strips that come next.
template <int strips>
struct PackedPairs {
  const std::byte* base;  // of the segment in the first strip
  std::size_t strip_bytes;
  [[nodiscard]] LUNA_MEMBER_INLINE QuadPairs load(int strip, std::int64_t k) const {
    const std::byte* p = base + static_cast<std::size_t>(strip) * strip_bytes + k * 32;
    prefetch(p + strips * strip_bytes);
    prefetch(p + strips * strip_bytes + 64);
    return make_pairs(load_words(p), load_words(p + 64));
  }
};

/// From scratch: a strip's segment as [segment / 4][even, odd][16 columns].
struct UnpackedPairs {
  const std::byte* base;
  std::size_t strip_bytes;
  [[nodiscard]] LUNA_MEMBER_INLINE QuadPairs load(int strip, std::int64_t k) const {
    const std::byte* p = base + static_cast<std::size_t>(strip) * strip_bytes + k * 32;
    return {load_words(p), load_words(p + 64)};
  }
};

/// Rows of a tile, the segment, and where the results go.
struct PairTile {
  const DenseRows* x;
  std::int64_t row;
  SegmentRange range;
  float* y;  // of the first row and column
  std::int64_t y_stride;
  int last_columns;  // columns of the tile's last strip that exist
};

template <int rows, int strips, class Lines>
void pair_tile(const Lines& lines, const PairTile& tile) {
  const std::byte* words[rows];  // [k_padded / 4][even, odd]
  for (int r = 0; r < rows; ++r) {
    words[r] =
        reinterpret_cast<const std::byte*>(chain_row(*tile.x, tile.row + r) + tile.range.first);
  }
  F acc[rows][strips];
  clear(acc);
  for (std::int64_t k = 0; k < tile.range.last - tile.range.first; k += kChainStep) {
    F even[rows][strips];
    F odd[rows][strips];
    clear(even);
    clear(odd);
#pragma GCC unroll 2
    for (int i = 0; i < kChainStep; i += 4) {
      QuadPairs w[strips];
#pragma GCC unroll 16
      for (int c = 0; c < strips; ++c) {
        w[c] = lines.load(c, k + i);
      }
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const I a_even = set_word(load_word(words[r] + 2 * (k + i)));
        const I a_odd = set_word(load_word(words[r] + 2 * (k + i) + 4));
#pragma GCC unroll 16
        for (int c = 0; c < strips; ++c) {
          even[r][c] = dot_bf16(even[r][c], a_even, w[c].even);
          odd[r][c] = dot_bf16(odd[r][c], a_odd, w[c].odd);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < strips; ++c) {
        acc[r][c] = add(acc[r][c], add(even[r][c], odd[r][c]));
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < strips; ++c) {
      add_segment(tile.y + r * tile.y_stride + 16 * c,
                  acc[r][c],
                  c + 1 == strips ? tile.last_columns : 16,
                  tile.range.first == 0);
    }
  }
}

/// pair_tile() of n_rows rows, 1..kPairRows.
template <int strips, class Lines, int rows = kPairRows>
LUNA_ISA_INLINE void pair_rows(const Lines& lines, const PairTile& tile, std::int64_t n_rows) {
  if constexpr (rows > 1) {
    if (n_rows < rows) {
      pair_rows<strips, Lines, rows - 1>(lines, tile, n_rows);
      return;
    }
  }
  pair_tile<rows, strips>(lines, tile);
}

template <int strips>
void unpack_pairs(const PackedPairs<strips>& packed, SegmentRange range, std::byte* out) {
  const std::int64_t length = range.last - range.first;
  for (int c = 0; c < strips; ++c) {
    for (std::int64_t k = 0; k < length; k += 4) {
      const QuadPairs lines = packed.load(c, k);
      std::byte* p = out + (c * length + k) * 32;
      store_words(p, lines.even);
      store_words(p + 64, lines.odd);
    }
  }
}

/// All rows by `strips` strips.
template <int strips>
void pair_strips(const LinearArgs& args, std::int64_t strip) {
  const PackedForm& form = *args.form;
  const std::byte* base = args.packed + static_cast<std::size_t>(strip) * form.strip_bytes;
  auto* scratch = static_cast<std::byte*>(args.scratch);
  for (std::int64_t first = 0; first < form.k_padded; first += form.form.segment) {
    const SegmentRange range{first, std::min(first + form.form.segment, form.k_padded)};
    const PackedPairs<strips> packed{base + first * 32, form.strip_bytes};
    PairTile tile{args.dense,
                  args.first_row,
                  range,
                  args.y + args.first_row * args.y_stride + 16 * strip,
                  args.y_stride,
                  columns_of(form, strip + strips - 1)};
    if (args.n_rows <= kPairRows) {
      pair_rows<strips>(packed, tile, args.n_rows);
      continue;
    }
    unpack_pairs(packed, range, scratch);
    const UnpackedPairs lines{scratch, static_cast<std::size_t>(range.last - range.first) * 32};
    std::int64_t n_rows = 0;
    for (std::int64_t r = 0; r < args.n_rows; r += n_rows) {
      n_rows = next_tile_rows(args.n_rows - r, kPairRows);
      tile.row = args.first_row + r;
      tile.y = args.y + tile.row * args.y_stride + 16 * strip;
      pair_rows<strips>(lines, tile, n_rows);
    }
  }
}

void linear_with_pairs(const LinearArgs& args) {
  if (!args.form->is_dense() || args.n_rows <= 0) {
    linear(args);
    return;
  }
  std::int64_t strip = args.first_strip;
  const std::int64_t end = args.first_strip + args.n_strips;
  for (; strip + kPairStrips <= end; strip += kPairStrips) {
    pair_strips<kPairStrips>(args, strip);
  }
  for (; strip < end; ++strip) {
    pair_strips<1>(args, strip);
  }
}
