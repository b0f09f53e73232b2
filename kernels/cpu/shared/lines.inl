// The right side of a chain of BF16 products: lines of 16 columns in memory, and what each of them
// fetches ahead. Included like vector_math.inl.

/// BF16: a line holds a pair of inputs, [16 columns][2].
struct Bf16Lines {
  const std::byte* first;
  std::size_t pair_stride;     // bytes between pairs of inputs
  std::size_t strip_stride;    // bytes to the next 16 columns
  std::ptrdiff_t fetch_ahead;  // each line asks for the one so many bytes away; 0: none

  [[nodiscard]] LUNA_MEMBER_INLINE I load(int pair, int strip) const {
    const std::byte* line = first + static_cast<std::size_t>(pair) * pair_stride +
                            static_cast<std::size_t>(strip) * strip_stride;
    __builtin_prefetch(line + fetch_ahead);
    return load_words(line);
  }
};

/// Signed bytes: a line holds one input, [16 columns].
struct ByteLines {
  const std::byte* first;
  std::size_t input_stride;    // bytes between inputs
  std::size_t strip_stride;    // bytes to the next 16 columns
  std::ptrdiff_t fetch_ahead;  // as in Bf16Lines

  [[nodiscard]] LUNA_MEMBER_INLINE F load(int input, int strip) const {
    const std::byte* line = first + static_cast<std::size_t>(input) * input_stride +
                            static_cast<std::size_t>(strip) * strip_stride;
    if (input % 2 == 0 || input_stride >= 64) {
      __builtin_prefetch(line + fetch_ahead);
    }
    return to_floats(load_bytes(line));
  }
};
