// The layout of KV in memory: where a position's K and V lie, how they are read as lines of a
// chain, how they are written. Included like vector_math.inl, after lines.inl.

/// The parts of a head within a block, and a slot of it.
struct KvHeadParts {
  std::byte* k;  // codes of K, then those of V
  std::byte* v;
  std::byte* k_scales;  // int8: BF16 [block_tokens], then those of V
  std::byte* v_scales;
  std::size_t slot;  // of the position, 0..block_tokens-1
};
template <KvType type>
LUNA_ISA_INLINE KvHeadParts kv_parts_at(const KvView& kv, int kv_head, std::int64_t position) {
  const auto block_tokens = static_cast<std::size_t>(kv.shape.block_tokens);
  const std::size_t codes = kv_codes_bytes(kv.shape);
  KvHeadParts parts;
  parts.k = kv_head_at(kv, kv_head, position);
  parts.v = parts.k + codes;
  parts.k_scales = parts.v + codes;
  parts.v_scales = parts.k_scales + block_tokens * 2;
  parts.slot = static_cast<std::size_t>(position) % block_tokens;
  return parts;
}

/// `fetched` is what is asked for meanwhile, or null.
///
/// 32 elements of K from `d` on, 16 positions from `slot` (a multiple of 16) on.
template <KvType type>
LUNA_ISA_INLINE auto k_lines(const KvHeadParts& head,
                             std::size_t head_dim,
                             std::size_t d,
                             const std::byte* fetched) {
  if constexpr (type == KvType::bf16) {
    return Bf16Lines{head.k + (head.slot * head_dim + d * 16) * 2, 64, head_dim * 32, fetched};
  } else {
    return ByteLines{head.k + head.slot * head_dim + d * 16, 16, head_dim * 16, fetched};
  }
}
/// 16 elements of V from `d` on, 32 positions from `slot` (a multiple of 32) on.
template <KvType type>
LUNA_ISA_INLINE auto v_lines(const std::byte* v_of_slot,
                             std::size_t head_dim,
                             std::size_t d,
                             const std::byte* fetched) {
  if constexpr (type == KvType::bf16) {
    return Bf16Lines{v_of_slot + d * 4, head_dim * 4, 64, fetched};
  } else {
    return ByteLines{v_of_slot + d, head_dim, 16, fetched};
  }
}

LUNA_ISA_INLINE I halves_of(F x) {
  return shift_right<16>(as_words(round_to_bf16(x)));
}
/// A token's K, n elements: pairs, each in a line of its own.
LUNA_ISA_INLINE void write_k_pairs(const float* k, std::size_t n, std::byte* to) {
  for (std::size_t i = 0; i < n; i += 16) {
    std::uint32_t pairs[8];
    store_low_halves(pairs, halves_of(load(k + i)));
    for (std::size_t j = 0; j < 8; ++j) {
      std::memcpy(to + (i / 2 + j) * 64, pairs + j, 4);
    }
  }
}
/// A token's V, n elements: every other half of its pair of tokens.
LUNA_ISA_INLINE void write_v_halves(const float* v, std::size_t n, std::byte* to) {
  for (std::size_t i = 0; i < n; i += 16) {
    store_halves_apart(to + i * 4, halves_of(load(v + i)));
  }
}

/// Codes of one head's row by its own scale; returns the scale as BF16.
LUNA_ISA_INLINE std::uint16_t write_codes(const float* x,
                                          std::size_t n,
                                          std::byte* to,
                                          std::size_t stride) {
  I largest = set_word(0);
  for (std::size_t i = 0; i < n; i += 16) {
    largest = max_words(largest, magnitude(as_words(load(x + i))));
  }
  const std::int32_t largest_bits = max_of_words(largest);
  float x_max;
  std::memcpy(&x_max, &largest_bits, sizeof x_max);
  const bool is_finite = largest_bits < 0x7F800000;
  const bool is_zero = x_max < kActivationFloor;
  const bool skip = is_zero || !is_finite;  // NaN * 0 must not reach the codes
  float scales[16];
  store(scales, round_to_bf16(set(x_max / kKvCodeLimit)));
  const F inverse = set(skip ? 0.0F : 1.0F / scales[0]);
  for (std::size_t i = 0; i < n; i += 16) {
    const F limit = set(kKvCodeLimit);
    const F scaled = min(limit, max(sub(set(0.0F), limit), mul(load(x + i), inverse)));
    std::int32_t codes[16];
    store_words(codes, skip ? set_word(0) : to_words(scaled));
    for (std::size_t j = 0; j < 16; ++j) {
      to[(i + j) * stride] = static_cast<std::byte>(codes[j]);
    }
  }
  if (!is_finite) {
    return 0x7FC0;
  }
  std::uint32_t bits;
  std::memcpy(&bits, scales, sizeof bits);
  return is_zero ? std::uint16_t{0} : static_cast<std::uint16_t>(bits >> 16);
}

template <KvType type>
void kv_write(const KvWriteArgs& args) {
  const auto head_dim = static_cast<std::size_t>(args.kv.shape.head_dim);
  for (int h = 0; h < args.kv.shape.n_kv_heads; ++h) {
    const KvHeadParts head = kv_parts_at<type>(args.kv, h, args.position);
    const float* k = args.k + static_cast<std::size_t>(h) * head_dim;
    const float* v = args.v + static_cast<std::size_t>(h) * head_dim;
    const std::size_t slot = head.slot;
    if (args.kv.shape.has_masses) {
      *kv_masses_at(args.kv, h, args.position) = 0.0F;
    }
    if constexpr (type == KvType::bf16) {
      write_k_pairs(k, head_dim, head.k + slot / 16 * head_dim * 32 + slot % 16 * 4);
      write_v_halves(v, head_dim, head.v + slot / 2 * head_dim * 4 + slot % 2 * 2);
    } else {
      const std::uint16_t k_scale =
          write_codes(k, head_dim, head.k + slot / 16 * head_dim * 16 + slot % 16, 16);
      const std::uint16_t v_scale = write_codes(v, head_dim, head.v + slot * head_dim, 1);
      std::memcpy(head.k_scales + slot * 2, &k_scale, 2);
      std::memcpy(head.v_scales + slot * 2, &v_scale, 2);
    }
  }
}
void kv_write(const KvWriteArgs& args) {
  return args.kv.shape.type == KvType::bf16 ? kv_write<KvType::bf16>(args)
                                            : kv_write<KvType::int8>(args);
}
