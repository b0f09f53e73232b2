// y = x W^T on packed quantized weights: exact integer dot products of a group, then one FP32 chain
// per output. Included like vector_math.inl.
//
// Two ways to the same numbers. Direct: codes go from the packed strip through registers into the
// dot products, again for each few rows. By tiles: a segment of a strip is unpacked once into
// scratch that stays in L1 and serves every block of rows.

/// A segment of kTileStrips strips, unpacked: what the tile loop reads.
struct UnpackedStrip {
  std::int32_t* words;        // [segment / 2 or 4][16] two or four inputs of 16 columns
  float* scales;              // [groups of the segment][2][16] scale, offset
  std::int32_t* sub_offsets;  // [segment / form.group][16], super-blocks with offsets only
};
struct SegmentRange {
  std::int64_t first;  // column of K
  std::int64_t last;
};

/// A hint: reading beyond the end of the weight is harmless.
LUNA_ISA_INLINE void prefetch(const std::byte* p) {
  __builtin_prefetch(p, 0, 3);
}

/// The strip next_strip_bytes on is fetched meanwhile: its turn comes after all rows had this one.
/// Integer sums are exact: 32 * 2047 * 255 < 2^24 for a group of 32 with 8-bit codes; a super-block
/// stays below 256 * 2047 * 1953 < 2^30 (4 bits) and 256 * 511 * 4096 < 2^30 (6 bits).
template <class Dots, class Codes>
void unpack_segment(const Codes& codes,
                    const PackedForm& form,
                    const std::byte* strip,
                    std::size_t next_strip_bytes,
                    SegmentRange range,
                    const UnpackedStrip& out) {
  const std::size_t block_bytes = std::size_t{64} * Codes::kLines;
  for (std::int64_t k = range.first; k < range.last; k += 32) {
    const std::byte* next =
        strip + next_strip_bytes + static_cast<std::size_t>(k / 32) * block_bytes;
    for (int line = 0; line < Codes::kLines; ++line) {
      prefetch(next + 64 * line);
    }
    unpack_block<Dots>(codes,
                       strip + static_cast<std::size_t>(k / 32) * block_bytes,
                       out.words + (k - range.first) / 32 * (16 * Dots::kWords));
  }
  const std::int64_t first_group = range.first / form.scale_group;
  const std::int64_t last_group = (range.last + form.scale_group - 1) / form.scale_group;
  for (std::int64_t g = first_group; g < last_group; ++g) {
    const std::byte* record =
        strip + form.codes_bytes + static_cast<std::size_t>(g) * form.record_bytes;
    const RecordScales r = load_scales(form, record);
    float* scales = out.scales + (g - first_group) * 32;
    store(scales, r.scale);
    store(scales + 16, r.offset);
    if (form.form.super_block != 0) {  // pairs only, see has_byte_codes()
      const std::byte* subs = record + plain_scale_bytes(form);
      const std::int64_t n_sub = form.scale_group / form.form.group;
      const std::int64_t k0 = g * form.scale_group - range.first;
      for (std::int64_t j = 0; j < n_sub; ++j) {
        const I sub = load_bytes(subs + 16 * j);
        const I both = add_words(and_words(sub, set_word(0xFFFF)), shift_left<16>(sub));
        std::int32_t* pairs = out.words + (k0 + j * form.form.group) * 8;
        for (std::int64_t i = 0; i < form.form.group / 2; ++i) {
          store_words(pairs + 16 * i, mul_halves(load_words(pairs + 16 * i), both));
        }
        if (form.has_offsets) {
          store_words(out.sub_offsets + (k0 / form.form.group + j) * 16,
                      load_bytes(subs + 16 * (n_sub + j)));
        }
      }
    }
  }
}

/// Rows of a tile and where their results go.
struct TileRows {
  const QuantizedRows* x;
  std::int64_t row;
  float* y;  // of the first row and column
  std::int64_t y_stride;
  int last_columns;  // columns of the tile's last strip that exist
};

/// Adds a segment's sums to y upward; the first segment starts from +0.
LUNA_ISA_INLINE void add_segment(float* y, F sum, int columns, bool is_first) {
  if (columns >= 16) {
    store(y, add(is_first ? set(0.0F) : load(y), sum));
  } else {
    store_n(y, add(is_first ? set(0.0F) : load_n(y, columns), sum), columns);
  }
}

/// sum over the sub-groups of a super-block: sub_offset * (sum of the row's codes there).
LUNA_ISA_INLINE I weigh_sums(const std::int32_t* sub_offsets,
                             const std::int32_t* sums16,
                             std::int64_t n_sub,
                             std::int64_t sixteens) {
  I total = set_word(0);
  for (std::int64_t j = 0; j < n_sub; ++j) {
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < sixteens; ++i) {
      sum += sums16[j * sixteens + i];
    }
    total = add_words(total, mul_words(load_words(sub_offsets + 16 * j), set_word(sum)));
  }
  return total;
}

