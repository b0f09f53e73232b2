// Few rows: codes go through registers, nothing is unpacked to memory; the weights' bytes are the
// limit. Strips are shorter than the hardware prefetcher's warm-up, so each line asks for the same
// line of the strips that come next. Included like vector_math.inl, after linear.inl.

/// A pass of up to so many rows takes kShortStrips strips: fewer sums would wait for themselves.
inline constexpr int kShortRows = 4;
/// Most rows in all passes: above them unpacking once is cheaper.
template <class Dots>
inline constexpr std::int64_t kDirectRowsMax =
    Dots::kWords == PairDots::kWords ? kDirectPairRowsMax : kDirectQuadRowsMax;

/// What is known of a weight at compile time.
template <class Dots_, class Codes_, bool has_offset_, bool one_block_>
struct DirectKind {
  using Dots = Dots_;
  using Codes = Codes_;
  static constexpr bool has_offset = has_offset_;
  /// A group is one block, straight code from zero to its end: carried around loops beside the FP32
  /// sums, not all integer sums would stay in registers (GCC 12).
  static constexpr bool one_block = one_block_;
};
/// Straight code wants registers for both kinds of sums.
inline constexpr bool kStraightBlocks = kTileRows >= 6;

/// Rows of a pass over strips when the codes of all passes come from L2.
inline constexpr int kManyRowsPass = kTileRows < 6 ? 4 : 6;
/// Most rows of a pass. FP32 sums that straight code has no register for wait in L1 between groups,
/// which costs less than one more pass.
template <class Kind>
inline constexpr int kPassRows = Kind::one_block ? 8 : kManyRowsPass;
template <class Kind>
LUNA_ISA_INLINE int pass_rows(std::int64_t n_rows) {
  return n_rows > 64 ? kManyRowsPass : kPassRows<Kind>;
}

/// Where a pass stands: the next block and scale record of its first strip, and what its first row
/// has for them.
struct DirectPlace {
  const std::byte* block;
  const std::byte* record;
  std::size_t strip_bytes;
  const std::byte* inputs;
  std::int64_t row_bytes;
  const float* scale;
  const float* scaled_sum;
  const std::int32_t* sums;  // with a bias
};

/// isum += dot products of a line of a block.
template <class Kind, int rows, int strips>
LUNA_ISA_INLINE void direct_line(const typename Kind::Codes& codes,
                                 const DirectPlace& at,
                                 int j,
                                 I (&isum)[rows][strips]) {
  using Dots = typename Kind::Dots;
  using Codes = typename Kind::Codes;
  I line[strips];
#pragma GCC unroll 16
  for (int c = 0; c < strips; ++c) {
    const std::byte* p = at.block + static_cast<std::size_t>(c) * at.strip_bytes + 64 * j;
    line[c] = load_words(p);
    prefetch(p + strips * at.strip_bytes);
  }
  unroll<Dots::template kPerLine<Codes>>([&](auto p) LUNA_LAMBDA_INLINE {
    I word[strips];
#pragma GCC unroll 16
    for (int c = 0; c < strips; ++c) {
      word[c] = Dots::template word<p>(codes, line[c]);
    }
    const std::byte* inputs = at.inputs + 4 * Dots::template index<Codes>(j, p);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const I own = set_word(load_word(inputs + r * at.row_bytes));
#pragma GCC unroll 16
      for (int c = 0; c < strips; ++c) {
        isum[r][c] = Dots::dot(isum[r][c], word[c], own);
      }
    }
  });
}

/// isum += dot products of a 32-input block; moves on to the next one.
template <class Kind, int rows, int strips>
LUNA_ISA_INLINE void direct_block(const typename Kind::Codes& codes,
                                  DirectPlace& at,
                                  I (&isum)[rows][strips]) {
  constexpr int kLines = Kind::Codes::kLines;
  // With little work a line memory is the limit, and many lines asked for at once are late.
  constexpr int kLineDots = rows * Kind::Dots::template kPerLine<typename Kind::Codes>;
  if constexpr (Kind::one_block && kLineDots >= 4) {
    unroll<kLines>([&](auto j) LUNA_LAMBDA_INLINE { direct_line<Kind>(codes, at, j, isum); });
  } else {
#pragma GCC unroll 2
    for (int j = 0; j < kLines; ++j) {
      direct_line<Kind>(codes, at, j, isum);
    }
  }
  at.block += 64 * kLines;
  at.inputs += 4 * Kind::Dots::kWords;
}

