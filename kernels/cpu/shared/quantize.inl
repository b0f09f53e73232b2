// Activations: 12, 11, 10 or 8 bit integers per row and group, or BF16. Included like
// vector_math.inl.

/// Where a group's results go.
struct GroupOut {
  std::int16_t* codes;  // one of the two
  std::int8_t* bytes;
  float* scale;
  float* scaled_sum;
  std::int32_t* sum;     // beside bytes
  std::int32_t* sums16;  // or null
};

/// n is a multiple of 32.
LUNA_ISA_INLINE void quantize_group(const float* x, std::int64_t n, int limit, GroupOut out) {
  I largest = set_word(0);
  for (std::int64_t i = 0; i < n; i += 16) {
    largest = max_words(largest, magnitude(as_words(load(x + i))));
  }
  const std::int32_t largest_bits = max_of_words(largest);
  float x_max;
  std::memcpy(&x_max, &largest_bits, sizeof x_max);
  const bool is_finite = largest_bits < 0x7F800000;
  const bool is_zero = x_max < kActivationFloor;
  // Zero and non-finite groups multiply by 0: NaN * 0 must not reach the codes, so they skip x.
  const bool skip = is_zero || !is_finite;
  const auto range = static_cast<float>(limit);
  const F inverse = set(skip ? 0.0F : range / x_max);
  I sum = set_word(0);
  for (std::int64_t i = 0; i < n; i += 16) {
    const I a = skip ? set_word(0) : to_words(mul(load(x + i), inverse));
    if (out.bytes != nullptr) {
      store_quads(out.bytes + i, a);
    } else {
      store_low_halves(out.codes + i, a);
    }
    sum = add_words(sum, a);
    if (out.sums16 != nullptr) {
      out.sums16[i / 16] = sum_of_words(a);
    }
  }
  const float s = is_zero ? 0.0F : !is_finite ? __builtin_nanf("") : x_max / range;
  const std::int32_t total = sum_of_words(sum);
  *out.scale = s;
  *out.scaled_sum = static_cast<float>(total) * s;
  if (out.sum != nullptr) {
    *out.sum = total;
  }
}

void quantize_some_rows(const float* x,
                        std::int64_t x_stride,
                        std::int64_t first_row,
                        std::int64_t n_rows,
                        const QuantizedRows* out) {
  const int limit = activation_limit(out->bits);
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const std::int64_t row = first_row + r;
    const float* x_row = x + r * x_stride;
    for (std::int64_t g = 0; g < out->n_groups; ++g) {
      const std::int64_t first = g * out->group;
      const std::int64_t n = out->k - first < out->group ? out->k - first : out->group;
      const std::int64_t at = g * out->group_stride + row;
      std::int32_t* sums =
          out->sums16 == nullptr ? nullptr : out->sums16 + row * out->sum_stride + first / 16;
      quantize_group(x_row + first,
                     n,
                     limit,
                     {out->codes == nullptr ? nullptr : out->codes + row * out->code_stride + first,
                      out->bytes == nullptr ? nullptr : out->bytes + row * out->code_stride + first,
                      out->scale + at,
                      out->scaled_sum + at,
                      out->sums == nullptr ? nullptr : out->sums + at,
                      sums});
    }
  }
}

/// Rows whose groups are quantized together, a row a lane: the scales of 16 rows lie side by side.
/// Fewer rows gain nothing by it: what the lanes hold would have to be stored one by one.
inline constexpr int kBatchRows = 16;

/// Writes the codes of 32 inputs of one row and returns their sum, spread over the lanes.
LUNA_ISA_INLINE I quantize_32(const float* x, F inverse, std::int16_t* codes) {
  const I low = to_words(mul(load(x), inverse));
  const I high = to_words(mul(load(x + 16), inverse));
  store_low_halves(codes, low);
  store_low_halves(codes + 16, high);
  return add_words(low, high);
}

