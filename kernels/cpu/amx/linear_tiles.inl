// Linear layers by tiles, for rows enough to fill them. Included in the namespace of a set's lanes,
// after linear.inl; `Tiles` is one of tiles.hpp.
//
// A panel of rows and a segment of K at a time: the rows become left sides of tiles once, then each
// strip's segment becomes right sides and meets all of them while both lie in L1.
//
// Integer classes. A left row is 32 inputs: 8-bit activations, or the high bytes of wider ones
// (a = high * 2^shift + low, high signed) and then the low parts. The right side repeats the codes:
// times 2^shift, then as they are, so that one product yields the sum; codes that would leave a
// byte that way take two products, one for each part. Sums are exact, so none of this shows in a
// bit. BF16: the product's own order is the contract's, and packed strips are right sides.

inline constexpr int kPanelRows = 32;
/// Below this a tile is mostly empty and the vector kernels are faster.
inline constexpr std::int64_t kTileKernelRowsMin = 9;

/// How codes and activations of a form meet in tiles.
struct TileForm {
  int shift = 0;             // bits of the low part of an activation; 0: bytes
  bool is_joined = false;    // codes * 2^shift fit a byte
  std::int64_t left_bytes;   // of a row and 32 inputs
  std::int64_t right_bytes;  // of 32 inputs and 16 columns
};
template <class Codes>
TileForm tile_form(const PackedForm& form) {
  TileForm t;
  if (has_byte_codes(form.activation_bits, form.activation_group)) {
    t.left_bytes = 32;
    t.right_bytes = 8 * 64;
    return t;
  }
  t.shift = form.activation_bits - 8;
  t.is_joined = Codes::kQuadBias == 0 && form.form.bits + t.shift <= 8;
  t.left_bytes = 64;
  t.right_bytes = (t.is_joined ? 16 : 24) * 64;
  return t;
}

/// Where a call keeps its operands, in the thread's scratch.
struct TileScratch {
  std::byte* left;      // [row block][32 inputs][16 rows][left_bytes]
  std::byte* right;     // [32 inputs][right_bytes]
  std::int32_t* sums;   // [group][kPanelRows]  sums of activations
  std::int32_t* store;  // [4][16][16]
};
inline TileScratch place_tile_scratch(const PackedForm& form, void* scratch) {
  const auto segment = static_cast<std::size_t>(form.form.segment);
  auto* p = static_cast<std::byte*>(scratch);
  TileScratch s;
  s.store = reinterpret_cast<std::int32_t*>(p);
  p += 4 * 1024;
  s.left = p;
  p += kPanelRows * 2 * segment;
  s.right = p;
  p += 48 * segment;
  s.sums = reinterpret_cast<std::int32_t*>(p);
  return s;
}

/// Rows [row, row + n_rows) of a call, n_rows <= kPanelRows, and a segment.
struct TilePanel {
  std::int64_t row;
  std::int64_t n_rows;
  SegmentRange range;
};

/// 16 inputs of 16-bit codes as bytes: high parts at p, low parts at p + 32. Returns the codes.
template <int shift>
LUNA_ISA_INLINE I split_codes(const std::int16_t* codes, std::byte* p) {
  const I sign = set_word(0x8000);
  const I a = sub_words(xor_words(load_halves(codes), sign), sign);
  store_quads(p, shift_right<shift>(a));
  store_quads(p + 32, and_words(a, set_word((1 << shift) - 1)));
  return a;
}
LUNA_ISA_INLINE I split_codes(int shift, const std::int16_t* codes, std::byte* p) {
  return shift == 4   ? split_codes<4>(codes, p)
         : shift == 3 ? split_codes<3>(codes, p)
                      : split_codes<2>(codes, p);
}

/// Left sides of a panel. Rows that do not exist are zero.
inline void fill_left(const QuantizedRows& x,
                      const TileForm& form,
                      const TilePanel& panel,
                      std::int64_t group,
                      const TileScratch& s) {
  const std::int64_t n_steps = (panel.range.last - panel.range.first) / 32;
  for (std::int64_t r = 0; r < kPanelRows; ++r) {
    std::byte* left = s.left + (r / 16 * n_steps * 16 + r % 16) * form.left_bytes;
    const bool exists = r < panel.n_rows;
    for (std::int64_t i = 0; i < n_steps; ++i, left += 16 * form.left_bytes) {
      const std::int64_t k = panel.range.first + 32 * i;
      std::int32_t* sum = s.sums + 32 * i / group * kPanelRows + r;
      if (32 * i % group == 0) {
        *sum = 0;
      }
      if (!exists) {
        std::memset(left, 0, static_cast<std::size_t>(form.left_bytes));
      } else if (form.shift == 0) {
        std::memcpy(left, x.bytes + (panel.row + r) * x.code_stride + k, 32);
        *sum = x.sums[k / group * x.group_stride + panel.row + r];
      } else {
        const std::int16_t* codes = x.codes + (panel.row + r) * x.code_stride + k;
        const I first = split_codes(form.shift, codes, left);
        const I second = split_codes(form.shift, codes + 16, left + 16);
        *sum += sum_of_words(add_words(first, second));
      }
    }
  }
}

