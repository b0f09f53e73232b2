// Packed codes to pairs of signed 16-bit integers: one small class per storage. Included like
// vector_math.inl.
//
// kLines lines of a 32-input block. A line yields kPairs words whose signed halves are two
// neighbouring inputs of each of the 16 columns, pair_index() of the block's 16; or kQuads words of
// four unsigned bytes in the order kQuadOrder, ascending. kQuadBias is what the bytes are too large
// by.

/// What makes a signed byte unsigned.
inline constexpr int kByteBias = 128;

/// The low (0) or high (1) nibbles of the bytes.
template <int i>
LUNA_ISA_INLINE I nibbles(I line) {
  return and_words(shift_right<4 * i>(line), set_word(0x0F0F0F0F));
}

struct NibbleCodes {
  static constexpr int kLines = 4;
  static constexpr int kPairs = 4;
  static constexpr int kQuads = 2;
  static constexpr int kQuadBias = 0;
  static constexpr int pair_index(int line, int i) { return 4 * line + i; }
  explicit NibbleCodes(const PackedForm&) {}
  template <int i>
  LUNA_MEMBER_INLINE I pair(I line) const {
    return and_words(shift_right<4 * i>(line), set_word(0x000F000F));
  }
  template <int i>
  LUNA_MEMBER_INLINE I quad(I line) const {
    return nibbles<i>(line);
  }
};

/// Nibbles with the zero taken off, for super-blocks (their zero goes into the integer sum).
struct CentredNibbleCodes {
  static constexpr int kLines = 4;
  static constexpr int kPairs = 4;
  static constexpr int kQuads = 0;
  static constexpr int pair_index(int line, int i) { return 4 * line + i; }
  I zero;
  explicit CentredNibbleCodes(const PackedForm& form)
      : zero(set_word(form.form.zero * 0x00010001)) {}
  template <int i>
  LUNA_MEMBER_INLINE I pair(I line) const {
    return sub_halves(and_words(shift_right<4 * i>(line), set_word(0x000F000F)), zero);
  }
};

struct BookCodes {
  static constexpr int kLines = 4;
  static constexpr int kPairs = 4;
  static constexpr int kQuads = 2;
  static constexpr int kQuadBias = kByteBias;
  static constexpr int pair_index(int line, int i) { return 4 * line + i; }
  Book book;
  explicit BookCodes(const PackedForm& form) : book(load_book(form.form.code_book)) {}
  template <int i>
  LUNA_MEMBER_INLINE I pair(I line) const {
    return look_up(book, shift_right<4 * i>(line));
  }
  template <int i>
  LUNA_MEMBER_INLINE I quad(I line) const {
    return look_up_bytes(book, nibbles<i>(line));
  }
};

struct ByteCodes {
  static constexpr int kLines = 8;
  static constexpr int kPairs = 2;
  static constexpr int kQuads = 1;
  static constexpr int kQuadBias = 0;
  static constexpr int pair_index(int line, int i) { return line / 2 * 4 + line % 2 + 2 * i; }
  explicit ByteCodes(const PackedForm&) {}
  template <int i>
  LUNA_MEMBER_INLINE I pair(I line) const {
    return and_words(shift_right<8 * i>(line), set_word(0x00FF00FF));
  }
  template <int i>
  LUNA_MEMBER_INLINE I quad(I line) const {
    return line;
  }
};

struct SignedByteCodes {
  static constexpr int kLines = 8;
  static constexpr int kPairs = 2;
  static constexpr int kQuads = 1;
  static constexpr int kQuadBias = kByteBias;
  static constexpr int pair_index(int line, int i) { return line / 2 * 4 + line % 2 + 2 * i; }
  explicit SignedByteCodes(const PackedForm&) {}
  template <int i>
  LUNA_MEMBER_INLINE I pair(I line) const {
    if constexpr (i == 0) {
      return low_bytes_signed(line);
    } else {
      return high_bytes_signed(line);
    }
  }
  template <int i>
  LUNA_MEMBER_INLINE I quad(I line) const {
    return xor_words(line, set_word(static_cast<std::int32_t>(0x80808080U)));
  }
};