/// The FP32 chain's step of a group.
template <class Kind, int rows, int strips>
LUNA_ISA_INLINE void direct_group(const PackedForm& form,
                                  const DirectPlace& at,
                                  const I (&isum)[rows][strips],
                                  F (&acc)[rows][strips]) {
  F scale[strips];
  F offset[strips];
#pragma GCC unroll 16
  for (int c = 0; c < strips; ++c) {
    const std::byte* own = at.record + static_cast<std::size_t>(c) * at.strip_bytes;
    const RecordScales w = load_scales(form, own);
    prefetch(own + strips * at.strip_bytes);
    scale[c] = w.scale;
    offset[c] = w.offset;
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < strips; ++c) {
      acc[r][c] = fma(to_floats(isum[r][c]), mul(scale[c], set(at.scale[r])), acc[r][c]);
      if constexpr (Kind::has_offset) {
        acc[r][c] = fma(offset[c], set(at.scaled_sum[r]), acc[r][c]);
      }
    }
  }
}

template <class Kind, int rows, int strips>
void direct_strips(const typename Kind::Codes& codes,
                   const LinearArgs& args,
                   std::int64_t row,
                   std::int64_t strip) {
  using Dots = typename Kind::Dots;
  constexpr int kBias = Dots::template kBias<typename Kind::Codes>;
  const PackedForm& form = *args.form;
  const QuantizedRows& x = *args.quantized;
  const std::byte* base = args.packed + static_cast<std::size_t>(strip) * form.strip_bytes;
  DirectPlace at{base,
                 base + form.codes_bytes,
                 form.strip_bytes,
                 Dots::row(x, row, 0),
                 Dots::row_bytes(x),
                 x.scale + row,
                 x.scaled_sum + row,
                 kBias == 0 ? nullptr : x.sums + row};
  float* y = args.y + row * args.y_stride + 16 * strip;
  const int last_columns = columns_of(form, strip + strips - 1);
  const std::int64_t group = Kind::one_block ? 32 : form.scale_group;
  for (std::int64_t first = 0; first < form.form.n_cols; first += form.form.segment) {
    const std::int64_t last = std::min(first + form.form.segment, form.form.n_cols);
    F acc[rows][strips];
    clear(acc);
    for (std::int64_t k = first; k < last; k += group) {
      I isum[rows][strips];
      start_sums<kBias>(at.sums, isum);
      if constexpr (Kind::one_block) {
        direct_block<Kind>(codes, at, isum);
      } else {
        for (std::int64_t i = k; i < k + group && i < last; i += 32) {
          direct_block<Kind>(codes, at, isum);
        }
      }
      direct_group<Kind>(form, at, isum, acc);
      at.record += form.record_bytes;
      at.scale += x.group_stride;
      at.scaled_sum += x.group_stride;
      if constexpr (kBias != 0) {
        at.sums += x.group_stride;
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < strips; ++c) {
        add_segment(y + r * args.y_stride + 16 * c,
                    acc[r][c],
                    c + 1 == strips ? last_columns : 16,
                    first == 0);
      }
    }
  }
}

template <class Codes>
using DirectFunction = void (*)(const Codes&, const LinearArgs&, std::int64_t, std::int64_t);

/// direct_strips() by number of rows, 1..kPassRows.
template <class Kind,
          int strips,
          int rows = (strips > kDirectStrips ? kShortRows : kPassRows<Kind>)>
LUNA_ISA_INLINE DirectFunction<typename Kind::Codes> direct_function(std::int64_t n_rows) {
  if constexpr (rows > 1) {
    if (n_rows < rows) {
      return direct_function<Kind, strips, rows - 1>(n_rows);
    }
  }
  return direct_strips<Kind, rows, strips>;
}

/// All rows by `strips` strips, whose bytes stay in L1 from the first rows on.
template <class Kind, int strips>
LUNA_ISA_INLINE void direct_blocks(const typename Kind::Codes& codes,
                                   const LinearArgs& args,
                                   std::int64_t strip) {
  const int rows_max = pass_rows<Kind>(args.n_rows);
  std::int64_t n_rows = 0;
  for (std::int64_t r = 0; r < args.n_rows; r += n_rows) {
    n_rows = next_tile_rows(args.n_rows - r, rows_max);
    direct_function<Kind, strips>(n_rows)(codes, args, args.first_row + r, strip);
  }
}

