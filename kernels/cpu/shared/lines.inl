// The right side of a chain of BF16 products: lines of 16 columns. Included like vector_math.inl.

/// Asks for part `part` of what is read later: a few lines beside each few multiplications, not all
/// at once.
template <int bytes>
LUNA_ISA_INLINE void fetch_part(const std::byte* fetched, int part) {
  for (int i = 0; i < bytes; i += 64) {
    __builtin_prefetch(fetched + part * bytes + i);
  }
}

/// BF16: a line holds a pair of inputs, [16 columns][2].
struct Bf16Lines {
  static constexpr int kPairBytes = 64;
  const std::byte* first;
  std::size_t pair_stride;   // bytes between pairs of inputs
  std::size_t strip_stride;  // bytes to the next 16 columns
  const std::byte* fetched;  // as many bytes as are read here; or null

  [[nodiscard]] LUNA_MEMBER_INLINE I load(int pair, int strip) const {
    return load_words(first + static_cast<std::size_t>(pair) * pair_stride +
                      static_cast<std::size_t>(strip) * strip_stride);
  }
};

/// Signed bytes: a line holds one input, [16 columns].
struct ByteLines {
  static constexpr int kPairBytes = 32;
  const std::byte* first;
  std::size_t input_stride;  // bytes between inputs
  std::size_t strip_stride;  // bytes to the next 16 columns
  const std::byte* fetched;  // as many bytes as are read here; or null

  [[nodiscard]] LUNA_MEMBER_INLINE F load(int input, int strip) const {
    return to_floats(load_bytes(first + static_cast<std::size_t>(input) * input_stride +
                                static_cast<std::size_t>(strip) * strip_stride));
  }
};
