// The largest of a row's logits and what log-sum-exp needs. Included like vector_math.inl.

/// Takes the k largest of a chunk: ids ascend, so among equals the one that came first stays.
LUNA_ISA_INLINE void offer(LogitsState* state, int k, float logit, std::uint32_t id) {
  int n = state->n_candidates;
  if (n == k) {
    if (!(logit > state->candidates[n - 1].logit)) {
      return;
    }
    --n;
  }
  int at = n;
  for (; at > 0 && logit > state->candidates[at - 1].logit; --at) {
    state->candidates[at] = state->candidates[at - 1];
  }
  state->candidates[at] = {logit, id};
  state->n_candidates = n + 1;
}

/// Maxima of logits dealt out over 256 lanes; those of a chunk, or of a run of chunks.
inline constexpr int kMaximaParts = 16;
struct Maxima {
  F parts[kMaximaParts];
};
LUNA_ISA_INLINE Maxima no_maxima() {
  Maxima maxima;
  for (F& part : maxima.parts) {
    part = set(-__builtin_inff());
  }
  return maxima;
}
LUNA_ISA_INLINE Maxima maxima_of(const float* logits, int n) {
  constexpr int kStep = 16 * kMaximaParts;
  Maxima maxima = no_maxima();
  int i = 0;
  for (; i + kStep <= n; i += kStep) {
#pragma GCC unroll 16
    for (int part = 0; part < kMaximaParts; ++part) {
      // In this order a NaN leaves the part as it is.
      maxima.parts[part] = max(load(logits + i + 16 * part), maxima.parts[part]);
    }
  }
  for (; i < n; i += 16) {
    const int rest = n - i < 16 ? n - i : 16;
    const F v = select_range(load_part(logits + i, rest), maxima.parts[0], 0, rest);
    maxima.parts[0] = max(v, maxima.parts[0]);
  }
  return maxima;
}
LUNA_ISA_INLINE float largest_of(const Maxima& maxima) {
  F largest = maxima.parts[0];
  for (const F& part : maxima.parts) {
    largest = max(part, largest);
  }
  return max_lanes(largest);
}

/// A number that at least k logits exceed; -inf where they are few or hard to tell. Spares nearly
/// all offers: k of the 256 maxima exceed it, and rarely many other logits do.
LUNA_ISA_INLINE float bar_of(const Maxima& maxima, int k) {
  constexpr int kHalvings = 10;
  const auto n_above = [&](float bar) LUNA_LAMBDA_INLINE {
    int count = 0;
    for (const F& part : maxima.parts) {
      count += __builtin_popcount(greater(part, set(bar)));
    }
    return count;
  };
  F smallest = maxima.parts[0];
  for (const F& part : maxima.parts) {
    smallest = min(part, smallest);
  }
  float high = largest_of(maxima);
  float low = -max_lanes(sub(set(0.0F), smallest));
  if (n_above(low) < k) {
    return -__builtin_inff();
  }
  for (int i = 0; i < kHalvings; ++i) {
    const float middle = 0.5F * low + 0.5F * high;
    (n_above(middle) >= k ? low : high) = middle;
  }
  return low;
}

/// Offers the logits whose bits are set, of 64 from first_id on; raises the bar when the state is
/// full: what does not exceed the least of k that came before cannot be among the k largest.
LUNA_ISA_INLINE void offer_hits(const float* row,
                                std::uint32_t first_id,
                                std::uint64_t hits,
                                int k,
                                float* bar,
                                LogitsState* state) {
  for (; hits != 0; hits &= hits - 1) {
    const std::uint32_t id = first_id + static_cast<std::uint32_t>(__builtin_ctzll(hits));
    offer(state, k, row[id], id);
  }
  if (state->n_candidates == k) {
    *bar = state->candidates[k - 1].logit;
  }
}

/// A chunk's candidates above the bar, and its sum of exp(logit - max): lane i mod 16, ascending.
LUNA_ISA_INLINE void score_chunk(
    const float* row, std::uint32_t first_id, int n, int k, float* bar, LogitsState* state) {
  const float* logits = row + first_id;
  const F top = set(state->max);
  F sum = set(0.0F);
  int i = 0;
  for (; i + 64 <= n; i += 64) {
    F v[4];
    F e[4];
    std::uint64_t hits = 0;
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      v[j] = load(logits + i + 16 * j);
      hits |= static_cast<std::uint64_t>(greater(v[j], set(*bar))) << (16 * j);
      e[j] = exp_lanes(sub(v[j], top));
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      sum = add(sum, e[j]);
    }
    if (hits != 0) {
      offer_hits(row, first_id + static_cast<std::uint32_t>(i), hits, k, bar, state);
    }
  }
  for (; i < n; i += 16) {
    const int rest = n - i < 16 ? n - i : 16;
    const F v = select_range(load_part(logits + i, rest), set(-__builtin_inff()), 0, rest);
    sum = add(sum, select_range(exp_lanes(sub(v, top)), set(0.0F), 0, rest));
    const unsigned hits = greater(v, set(*bar));
    if (hits != 0) {
      offer_hits(row, first_id + static_cast<std::uint32_t>(i), hits, k, bar, state);
    }
  }
  state->sum = sum_lanes(sum);
}

void logits_chunks(const LogitsArgs& args) {
  Maxima all = no_maxima();
  for (std::uint32_t first = 0, c = 0; first < args.n; first += kLogitsChunk, ++c) {
    const std::uint32_t n = args.n - first < kLogitsChunk ? args.n - first : kLogitsChunk;
    const Maxima maxima = maxima_of(args.row + args.first_id + first, static_cast<int>(n));
    args.states[c].max = largest_of(maxima);
    for (int part = 0; part < kMaximaParts; ++part) {
      all.parts[part] = max(maxima.parts[part], all.parts[part]);
    }
  }
  float bar = args.k == 0 ? __builtin_inff() : bar_of(all, args.k);
  for (std::uint32_t first = 0, c = 0; first < args.n; first += kLogitsChunk, ++c) {
    const std::uint32_t n = args.n - first < kLogitsChunk ? args.n - first : kLogitsChunk;
    args.states[c].n_candidates = 0;
    args.states[c].pad = 0;
    score_chunk(
        args.row, args.first_id + first, static_cast<int>(n), args.k, &bar, args.states + c);
  }
}