template <class Kind>
void linear_direct(const typename Kind::Codes& codes, const LinearArgs& args) {
  const std::int64_t end = args.first_strip + args.n_strips;
  std::int64_t strip = args.first_strip;
  if constexpr (kShortStrips > kDirectStrips && Kind::Dots::kWords == PairDots::kWords) {
    // Few rows of 8-bit codes wait for memory, and that likes fewer streams.
    constexpr std::int64_t kRowsMin = Kind::Codes::kLines > 4 ? kShortRows : 2;
    if (args.n_rows >= kRowsMin &&
        next_tile_rows(args.n_rows, pass_rows<Kind>(args.n_rows)) <= kShortRows) {
      for (; strip + kShortStrips <= end; strip += kShortStrips) {
        direct_blocks<Kind, kShortStrips>(codes, args, strip);
      }
    }
  }
  for (; strip + kDirectStrips <= end; strip += kDirectStrips) {
    direct_blocks<Kind, kDirectStrips>(codes, args, strip);
  }
  for (; strip < end; ++strip) {
    direct_blocks<Kind, 1>(codes, args, strip);
  }
}

template <class Dots, class Codes, bool has_offset>
LUNA_ISA_INLINE void linear_direct_of(const Codes& codes, const LinearArgs& args) {
  if constexpr (kStraightBlocks) {
    if (args.form->scale_group == 32) {
      linear_direct<DirectKind<Dots, Codes, has_offset, true>>(codes, args);
      return;
    }
  }
  linear_direct<DirectKind<Dots, Codes, has_offset, false>>(codes, args);
}

template <class Dots, class Codes>
void linear_quantized(const Codes& codes, const LinearArgs& args) {
  const PackedForm& form = *args.form;
  if (args.n_rows > kDirectRowsMax<Dots> || form.form.super_block != 0) {
    linear_many_rows<Dots>(codes, args);
  } else if (has_offset_term(form)) {
    linear_direct_of<Dots, Codes, true>(codes, args);
  } else {
    linear_direct_of<Dots, Codes, false>(codes, args);
  }
}

void linear_dense(const LinearArgs& args);  // linear_dense.inl

void linear(const LinearArgs& args) {
  if (args.n_rows <= 0 || args.n_strips <= 0) {
    return;
  }
  const PackedForm& form = *args.form;
  if (form.is_dense()) {
    linear_dense(args);
    return;
  }
  const bool is_short = has_byte_codes(form.activation_bits, form.activation_group);
  with_codes(form, [&](const auto& codes) {
    using Codes = std::decay_t<decltype(codes)>;
    if constexpr (Codes::kQuads != 0) {
      if (is_short) {
        linear_quantized<QuadDots>(codes, args);
        return;
      }
    }
    linear_quantized<PairDots>(codes, args);
  });
}

/// One row of a packed weight as FP32; row n of a strip is lane n.
template <class Codes>
void unpack_quantized_row(
    const Codes& codes, const PackedForm& form, const std::byte* strip, int lane, float* y) {
  std::int32_t pairs[16 * 16];
  for (std::int64_t k = 0; k < form.form.n_cols; k += 32) {
    unpack_block<PairDots>(
        codes, strip + static_cast<std::size_t>(k / 32) * (64U * Codes::kLines), pairs);
    const std::byte* record = strip + form.codes_bytes +
                              static_cast<std::size_t>(k / form.scale_group) * form.record_bytes;
    const RecordScales r = load_scales(form, record);
    float scales[16];
    float offsets[16];
    store(scales, r.scale);
    store(offsets, r.offset);
    const auto* subs = reinterpret_cast<const std::int8_t*>(record + plain_scale_bytes(form));
    const std::int64_t n_sub = form.form.super_block == 0 ? 0 : form.scale_group / form.form.group;
    for (int i = 0; i < 32; ++i) {
      const auto word = static_cast<std::uint32_t>(pairs[16 * (i / 2) + lane]);
      int q = static_cast<std::int16_t>(word >> (16 * (i % 2)));
      float offset = offsets[lane];
      if (n_sub != 0) {
        const std::int64_t j = (k + i) % form.scale_group / form.form.group;
        q *= subs[16 * j + lane];
        offset =
            form.has_offsets ? offset * static_cast<float>(subs[16 * (n_sub + j) + lane]) : 0.0F;
      }
      y[k + i] = std::fma(scales[lane], static_cast<float>(q), offset);
    }
  }
}

void unpack_row(const PackedForm& form, const std::byte* packed, std::int64_t row, float* y) {
  const std::byte* strip = packed + static_cast<std::size_t>(row / 16) * form.strip_bytes;
  const int lane = static_cast<int>(row % 16);
  if (form.is_dense()) {
    for (std::int64_t k = 0; k < form.form.n_cols; ++k) {
      std::uint16_t half;
      std::memcpy(&half, strip + (k / 2 * 16 + lane) * 4 + k % 2 * 2, sizeof half);
      const std::uint32_t word = static_cast<std::uint32_t>(half) << 16;
      std::memcpy(y + k, &word, sizeof word);
    }
    return;
  }
  with_codes(form, [&](const auto& codes) { unpack_quantized_row(codes, form, strip, lane, y); });
}