/// Right sides of a strip's segment: [8 lines of codes] for bytes, [8 lines times 2^shift][8 lines]
/// where both fit a byte, else [8 lines][8 of zeros][8 lines]: its first and last 16 lines are the
/// right sides of the high and of the low parts.
template <class Codes>
void fill_right(const Codes& codes,
                const TileForm& form,
                const std::byte* blocks,
                std::int64_t n_steps,
                std::byte* right) {
  for (std::int64_t i = 0; i < n_steps; ++i) {
    std::int32_t words[8 * 16];
    unpack_block<QuadDots>(codes, blocks, words);
    blocks += 64 * Codes::kLines;
    for (int line = 0; line < 8; ++line) {
      const I word = load_words(words + 16 * line);
      std::byte* p = right + 64 * line;
      if (form.shift == 0) {
        store_words(p, word);
      } else if (form.is_joined) {
        store_words(p,
                    form.shift == 4   ? shift_left<4>(word)
                    : form.shift == 3 ? shift_left<3>(word)
                                      : shift_left<2>(word));
        store_words(p + 8 * 64, word);
      } else {
        store_words(p, word);
        store_words(p + 8 * 64, set_word(0));
        store_words(p + 16 * 64, word);
      }
    }
    right += form.right_bytes;
  }
}

/// The integer sums of a group into store[slot] (and, in two parts, store[slot + 2]).
template <int slot, class Tiles>
void multiply_group(Tiles& tiles,
                    const TileForm& form,
                    const std::byte* left,
                    const std::byte* right,
                    std::int64_t n_steps,
                    std::int32_t* store) {
  tiles.template zero<slot>();
  if (form.shift != 0 && !form.is_joined) {
    tiles.template zero<slot + 2>();
  }
  for (std::int64_t i = 0; i < n_steps; ++i) {
    tiles.template load<4>(left, static_cast<std::size_t>(form.left_bytes));
    tiles.template load<6>(right, 64);
    tiles.template dot_bytes<slot, 4, 6>();
    if (form.shift != 0 && !form.is_joined) {
      tiles.template load<7>(right + 8 * 64, 64);
      tiles.template dot_bytes<slot + 2, 4, 7>();
    }
    left += 16 * form.left_bytes;
    right += form.right_bytes;
  }
  tiles.template store<slot>(store + slot * 256, 64);
  if (form.shift != 0 && !form.is_joined) {
    tiles.template store<slot + 2>(store + (slot + 2) * 256, 64);
  }
}

/// One row block by one strip over a segment.
struct TileBlock {
  const PackedForm* form;
  const QuantizedRows* x;
  const std::int32_t* sums;  // of the row block
  std::int64_t row;
  int n_rows;
  SegmentRange range;
  const std::byte* record;  // of the segment's first group
  int bias;                 // of the codes
  float* y;
  std::int64_t y_stride;
  int columns;
};

/// The FP32 chain of one group. All 16 rows, so that their sums stay in registers, or fewer.
template <bool is_full>
LUNA_ISA_INLINE void add_group(const TileBlock& b,
                               const TileForm& form,
                               std::int64_t g,
                               const std::int32_t* store,
                               F (&acc)[16]) {
  const RecordScales w =
      load_scales(*b.form, b.record + static_cast<std::size_t>(g) * b.form->record_bytes);
  const std::int64_t at = (b.range.first / b.form->scale_group + g) * b.x->group_stride + b.row;
  const bool has_offset = has_offset_term(*b.form);
  const int n_rows = is_full ? 16 : b.n_rows;
#pragma GCC unroll 16
  for (int r = 0; r < n_rows; ++r) {
    I sum = load_words(store + 16 * r);
    if (form.shift != 0 && !form.is_joined) {
      sum = add_words(mul_words(sum, set_word(1 << form.shift)), load_words(store + 512 + 16 * r));
    }
    if (b.bias != 0) {
      sum = add_words(sum, set_word(-b.bias * b.sums[g * kPanelRows + r]));
    }
    acc[r] = fma(to_floats(sum), mul(w.scale, set(b.x->scale[at + r])), acc[r]);
    if (has_offset) {
      acc[r] = fma(w.offset, set(b.x->scaled_sum[at + r]), acc[r]);
    }
  }
}

