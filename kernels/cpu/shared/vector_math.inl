// Sums, exp, BF16 rounding over the sixteen lanes. Included inside a target region and the
// namespace of an instruction set, after its lanes.hpp.

LUNA_ISA_INLINE std::int32_t load_word(const void* p) {
  std::int32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

/// The fixed tree: 8, 4, 2, 1.
LUNA_ISA_INLINE float sum_lanes(F a) {
  a = add(a, swap_lanes<8>(a));
  a = add(a, swap_lanes<4>(a));
  a = add(a, swap_lanes<2>(a));
  return first_lane(add(a, swap_lanes<1>(a)));
}
LUNA_ISA_INLINE float max_lanes(F a) {
  a = max(a, swap_lanes<8>(a));
  a = max(a, swap_lanes<4>(a));
  a = max(a, swap_lanes<2>(a));
  return first_lane(max(a, swap_lanes<1>(a)));
}

/// 2^x by the contract's polynomial; NaN stays NaN.
LUNA_ISA_INLINE F exp2_lanes(F x) {
  x = min(set(kExp2Max), max(set(kExp2Min), x));
  const F n = round_even(x);
  const F f = sub(x, n);
  F y = set(kExp2Coefficients[5]);
  for (int i = 4; i >= 0; --i) {
    y = fma(y, f, set(kExp2Coefficients[i]));
  }
  y = fma(y, f, set(1.0F));
  return as_floats(add_words(as_words(y), shift_left<23>(to_words(n))));
}
LUNA_ISA_INLINE F exp_lanes(F x) {
  return exp2_lanes(mul(x, set(kLog2E)));
}
LUNA_ISA_INLINE float exp_scalar(float x) {
  float v[16];
  store(v, exp_lanes(set(x)));
  return v[0];
}

/// Bits without the sign.
LUNA_ISA_INLINE I magnitude(I bits) {
  return and_words(bits, set_word(0x7FFFFFFF));
}

/// The BF16 number nearest to x (even), as FP32. A NaN stays a NaN.
LUNA_ISA_INLINE F round_to_bf16(F x) {
  const I bits = as_words(x);
  const I odd = and_words(shift_right<16>(bits), set_word(1));
  const I rounded = add_words(bits, add_words(odd, set_word(0x7FFF)));
  // Adding to a NaN could carry into the sign: NaN becomes the quiet one.
  const I is_nan =
      and_words(shift_right<31>(sub_words(set_word(0x7F800000), magnitude(bits))), set_word(1));
  const I quiet = mul_words(is_nan, set_word(0x7FC00000));
  const I keep = add_words(is_nan, set_word(-1));  // all ones unless NaN
  return as_floats(add_words(
      and_words(and_words(rounded, set_word(static_cast<std::int32_t>(0xFFFF0000U))), keep),
      quiet));
}