/// Calls `use(codes)` with the class of a form's codes: the one dispatch, above every loop.
template <class Use>
LUNA_ISA_INLINE void with_codes(const PackedForm& form, Use use) {
  if (form.form.klass == WeightClass::code_book) {
    use(BookCodes(form));
  } else if (form.storage == CodeStorage::nibbles) {
    if (form.form.super_block != 0 && form.form.zero != 0) {
      use(CentredNibbleCodes(form));
    } else {
      use(NibbleCodes(form));
    }
  } else if (form.codes_are_signed) {
    use(SignedByteCodes(form));
  } else {
    use(ByteCodes(form));
  }
}

/// Calls op(std::integral_constant<int, 0>), .. up to n - 1: indices the shifts can take.
template <int n, class Op>
LUNA_ISA_INLINE void unroll(Op op) {
  if constexpr (n > 1) {
    unroll<n - 1>(op);
  }
  op(std::integral_constant<int, n - 1>());
}

/// Integer dot products of 16-bit activations: a word is a pair of inputs.
struct PairDots {
  static constexpr int kWords = 16;  // of a 32-input block
  template <class Codes>
  static constexpr int kPerLine = Codes::kPairs;
  template <class Codes>
  static constexpr int kBias = 0;
  template <class Codes>
  static constexpr int index(int line, int i) {
    return Codes::pair_index(line, i);
  }
  template <int i, class Codes>
  static LUNA_MEMBER_INLINE I word(const Codes& codes, I line) {
    return codes.template pair<i>(line);
  }
  static LUNA_MEMBER_INLINE I dot(I acc, I weights, I activations) {
    return dot_halves(acc, weights, activations);
  }
  static const std::byte* row(const QuantizedRows& x, std::int64_t row, std::int64_t k) {
    return reinterpret_cast<const std::byte*>(x.codes + row * x.code_stride + k);
  }
  static std::int64_t row_bytes(const QuantizedRows& x) { return 2 * x.code_stride; }
};

/// The same of 8-bit activations: a word is a quad of inputs.
struct QuadDots {
  static constexpr int kWords = 8;
  template <class Codes>
  static constexpr int kPerLine = Codes::kQuads;
  template <class Codes>
  static constexpr int kBias = Codes::kQuadBias;
  template <class Codes>
  static constexpr int index(int line, int i) {
    return Codes::kQuads * line + i;
  }
  template <int i, class Codes>
  static LUNA_MEMBER_INLINE I word(const Codes& codes, I line) {
    return codes.template quad<i>(line);
  }
  static LUNA_MEMBER_INLINE I dot(I acc, I weights, I activations) {
    return dot_bytes(acc, weights, activations);
  }
  static const std::byte* row(const QuantizedRows& x, std::int64_t row, std::int64_t k) {
    return reinterpret_cast<const std::byte*>(x.bytes + row * x.code_stride + k);
  }
  static std::int64_t row_bytes(const QuantizedRows& x) { return x.code_stride; }
};

/// Writes the words of a 32-input block, ascending, 64 bytes each.
template <class Dots, class Codes>
LUNA_ISA_INLINE void unpack_block(const Codes& codes, const std::byte* block, std::int32_t* words) {
  for (int j = 0; j < Codes::kLines; ++j) {
    const I line = load_words(block + 64 * j);
    unroll<Dots::template kPerLine<Codes>>([&](auto i) LUNA_LAMBDA_INLINE {
      store_words(words + 16 * Dots::template index<Codes>(j, i),
                  Dots::template word<i>(codes, line));
    });
  }
}

/// Scales of one record as FP32. Offsets are 0 where the form has none.
struct RecordScales {
  F scale;
  F offset;
};
LUNA_ISA_INLINE RecordScales load_scales(const PackedForm& form, const std::byte* record) {
  RecordScales r;
  r.scale = form.wide_scales ? load(reinterpret_cast<const float*>(record)) : load_f16(record);
  if (form.has_offsets) {
    r.offset = form.wide_scales ? load(reinterpret_cast<const float*>(record + 64))
                                : load_f16(record + 32);
  } else if (form.form.super_block == 0 && !form.codes_are_signed && form.form.zero != 0) {
    r.offset = mul(r.scale, set(static_cast<float>(-form.form.zero)));
  } else {
    r.offset = set(0.0F);
  }
  return r;
}
LUNA_ISA_INLINE bool has_offset_term(const PackedForm& form) {
  return form.has_offsets ||
         (form.form.super_block == 0 && !form.codes_are_signed && form.form.zero != 0);
}
LUNA_ISA_INLINE std::size_t plain_scale_bytes(const PackedForm& form) {
  return (form.wide_scales ? 64U : 32U) * (form.has_offsets ? 2U : 1U);
}