/// The sums of group g are stored while the chain takes group g - 1.
template <bool is_full, class Tiles>
void block_by_tiles(Tiles& tiles,
                    const TileBlock& b,
                    const TileForm& form,
                    const std::byte* left,
                    const TileScratch& s) {
  const std::int64_t length = b.range.last - b.range.first;
  const std::int64_t group = b.form->scale_group;
  const std::int64_t n_groups = (length + group - 1) / group;
  F acc[16];
  for (F& one : acc) {
    one = set(0.0F);
  }
  for (std::int64_t g = 0; g <= n_groups; ++g) {
    if (g < n_groups) {
      const std::int64_t first = g * group / 32;
      const std::int64_t n_steps = std::min(group, length - g * group) / 32;
      const std::byte* own_left = left + first * 16 * form.left_bytes;
      const std::byte* own_right = s.right + first * form.right_bytes;
      if (g % 2 == 0) {
        multiply_group<0>(tiles, form, own_left, own_right, n_steps, s.store);
      } else {
        multiply_group<1>(tiles, form, own_left, own_right, n_steps, s.store);
      }
    }
    if (g > 0) {
      add_group<is_full>(b, form, g - 1, s.store + (g - 1) % 2 * 256, acc);
    }
  }
  for (int r = 0; r < b.n_rows; ++r) {
    add_segment(b.y + r * b.y_stride, acc[r], b.columns, b.range.first == 0);
  }
}

/// A panel's rows and segment by all strips of the call.
template <class Tiles, class Codes>
void tile_panel(Tiles& tiles,
                const Codes& codes,
                const LinearArgs& args,
                const TilePanel& panel,
                const TileScratch& s) {
  const PackedForm& form = *args.form;
  const TileForm tile = tile_form<Codes>(form);
  const std::int64_t n_steps = (panel.range.last - panel.range.first) / 32;
  fill_left(*args.quantized, tile, panel, form.scale_group, s);
  for (std::int64_t c = 0; c < args.n_strips; ++c) {
    const std::int64_t strip = args.first_strip + c;
    const std::byte* base = args.packed + static_cast<std::size_t>(strip) * form.strip_bytes;
    fill_right(codes, tile, base + panel.range.first / 32 * (64 * Codes::kLines), n_steps, s.right);
    const std::int64_t first_group = panel.range.first / form.scale_group;
    for (std::int64_t r = 0; r < panel.n_rows; r += 16) {
      const std::int64_t row = panel.row + r;
      const TileBlock block{
          .form = &form,
          .x = args.quantized,
          .sums = s.sums + r,
          .row = row,
          .n_rows = static_cast<int>(std::min<std::int64_t>(16, panel.n_rows - r)),
          .range = panel.range,
          .record =
              base + form.codes_bytes + static_cast<std::size_t>(first_group) * form.record_bytes,
          .bias = Codes::kQuadBias,
          .y = args.y + row * args.y_stride + 16 * strip,
          .y_stride = args.y_stride,
          .columns = columns_of(form, strip)};
      const std::byte* left = s.left + r / 16 * n_steps * 16 * tile.left_bytes;
      if (block.n_rows == 16) {
        block_by_tiles<true>(tiles, block, tile, left, s);
      } else {
        block_by_tiles<false>(tiles, block, tile, left, s);
      }
    }
  }
}

// ---- BF16

/// Left sides of a panel: 16 pairs of BF16 a row and step.
inline void fill_left(const DenseRows& x, const TilePanel& panel, const TileScratch& s) {
  const std::int64_t n_steps = (panel.range.last - panel.range.first) / kChainStep;
  for (std::int64_t r = 0; r < kPanelRows; ++r) {
    std::byte* left = s.left + (r / 16 * n_steps * 16 + r % 16) * 64;
    const float* row = x.values + (panel.row + r) * x.stride + panel.range.first;
    for (std::int64_t i = 0; i < n_steps; ++i, left += 16 * 64) {
      if (r >= panel.n_rows) {
        std::memset(left, 0, 64);
        continue;
      }
      store_low_halves(left, shift_right<16>(as_words(load(row + kChainStep * i))));
      store_low_halves(left + 32, shift_right<16>(as_words(load(row + kChainStep * i + 16))));
    }
  }
}