template <int rows, int strips>
LUNA_ISA_INLINE void clear(F (&a)[rows][strips]) {
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < strips; ++c) {
      a[r][c] = set(0.0F);
    }
  }
}

/// What a form adds to its products. bias: bytes that are kByteBias too large, in the integer sum.
enum class OffsetKind { none, scaled_sum, sub_offsets, bias };

/// isum += dot products of a 32-input block: the loop that prefill spends its time in.
template <class Dots, int rows, int strips>
LUNA_ISA_INLINE void tile_block(const std::int32_t* const (&words)[strips],
                                const std::byte* const (&codes)[rows],
                                I (&isum)[rows][strips]) {
#pragma GCC unroll 16
  for (int i = 0; i < Dots::kWords; ++i) {
    I word[strips];
#pragma GCC unroll 16
    for (int c = 0; c < strips; ++c) {
      word[c] = load_words(words[c] + 16 * i);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const I a = set_word(load_word(codes[r] + 4 * i));
#pragma GCC unroll 16
      for (int c = 0; c < strips; ++c) {
        isum[r][c] = Dots::dot(isum[r][c], word[c], a);
      }
    }
  }
}

/// The integer sums before their first product. sums: of the rows' codes, where `bias` was added to
/// every weight; else null.
template <int bias, int rows, int strips>
LUNA_ISA_INLINE void start_sums(const std::int32_t* sums, I (&isum)[rows][strips]) {
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    const I start = set_word(bias == 0 ? 0 : -bias * sums[r]);
#pragma GCC unroll 16
    for (int c = 0; c < strips; ++c) {
      isum[r][c] = start;
    }
  }
}

/// The offsets' part of a super-block: sub_offset * (sum of codes there), summed in int32.
template <int rows, int strips>
LUNA_ISA_INLINE void add_sub_offsets(const PackedForm& form,
                                     const UnpackedStrip* unpacked,
                                     const TileRows& tile,
                                     std::int64_t k,
                                     std::int64_t k_first,
                                     F (&acc)[rows][strips]) {
  const std::int64_t sub = form.form.group;
  const std::int64_t g = k / form.scale_group;
  for (int c = 0; c < strips; ++c) {
    const F m = load(unpacked[c].scales + (k - k_first) / form.scale_group * 32 + 16);
    for (int r = 0; r < rows; ++r) {
      const I sums = weigh_sums(unpacked[c].sub_offsets + (k - k_first) / sub * 16,
                                tile.x->sums16 + (tile.row + r) * tile.x->sum_stride + k / 16,
                                form.scale_group / sub,
                                sub / 16);
      const F s = set(tile.x->scale[g * tile.x->group_stride + tile.row + r]);
      acc[r][c] = fma(to_floats(sums), mul(m, s), acc[r][c]);
    }
  }
}

/// A block of rows by a block of strips over one segment.
template <class Dots, int rows, int strips, OffsetKind offsets>
void tile_segment(const PackedForm& form,
                  const UnpackedStrip* unpacked,
                  SegmentRange range,
                  const TileRows& tile) {
  const QuantizedRows& x = *tile.x;
  const std::int64_t group = form.scale_group;
  const std::byte* codes[rows];
  for (int r = 0; r < rows; ++r) {
    codes[r] = Dots::row(x, tile.row + r, range.first);
  }
  const std::int32_t* words[strips];
  const float* scales[strips];
  for (int c = 0; c < strips; ++c) {
    words[c] = unpacked[c].words;
    scales[c] = unpacked[c].scales;
  }
  const std::int64_t first_group = range.first / group;
  const float* s = x.scale + first_group * x.group_stride + tile.row;
  const float* scaled_sum = x.scaled_sum + first_group * x.group_stride + tile.row;
  F acc[rows][strips];
  clear(acc);
  for (std::int64_t k = range.first; k < range.last; k += group) {
    I isum[rows][strips];
    constexpr int bias = offsets == OffsetKind::bias ? kByteBias : 0;
    const std::int32_t* sums = bias == 0 ? nullptr : x.sums + k / group * x.group_stride + tile.row;
    start_sums<bias>(sums, isum);
    const std::int64_t k_end = std::min(k + group, range.last);
    for (std::int64_t i = k; i < k_end; i += 32) {
      tile_block<Dots>(words, codes, isum);
      for (int r = 0; r < rows; ++r) {
        codes[r] += 4 * Dots::kWords;
      }
      for (int c = 0; c < strips; ++c) {
        words[c] += 16 * Dots::kWords;
      }
    }
#pragma GCC unroll 16
    for (int c = 0; c < strips; ++c) {
      const F d = load(scales[c]);
      const F m = load(scales[c] + 16);
      scales[c] += 32;
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        acc[r][c] = fma(to_floats(isum[r][c]), mul(d, set(s[r])), acc[r][c]);
        if constexpr (offsets == OffsetKind::scaled_sum) {
          acc[r][c] = fma(m, set(scaled_sum[r]), acc[r][c]);
        }
      }
    }
    if constexpr (offsets == OffsetKind::sub_offsets) {
      add_sub_offsets(form, unpacked, tile, k, range.first, acc);
    }
    s += x.group_stride;
    scaled_sum += x.group_stride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < strips; ++c) {
      add_segment(tile.y + r * tile.y_stride + 16 * c,
                  acc[r][c],
                  c + 1 == strips ? tile.last_columns : 16,
                  range.first == 0);
    }
  }
}

