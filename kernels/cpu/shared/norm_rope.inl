// Norms, rotary positions, activations, elementwise operations. Included like vector_math.inl.

/// c * tanh(x / c) as c * (1 - 2 / (1 + exp(2x / c))).
LUNA_ISA_INLINE F softcap_lanes(F x, F cap) {
  const F e = exp_lanes(mul(set(2.0F), div(x, cap)));
  return mul(cap, sub(set(1.0F), div(set(2.0F), add(set(1.0F), e))));
}
/// x / (1 + exp(-x))
LUNA_ISA_INLINE F silu_lanes(F x) {
  return div(x, add(set(1.0F), exp_lanes(sub(set(0.0F), x))));
}
LUNA_ISA_INLINE F gelu_tanh_lanes(F x) {
  const F cube = mul(mul(x, x), x);
  const F inner = mul(set(kGeluInner), fma(set(kGeluCubic), cube, x));
  return div(x, add(set(1.0F), exp_lanes(sub(set(0.0F), inner))));
}

/// op(i, n): lanes i..i+n-1 of a vector of `size` elements.
template <class Op>
LUNA_ISA_INLINE void for_lanes(std::int64_t size, Op op) {
  std::int64_t i = 0;
  for (; i + 16 <= size; i += 16) {
    op(i, 16);
  }
  if (i < size) {
    op(i, static_cast<int>(size - i));
  }
}
LUNA_ISA_INLINE F load_part(const float* p, int n) {
  return n == 16 ? load(p) : load_n(p, n);
}
LUNA_ISA_INLINE void store_part(float* p, F a, int n) {
  if (n == 16) {
    store(p, a);
  } else {
    store_n(p, a, n);
  }
}

void rms_norm(const float* x, const float* w, std::int64_t n, float eps, float* y) {
  F squares = set(0.0F);
  for_lanes(n, [&](std::int64_t i, int m) LUNA_LAMBDA_INLINE {
    const F v = load_part(x + i, m);
    squares = fma(v, v, squares);
  });
  const float mean = sum_lanes(squares) / static_cast<float>(n);
  const F r = set(1.0F / std::sqrt(mean + eps));
  for_lanes(n, [&](std::int64_t i, int m) LUNA_LAMBDA_INLINE {
    store_part(y + i, mul(mul(load_part(x + i, m), r), load_part(w + i, m)), m);
  });
}

void layer_norm(const LayerNormArgs& args) {
  F sum = set(0.0F);
  for_lanes(args.n, [&](std::int64_t i, int m) LUNA_LAMBDA_INLINE {
    sum = add(sum, load_part(args.x + i, m));
  });
  const F mean = set(sum_lanes(sum) / static_cast<float>(args.n));
  F squares = set(0.0F);
  for_lanes(args.n, [&](std::int64_t i, int m) LUNA_LAMBDA_INLINE {
    const F c = select_range(sub(load_part(args.x + i, m), mean), set(0.0F), 0, m);
    squares = fma(c, c, squares);
  });
  const float variance = sum_lanes(squares) / static_cast<float>(args.n);
  const F r = set(1.0F / std::sqrt(variance + args.eps));
  for_lanes(args.n, [&](std::int64_t i, int m) LUNA_LAMBDA_INLINE {
    const F c = mul(sub(load_part(args.x + i, m), mean), r);
    const F v = fma(c, load_part(args.weight + i, m), load_part(args.bias + i, m));
    store_part(args.y + i, v, m);
  });
}

/// A pair (x0, x1) becomes fma(x0, cos, x1 * -sin), fma(x1, cos, x0 * sin).
LUNA_ISA_INLINE void rope_interleaved(const RopeArgs& args, const float* x, float* y) {
  float signs[16];
  for (int i = 0; i < 16; ++i) {
    signs[i] = i % 2 == 0 ? -1.0F : 1.0F;
  }
  const F sign = load(signs);
  for_lanes(args.n_rot, [&](std::int64_t i, int m) LUNA_LAMBDA_INLINE {
    const F v = load_part(x + i, m);
    const F c = duplicate(load_n(args.cosine + i / 2, m / 2));
    const F s = mul(duplicate(load_n(args.sine + i / 2, m / 2)), sign);
    store_part(y + i, fma(v, c, mul(swap_lanes<1>(v), s)), m);
  });
}
LUNA_ISA_INLINE void rope_halves(const RopeArgs& args, const float* x, float* y) {
  const int half = args.n_rot / 2;
  for_lanes(half, [&](std::int64_t i, int m) LUNA_LAMBDA_INLINE {
    const F x0 = load_part(x + i, m);
    const F x1 = load_part(x + half + i, m);
    const F c = load_part(args.cosine + i, m);
    const F s = load_part(args.sine + i, m);
    store_part(y + i, fma(x0, c, mul(x1, mul(s, set(-1.0F)))), m);
    store_part(y + half + i, fma(x1, c, mul(x0, s)), m);
  });
}

void rope(const RopeArgs& args) {
  for (int h = 0; h < args.n_heads; ++h) {
    const float* x = args.x + static_cast<std::int64_t>(h) * args.head_dim;
    float* y = args.y + static_cast<std::int64_t>(h) * args.head_dim;
    if (args.style == RopeStyle::halves) {
      rope_halves(args, x, y);
    } else {
      rope_interleaved(args, x, y);
    }
    for (int i = args.n_rot; i < args.head_dim; ++i) {
      y[i] = x[i];
    }
  }
}

void act_mul(Activation kind, const float* gate, const float* up, std::int64_t n, float* y) {
  if (kind == Activation::silu) {
    for_lanes(n, [&](std::int64_t i, int m) LUNA_LAMBDA_INLINE {
      store_part(y + i, mul(silu_lanes(load_part(gate + i, m)), load_part(up + i, m)), m);
    });
  } else {
    for_lanes(n, [&](std::int64_t i, int m) LUNA_LAMBDA_INLINE {
      store_part(y + i, mul(gelu_tanh_lanes(load_part(gate + i, m)), load_part(up + i, m)), m);
    });
  }
}
void add_rows(const float* a, const float* b, std::int64_t n, float* y) {
  for_lanes(n, [&](std::int64_t i, int m) LUNA_LAMBDA_INLINE {
    store_part(y + i, add(load_part(a + i, m), load_part(b + i, m)), m);
  });
}
void scale_rows(const float* x, float factor, std::int64_t n, float* y) {
  for_lanes(n, [&](std::int64_t i, int m) LUNA_LAMBDA_INLINE {
    store_part(y + i, mul(load_part(x + i, m), set(factor)), m);
  });
}
void softcap_rows(const float* x, float cap, std::int64_t n, float* y) {
  for_lanes(n, [&](std::int64_t i, int m) LUNA_LAMBDA_INLINE {
    store_part(y + i, softcap_lanes(load_part(x + i, m), set(cap)), m);
  });
}
void exp_rows(const float* x, std::int64_t n, float* y) {
  for_lanes(n, [&](std::int64_t i, int m) LUNA_LAMBDA_INLINE {
    store_part(y + i, exp_lanes(load_part(x + i, m)), m);
  });
}