/// Two row blocks by `strips` strips over a segment: the sums stay in tiles 0..3.
template <int strips, class Tiles>
void multiply_dense(Tiles& tiles,
                    const PackedForm& form,
                    const std::byte* right,
                    std::int64_t n_steps,
                    const TileScratch& s) {
  tiles.template zero<0>();
  tiles.template zero<1>();
  tiles.template zero<2>();
  tiles.template zero<3>();
  for (std::int64_t i = 0; i < n_steps; ++i) {
    tiles.template load<4>(s.left + i * 1024, 64);
    tiles.template load<5>(s.left + (n_steps + i) * 1024, 64);
    tiles.template load<6>(right + i * 1024, 64);
    tiles.template dot_bf16<0, 4, 6>();
    tiles.template dot_bf16<1, 5, 6>();
    if constexpr (strips == 2) {
      tiles.template load<7>(right + form.strip_bytes + static_cast<std::size_t>(i) * 1024, 64);
      tiles.template dot_bf16<2, 4, 7>();
      tiles.template dot_bf16<3, 5, 7>();
    }
  }
  tiles.template store<0>(s.store, 64);
  tiles.template store<1>(s.store + 256, 64);
  if constexpr (strips == 2) {
    tiles.template store<2>(s.store + 512, 64);
    tiles.template store<3>(s.store + 768, 64);
  }
}

template <int strips, class Tiles>
void dense_strips(Tiles& tiles,
                  const LinearArgs& args,
                  const TilePanel& panel,
                  std::int64_t strip,
                  const TileScratch& s) {
  const PackedForm& form = *args.form;
  multiply_dense<strips>(
      tiles,
      form,
      args.packed + static_cast<std::size_t>(strip) * form.strip_bytes + panel.range.first * 32,
      (panel.range.last - panel.range.first) / kChainStep,
      s);
  for (int c = 0; c < strips; ++c) {
    for (std::int64_t r = 0; r < panel.n_rows; ++r) {
      const std::int32_t* sums = s.store + (2 * c + r / 16) * 256 + r % 16 * 16;
      add_segment(args.y + (panel.row + r) * args.y_stride + 16 * (strip + c),
                  as_floats(load_words(sums)),
                  columns_of(form, strip + c),
                  panel.range.first == 0);
    }
  }
}

template <class Tiles>
void dense_panel(Tiles& tiles,
                 const LinearArgs& args,
                 const TilePanel& panel,
                 const TileScratch& s) {
  fill_left(*args.dense, panel, s);
  std::int64_t strip = args.first_strip;
  const std::int64_t end = args.first_strip + args.n_strips;
  for (; strip + 2 <= end; strip += 2) {
    dense_strips<2>(tiles, args, panel, strip, s);
  }
  if (strip < end) {
    dense_strips<1>(tiles, args, panel, strip, s);
  }
}

// ---- The whole call

/// Whether tiles take this product; super-blocks and few rows are the vector kernels'.
inline bool is_for_tiles(const LinearArgs& args) {
  return args.n_rows >= kTileKernelRowsMin && args.n_strips > 0 &&
         (args.form->is_dense() || args.form->form.super_block == 0);
}

/// Calls body(panel) for every panel and segment of a call.
template <class Body>
void for_panels(const LinearArgs& args, std::int64_t n_columns, Body body) {
  for (std::int64_t r = 0; r < args.n_rows; r += kPanelRows) {
    for (std::int64_t k = 0; k < n_columns; k += args.form->form.segment) {
      body(TilePanel{args.first_row + r,
                     std::min<std::int64_t>(kPanelRows, args.n_rows - r),
                     {k, std::min(k + args.form->form.segment, n_columns)}});
    }
  }
}

template <class Tiles>
void linear_by_tiles(const LinearArgs& args) {
  const PackedForm& form = *args.form;
  const TileScratch s = place_tile_scratch(form, args.scratch);
  Tiles tiles;
  if (form.is_dense()) {
    tiles.configure(product_config(64));
    for_panels(
        args, form.k_padded, [&](const TilePanel& panel) { dense_panel(tiles, args, panel, s); });
  } else {
    const bool is_short = has_byte_codes(form.activation_bits, form.activation_group);
    tiles.configure(product_config(is_short ? 32 : 64));
    with_codes(form, [&](const auto& codes) {
      if constexpr (std::decay_t<decltype(codes)>::kQuads != 0) {
        for_panels(args, form.form.n_cols, [&](const TilePanel& panel) {
          tile_panel(tiles, codes, args, panel, s);
        });
      }
    });
  }
  tiles.release();
}