using TileFunction = void (*)(const PackedForm&,
                              const UnpackedStrip*,
                              SegmentRange,
                              const TileRows&);

/// The tile functions by number of rows, 1..kTileRows.
template <class Dots, int strips, OffsetKind offsets, int rows = kTileRows>
LUNA_ISA_INLINE TileFunction tile_function(std::int64_t n_rows) {
  if constexpr (rows > 1) {
    if (n_rows < rows) {
      return tile_function<Dots, strips, offsets, rows - 1>(n_rows);
    }
  }
  return tile_segment<Dots, rows, strips, offsets>;
}
template <class Dots, class Codes, int strips>
LUNA_ISA_INLINE TileFunction tile_function(const PackedForm& form, std::int64_t n_rows) {
  if constexpr (Dots::template kBias<Codes> != 0) {
    return tile_function<Dots, strips, OffsetKind::bias>(n_rows);
  } else {
    if (!has_offset_term(form)) {
      return tile_function<Dots, strips, OffsetKind::none>(n_rows);
    }
    if constexpr (Dots::kWords == PairDots::kWords) {
      if (form.form.super_block != 0) {
        return tile_function<Dots, strips, OffsetKind::sub_offsets>(n_rows);
      }
    }
    return tile_function<Dots, strips, OffsetKind::scaled_sum>(n_rows);
  }
}

LUNA_ISA_INLINE int columns_of(const PackedForm& form, std::int64_t strip) {
  const std::int64_t left = form.form.n_rows - 16 * strip;
  return static_cast<int>(left < 16 ? left : 16);
}

/// Lays out the unpacked form of kTileStrips strips in scratch.
LUNA_ISA_INLINE void place_unpacked(const PackedForm& form, void* scratch, UnpackedStrip* out) {
  auto* p = static_cast<std::byte*>(scratch);
  const auto segment = static_cast<std::size_t>(form.form.segment);
  for (int c = 0; c < kTileStrips; ++c) {
    out[c].words = reinterpret_cast<std::int32_t*>(p);
    p += segment * 32;
    out[c].scales = reinterpret_cast<float*>(p);
    p += (segment / static_cast<std::size_t>(form.scale_group) + 1) * 128;
    out[c].sub_offsets = reinterpret_cast<std::int32_t*>(p);
    p += segment / 16 * 64;
  }
}

/// Rows of the next tile: tiles of nearly equal height, because short ones wait for their own sums.
LUNA_ISA_INLINE std::int64_t next_tile_rows(std::int64_t rows_left, int rows_max) {
  const std::int64_t n_tiles = (rows_left + rows_max - 1) / rows_max;
  return (rows_left + n_tiles - 1) / n_tiles;
}

template <class Dots, class Codes, int strips>
void linear_tiles(const Codes& codes, const LinearArgs& args, std::int64_t strip) {
  const PackedForm& form = *args.form;
  UnpackedStrip unpacked[kTileStrips];
  place_unpacked(form, args.scratch, unpacked);
  for (std::int64_t k = 0; k < form.form.n_cols; k += form.form.segment) {
    const std::int64_t end = k + form.form.segment;
    const SegmentRange range{k, end < form.form.n_cols ? end : form.form.n_cols};
    for (int c = 0; c < strips; ++c) {
      unpack_segment<Dots>(codes,
                           form,
                           args.packed + static_cast<std::size_t>(strip + c) * form.strip_bytes,
                           strips * form.strip_bytes,
                           range,
                           unpacked[c]);
    }
    std::int64_t n_rows = 0;
    for (std::int64_t r = 0; r < args.n_rows; r += n_rows) {
      n_rows = next_tile_rows(args.n_rows - r, kTileRows);
      const std::int64_t row = args.first_row + r;
      const TileRows tile{args.quantized,
                          row,
                          args.y + row * args.y_stride + 16 * strip,
                          args.y_stride,
                          columns_of(form, strip + strips - 1)};
      tile_function<Dots, Codes, strips>(form, n_rows)(form, unpacked, range, tile);
    }
  }
}

template <class Dots, class Codes>
void linear_many_rows(const Codes& codes, const LinearArgs& args) {
  std::int64_t strip = args.first_strip;
  const std::int64_t end = args.first_strip + args.n_strips;
  for (; strip + kTileStrips <= end; strip += kTileStrips) {
    linear_tiles<Dots, Codes, kTileStrips>(codes, args, strip);
  }
  for (; strip < end; ++strip) {
    linear_tiles<Dots, Codes, 1>(codes, args, strip);
  }
}
