// Few rows: codes go through registers, nothing is unpacked to memory; the weights' bytes are the
// limit. Strips are shorter than the hardware prefetcher's warm-up, so each line asks for the same
// line of the strips that come next. Included like vector_math.inl, after linear.inl.

inline constexpr int kDirectRowsMax = kTileRows < 6 ? 4 : 6;

/// A hint: reading beyond the end of the weight is harmless.
LUNA_ISA_INLINE void prefetch(const std::byte* p) {
  __builtin_prefetch(p, 0, 3);
}

/// The codes of a block's inputs, row after row.
struct ActivationRows {
  const std::int16_t* codes;
  std::int64_t stride;
};

/// isum += dot products of a 32-input block, for `strips` strips (strip_bytes apart).
template <int rows, int strips, class Codes>
LUNA_ISA_INLINE void direct_block(const Codes& codes,
                                  const std::byte* block,
                                  std::size_t strip_bytes,
                                  const ActivationRows& a,
                                  I (&isum)[rows][strips]) {
#pragma GCC unroll 2
  for (int j = 0; j < Codes::kLines; ++j) {
    I line[strips];
#pragma GCC unroll 16
    for (int c = 0; c < strips; ++c) {
      const std::byte* p = block + static_cast<std::size_t>(c) * strip_bytes + 64 * j;
      line[c] = load_words(p);
      prefetch(p + strips * strip_bytes);
    }
    unroll<Codes::kPairs>([&](auto p) LUNA_LAMBDA_INLINE {
      I pair[strips];
#pragma GCC unroll 16
      for (int c = 0; c < strips; ++c) {
        pair[c] = codes.template pair<p>(line[c]);
      }
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const I both = set_word(load_pair(a.codes + r * a.stride + 2 * (Codes::kPairs * j + p)));
#pragma GCC unroll 16
        for (int c = 0; c < strips; ++c) {
          isum[r][c] = dot_halves(isum[r][c], pair[c], both);
        }
      }
    });
  }
}

template <class Codes, int rows, int strips, bool has_offset>
void direct_strips(const Codes& codes,
                   const LinearArgs& args,
                   std::int64_t row,
                   std::int64_t strip) {
  const PackedForm& form = *args.form;
  const QuantizedRows& x = *args.quantized;
  const std::byte* base = args.packed + static_cast<std::size_t>(strip) * form.strip_bytes;
  float* y = args.y + row * args.y_stride + 16 * strip;
  const std::int64_t group = form.scale_group;
  for (std::int64_t first = 0; first < form.form.n_cols; first += form.form.segment) {
    const std::int64_t last = std::min(first + form.form.segment, form.form.n_cols);
    F acc[rows][strips];
    clear(acc);
    for (std::int64_t k = first; k < last; k += group) {
      I isum[rows][strips];
      clear(isum);
      for (std::int64_t i = k; i < k + group && i < last; i += 32) {
        direct_block(codes,
                     base + static_cast<std::size_t>(i / 32) * (64U * Codes::kLines),
                     form.strip_bytes,
                     {x.codes + row * x.code_stride + i, x.code_stride},
                     isum);
      }
      const std::int64_t g = k / group;
      const std::byte* record =
          base + form.codes_bytes + static_cast<std::size_t>(g) * form.record_bytes;
#pragma GCC unroll 16
      for (int c = 0; c < strips; ++c) {
        const std::byte* own = record + static_cast<std::size_t>(c) * form.strip_bytes;
        const RecordScales w = load_scales(form, own);
        prefetch(own + strips * form.strip_bytes);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
          const std::int64_t at = g * x.group_stride + row + r;
          acc[r][c] = fma(to_floats(isum[r][c]), mul(w.scale, set(x.scale[at])), acc[r][c]);
          if constexpr (has_offset) {
            acc[r][c] = fma(w.offset, set(x.scaled_sum[at]), acc[r][c]);
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < strips; ++c) {
        add_segment(
            y + r * args.y_stride + 16 * c, acc[r][c], columns_of(form, strip + c), first == 0);
      }
    }
  }
}

template <class Codes, int rows, bool has_offset>
void direct_rows(const Codes& codes, const LinearArgs& args, std::int64_t row) {
  const std::int64_t end = args.first_strip + args.n_strips;
  std::int64_t strip = args.first_strip;
  for (; strip + kDirectStrips <= end; strip += kDirectStrips) {
    direct_strips<Codes, rows, kDirectStrips, has_offset>(codes, args, row, strip);
  }
  for (; strip < end; ++strip) {
    direct_strips<Codes, rows, 1, has_offset>(codes, args, row, strip);
  }
}

template <class Codes, bool has_offset, int rows = kDirectRowsMax>
LUNA_ISA_INLINE void direct_by_rows(const Codes& codes, const LinearArgs& args) {
  if constexpr (rows > 1) {
    if (args.n_rows < rows) {
      direct_by_rows<Codes, has_offset, rows - 1>(codes, args);
      return;
    }
  }
  direct_rows<Codes, rows, has_offset>(codes, args, args.first_row);
}

template <class Codes>
void linear_few_rows(const Codes& codes, const LinearArgs& args) {
  if (has_offset_term(*args.form)) {
    direct_by_rows<Codes, true>(codes, args);
  } else {
    direct_by_rows<Codes, false>(codes, args);
  }
}

void linear_dense(const LinearArgs& args);  // bf16_chain.inl

void linear(const LinearArgs& args) {
  if (args.n_rows <= 0 || args.n_strips <= 0) {
    return;
  }
  const PackedForm& form = *args.form;
  if (form.form.klass == WeightClass::dense) {
    linear_dense(args);
    return;
  }
  with_codes(form, [&](const auto& codes) {
    if (args.n_rows <= kDirectRowsMax && form.form.super_block == 0) {
      linear_few_rows(codes, args);
    } else {
      linear_many_rows(codes, args);
    }
  });
}

/// One row of a packed weight as FP32; row n of a strip is lane n.
template <class Codes>
void unpack_quantized_row(
    const Codes& codes, const PackedForm& form, const std::byte* strip, int lane, float* y) {
  std::int32_t pairs[16 * 16];
  for (std::int64_t k = 0; k < form.form.n_cols; k += 32) {
    unpack_block(codes, strip + static_cast<std::size_t>(k / 32) * (64U * Codes::kLines), pairs);
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
  if (form.form.klass == WeightClass::dense) {
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