/// One group of 32 inputs of kBatchRows rows.
///
/// x, codes, scale, scaled_sum  of the first row
LUNA_ISA_INLINE void quantize_batch(const float* x,
                                    std::int64_t x_stride,
                                    std::int16_t* codes,
                                    const QuantizedRows& out,
                                    std::int64_t at) {
  I largest[kBatchRows];
  for (int r = 0; r < kBatchRows; ++r) {
    const float* x_row = x + r * x_stride;
    largest[r] = max_words(magnitude(as_words(load(x_row))), magnitude(as_words(load(x_row + 16))));
  }
  const F x_max = as_floats(max_of_each(largest));
  const F range = set(static_cast<float>(activation_limit(out.bits)));
  const F zero = set(0.0F);
  const unsigned is_finite = greater(set(__builtin_inff()), x_max);
  const unsigned is_zero = greater(set(kActivationFloor), x_max);
  float inverse[kBatchRows];
  store(inverse, select(is_finite & ~is_zero, div(range, x_max), zero));
  F scale = select(is_finite, div(x_max, range), set(__builtin_nanf("")));
  scale = select(is_zero, zero, scale);
  I sums[kBatchRows];
  for (int r = 0; r < kBatchRows; ++r) {
    sums[r] = quantize_32(x + r * x_stride, set(inverse[r]), codes + r * out.code_stride);
  }
  for (unsigned lost = ~is_finite & 0xFFFFU; lost != 0; lost &= lost - 1) {
    const int r = __builtin_ctz(lost);  // NaN * 0 left something else than 0
    sums[r] = set_word(0);
    store_low_halves(codes + r * out.code_stride, set_word(0));
    store_low_halves(codes + r * out.code_stride + 16, set_word(0));
  }
  store(out.scale + at, scale);
  store(out.scaled_sum + at, mul(to_floats(sum_of_each(sums)), scale));
}

void quantize_rows(const float* x,
                   std::int64_t x_stride,
                   std::int64_t first_row,
                   std::int64_t n_rows,
                   const QuantizedRows* out) {
  std::int64_t r = 0;
  const QuantizedRows rows = *out;  // its own, which what is written cannot change
  if (rows.group == 32 && rows.codes != nullptr) {
    for (; r + kBatchRows <= n_rows; r += kBatchRows) {
      const std::int64_t row = first_row + r;
      for (std::int64_t g = 0; g < rows.n_groups; ++g) {
        quantize_batch(x + r * x_stride + 32 * g,
                       x_stride,
                       rows.codes + row * rows.code_stride + 32 * g,
                       rows,
                       g * rows.group_stride + row);
      }
    }
  }
  quantize_some_rows(x + r * x_stride, x_stride, first_row + r, n_rows - r, out);
}

/// A dense row as the left side of chains, and the elements to the next one.
LUNA_ISA_INLINE ChainValue* chain_row(const DenseRows& rows, std::int64_t row) {
  return reinterpret_cast<ChainValue*>(rows.values + row * rows.stride);
}
LUNA_ISA_INLINE std::int64_t chain_stride(const DenseRows& rows) {
  return rows.stride * static_cast<std::int64_t>(sizeof(float) / sizeof(ChainValue));
}

static_assert(kDenseTerms == 1);
void round_rows(const float* x,
                std::int64_t x_stride,
                std::int64_t first_row,
                std::int64_t n_rows,
                const DenseRows* out) {
  for (std::int64_t r = 0; r < n_rows; ++r) {
    ChainValue* y = chain_row(*out, first_row + r);
    for (std::int64_t i = 0; i < out->k_padded; i += 16) {
      const int n = static_cast<int>(out->k - i < 0 ? 0 : out->k - i < 16 ? out->k - i : 16);
      store_terms<kDenseTerms>(load_n(x + r * x_stride + i, n), y + i, 0);
    }
  }
}

void round_bf16(const float* x, std::int64_t n, std::uint16_t* y) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    store_low_halves(y + i, shift_right<16>(as_words(round_to_bf16(load(x + i)))));
  }
  if (i < n) {
    std::uint16_t tail[16];
    const int rest = static_cast<int>(n - i);
    store_low_halves(tail, shift_right<16>(as_words(round_to_bf16(load_n(x + i, rest)))));
    for (int j = 0; j < rest; ++j) {
      y[i + j] = tail[j];
    }
  }
}
