// Packed codes to pairs of signed 16-bit integers: one small class per storage. Included like
// vector_math.inl.
//
// kLines lines of a 32-input block; a line yields kPairs words whose halves are two neighbouring
// inputs of each of the 16 columns, in natural order.

struct NibbleCodes {
  static constexpr int kLines = 4;
  static constexpr int kPairs = 4;
  explicit NibbleCodes(const PackedForm&) {}
  template <int i>
  LUNA_MEMBER_INLINE I pair(I line) const {
    return and_words(shift_right<4 * i>(line), set_word(0x000F000F));
  }
};

/// Nibbles with the zero taken off, for super-blocks (their zero goes into the integer sum).
struct CentredNibbleCodes {
  static constexpr int kLines = 4;
  static constexpr int kPairs = 4;
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
  Book book;
  explicit BookCodes(const PackedForm& form) : book(load_book(form.form.code_book)) {}
  template <int i>
  LUNA_MEMBER_INLINE I pair(I line) const {
    return look_up(book, shift_right<4 * i>(line));
  }
};

struct ByteCodes {
  static constexpr int kLines = 8;
  static constexpr int kPairs = 2;
  explicit ByteCodes(const PackedForm&) {}
  template <int i>
  LUNA_MEMBER_INLINE I pair(I line) const {
    return and_words(shift_right<8 * i>(line), set_word(0x00FF00FF));
  }
};

struct SignedByteCodes {
  static constexpr int kLines = 8;
  static constexpr int kPairs = 2;
  explicit SignedByteCodes(const PackedForm&) {}
  template <int i>
  LUNA_MEMBER_INLINE I pair(I line) const {
    if constexpr (i == 0) {
      return low_bytes_signed(line);
    } else {
      return high_bytes_signed(line);
    }
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

/// Writes the 16 pair words of a 32-input block, natural order, 64 bytes each.
template <class Codes>
LUNA_ISA_INLINE void unpack_block(const Codes& codes, const std::byte* block, std::int32_t* pairs) {
  for (int j = 0; j < Codes::kLines; ++j) {
    const I line = load_words(block + 64 * j);
    unroll<Codes::kPairs>([&](auto i) LUNA_LAMBDA_INLINE {
      store_words(pairs + 16 * (Codes::kPairs * j + i), codes.template pair<i>(line));
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
