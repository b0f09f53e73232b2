// Attention over paged KV. Included like vector_math.inl, after kv.inl.
//
// A query is one head of one row; a tile is up to kQueryRows queries, whatever rows they belong to.
// Prefill rows, decode rows and slices go through the same code, so they have the same bits.

inline constexpr int kQueryRows = 4;

/// One tile's working memory, carved from the caller's scratch.
struct AttendMemory {
  float* q;           // [kQueryTerms][kQueryRows][head_dim]
  float* scores;      // [kQueryRows][kPartitionTokens]
  float* weights;     // [kProbabilityTerms][kQueryRows][kPartitionTokens]
  std::byte* v_copy;  // [16][head_dim][2] BF16: a 32-token step with zeros where nobody looks
  float* stack;       // [kStackDepth][kQueryRows][state_floats]
};

/// Tree nodes waiting for their right sibling: one a level at most, and the one being made.
inline constexpr int kStackDepth = 33;

LUNA_ISA_INLINE AttendMemory place_attend_memory(int head_dim, void* scratch) {
  AttendMemory m;
  auto* p = static_cast<float*>(scratch);
  m.q = p;
  p += kQueryTerms * kQueryRows * head_dim;
  m.scores = p;
  p += kQueryRows * kPartitionTokens;
  m.weights = p;
  p += kProbabilityTerms * kQueryRows * kPartitionTokens;
  m.v_copy = reinterpret_cast<std::byte*>(p);
  p += 16 * head_dim;
  m.stack = p;
  return m;
}

/// A tile of queries: which positions each one sees.
struct QueryTile {
  const AttendArgs* args;
  std::int64_t first_query;  // row * group_heads + head
  int n_queries;
  std::int64_t fetch_end =
      INT64_MAX;  // the caller's KV may end here: nothing is fetched from there

  std::int64_t row(int query) const { return (first_query + query) / args->group_heads; }
  std::int64_t head(int query) const { return (first_query + query) % args->group_heads; }
  std::int64_t last_seen(int query) const { return args->first_position + row(query) + 1; }
  std::int64_t first_seen(int query) const {
    const std::int64_t first = last_seen(query) - args->window;
    return args->window == 0 || first < 0 ? 0 : first;
  }
  /// The KV comes from memory with the first tile, the others find it in the cache.
  bool comes_first() const { return first_query == 0; }
};

/// The rows of Q in BF16 terms.
void split_queries(const QueryTile& tile, const AttendMemory& memory) {
  const int head_dim = tile.args->kv.shape.head_dim;
  for (int i = 0; i < tile.n_queries; ++i) {
    const float* q = tile.args->q + tile.row(i) * tile.args->q_stride + tile.head(i) * head_dim;
    for (int d = 0; d < head_dim; d += 16) {
      F rest = load(q + d);
      for (int t = 0; t < kQueryTerms; ++t) {
        const F term = round_to_bf16(rest);
        store(memory.q + (t * kQueryRows + i) * head_dim + d, term);
        rest = sub(rest, term);
      }
    }
  }
}

/// KV comes from memory in steps of 32 positions, K of a partition and then its V. The hardware
/// does not foresee the way from block to block, so each line asks for the same line of the step
/// kFetchSteps later.
inline constexpr std::int64_t kFetchSteps = 4;

/// From K (or V) of a position to what is read kFetchSteps later; 0 if nothing is, or if the cache
/// holds it.
template <KvType type>
LUNA_ISA_INLINE std::ptrdiff_t fetch_distance(const QueryTile& tile,
                                              std::int64_t position,
                                              bool is_value) {
  if (!tile.comes_first()) {
    return 0;
  }
  const KvView& kv = tile.args->kv;
  const std::int64_t start = position / kPartitionTokens * kPartitionTokens;
  const std::int64_t seen_end = tile.last_seen(tile.n_queries - 1);
  std::int64_t end = start + kPartitionTokens;
  end = end < seen_end ? end : (seen_end + kChainStep - 1) / kChainStep * kChainStep;
  std::int64_t target = position + kFetchSteps * kChainStep;
  bool target_is_value = is_value;
  if (target >= end) {  // V of this partition, or K of the next one
    target = (is_value ? end : start) + (target - end);
    target_is_value = !is_value;
    if (target >= seen_end || target >= tile.fetch_end || (!is_value && target >= end)) {
      return 0;
    }
  }
  const std::size_t token_bytes = static_cast<std::size_t>(kv.shape.head_dim) * kv_code_bytes(type);
  const KvHeadParts from = kv_parts_at<type>(kv, tile.args->kv_head, position);
  const KvHeadParts to = kv_parts_at<type>(kv, tile.args->kv_head, target);
  return ((target_is_value ? to.v : to.k) + to.slot * token_bytes) -
         ((is_value ? from.v : from.k) + from.slot * token_bytes);
}

/// 16 BF16 scales.
LUNA_ISA_INLINE F load_scales(const std::byte* p) {
  return as_floats(shift_left<16>(load_halves(p)));
}

/// Scores of 16 positions a strip from `position` on, scaled and capped, for all queries of the
/// tile.
template <int queries, int strips, KvType type>
void score_tokens(const QueryTile& tile, const AttendMemory& memory, std::int64_t position) {
  const AttendArgs& args = *tile.args;
  const auto head_dim = static_cast<std::size_t>(args.kv.shape.head_dim);
  const KvHeadParts head = kv_parts_at<type>(args.kv, args.kv_head, position);
  const std::ptrdiff_t fetch_ahead = fetch_distance<type>(tile, position, false);
  F acc[strips][queries];
  for (int s = 0; s < strips; ++s) {
    for (int i = 0; i < queries; ++i) {
      acc[s][i] = set(0.0F);
    }
  }
  const std::int64_t q_stride = args.kv.shape.head_dim;
  for (std::size_t d = 0; d < head_dim; d += kChainStep) {
    chain_step<strips, queries, kQueryTerms>(acc,
                                             {memory.q + d, q_stride, kQueryRows * q_stride},
                                             k_lines<type>(head, head_dim, d, fetch_ahead));
  }
  for (int s = 0; s < strips; ++s) {
    F scale = set(args.scale);
    if constexpr (type == KvType::int8) {
      scale = mul(load_scales(head.k_scales + (head.slot + 16 * static_cast<std::size_t>(s)) * 2),
                  scale);
    }
    float* scores = memory.scores + position % kPartitionTokens + 16 * s;
    for (int i = 0; i < queries; ++i) {
      F score = mul(acc[s][i], scale);
      if (args.softcap != 0.0F) {
        score = softcap_lanes(score, set(args.softcap));
      }
      store(scores + i * kPartitionTokens, score);
    }
  }
}

/// Positions of a partition that a query or a tile sees, relative to the partition's start.
struct TokenRange {
  int first;
  int last;
};
LUNA_ISA_INLINE TokenRange within_partition(std::int64_t first,
                                            std::int64_t last,
                                            std::int64_t start) {
  const std::int64_t a = first - start;
  const std::int64_t b = last - start;
  return {static_cast<int>(a < 0                  ? 0
                           : a > kPartitionTokens ? kPartitionTokens
                                                  : a),
          static_cast<int>(b < 0                  ? 0
                           : b > kPartitionTokens ? kPartitionTokens
                                                  : b)};
}

/// Softmax of one query over its positions, times the scales of V where it has any; weights outside
/// `seen` within `all` become exact zeros. Writes max and sum; sum 0 where it sees nothing.
template <KvType type>
LUNA_ISA_INLINE void weigh_tokens(const QueryTile& tile,
                                  const AttendMemory& memory,
                                  int query,
                                  std::int64_t start,
                                  TokenRange all,
                                  float* state) {
  const TokenRange seen = within_partition(tile.first_seen(query), tile.last_seen(query), start);
  const float* scores = memory.scores + query * kPartitionTokens;
  float* weights = memory.weights + query * kPartitionTokens;
  const F absent = set(-__builtin_inff());
  F largest = absent;
  for (int i = all.first; i < all.last; i += 16) {
    largest = max(largest, select_range(load(scores + i), absent, seen.first - i, seen.last - i));
  }
  const float score_max = max_lanes(largest);
  F sum = set(0.0F);
  for (int i = all.first; i < all.last; i += 16) {
    const F p = select_range(
        exp_lanes(sub(load(scores + i), set(score_max))), set(0.0F), seen.first - i, seen.last - i);
    sum = add(sum, p);
    F rest = p;
    if constexpr (type == KvType::int8) {
      const KvHeadParts head = kv_parts_at<type>(tile.args->kv, tile.args->kv_head, start + i);
      rest = select_range(mul(p, load_scales(head.v_scales + head.slot * 2)),
                          set(0.0F),
                          seen.first - i,
                          seen.last - i);
    }
    for (int t = 0; t < kProbabilityTerms; ++t) {
      const F term = round_to_bf16(rest);
      store(weights + t * kQueryRows * kPartitionTokens + i, term);
      rest = sub(rest, term);
    }
  }
  state[0] = score_max;
  state[1] = seen.first < seen.last ? sum_lanes(sum) : 0.0F;
}

/// A copy of V of 32 positions with zeros where the query does not look: 0 times what a stale slot,
/// or one of a later row, holds may be NaN.
const std::byte* v_seen_by(const QueryTile& tile,
                           int query,
                           const AttendMemory& memory,
                           const std::byte* v,
                           std::int64_t position) {
  const auto head_dim = static_cast<std::size_t>(tile.args->kv.shape.head_dim);
  const std::int64_t first = tile.first_seen(query) - position;
  const std::int64_t last = tile.last_seen(query) - position;
  const auto is_seen = [=](std::int64_t token) { return token >= first && token < last; };
  for (std::int64_t t = 0; t < 16; ++t) {
    const std::uint32_t mask =
        (is_seen(2 * t) ? 0xFFFFU : 0U) | (is_seen(2 * t + 1) ? 0xFFFF0000U : 0U);
    const I keep = set_word(static_cast<std::int32_t>(mask));
    for (std::size_t d = 0; d < head_dim; d += 16) {
      const std::size_t at = (static_cast<std::size_t>(t) * head_dim + d) * 4;
      store_words(memory.v_copy + at, and_words(load_words(v + at), keep));
    }
  }
  return memory.v_copy;
}

/// Which of a partition's steps of 32 positions this is.
struct StepPlace {
  bool is_first;
  bool is_last;
  std::ptrdiff_t fetch_ahead;
};

/// out[query] += sum over 32 positions of weight * V. `weights` and `states` begin with the first
/// query.
template <int queries, KvType type>
LUNA_ISA_INLINE void sum_step(
    const float* weights, const std::byte* v, int head_dim, StepPlace place, float* states) {
  constexpr int kStrips = strips_beside(queries);
  const std::int64_t stride = state_floats(head_dim);
  const ChainRows a{weights, kPartitionTokens, kQueryRows * kPartitionTokens};
  for (int d = 0; d < head_dim; d += 16 * kStrips) {
    F acc[kStrips][queries];
    for (int s = 0; s < kStrips; ++s) {
      for (int q = 0; q < queries; ++q) {
        acc[s][q] = place.is_first ? set(0.0F) : load(states + q * stride + 16 + d + 16 * s);
      }
    }
    chain_step<kStrips, queries, kProbabilityTerms>(
        acc,
        a,
        v_lines<type>(
            v, static_cast<std::size_t>(head_dim), static_cast<std::size_t>(d), place.fetch_ahead));
    // Steps left out as wholly masked would add +0, which turns -0 into +0: so does the end.
    for (int s = 0; s < kStrips; ++s) {
      for (int q = 0; q < queries; ++q) {
        store(states + q * stride + 16 + d + 16 * s,
              place.is_last ? add(acc[s][q], set(0.0F)) : acc[s][q]);
      }
    }
  }
}

/// out[query] = sum over the positions of weight * V, for all queries of the tile.
template <int queries, KvType type>
void sum_values(const QueryTile& tile,
                const AttendMemory& memory,
                std::int64_t start,
                TokenRange all,
                float* states) {
  const AttendArgs& args = *tile.args;
  const int head_dim = args.kv.shape.head_dim;
  const std::size_t token_bytes = static_cast<std::size_t>(head_dim) * kv_code_bytes(type);
  const bool is_one_row = tile.row(0) == tile.row(queries - 1);
  for (int i = all.first; i < all.last; i += kChainStep) {
    const std::int64_t position = start + i;
    const KvHeadParts head = kv_parts_at<type>(args.kv, args.kv_head, position);
    const std::byte* v = head.v + head.slot * token_bytes;
    StepPlace place{
        i == all.first, i + kChainStep >= all.last, fetch_distance<type>(tile, position, true)};
    const float* weights = memory.weights + i;
    const bool all_see_all =
        position >= tile.first_seen(queries - 1) && position + kChainStep <= tile.last_seen(0);
    if (type == KvType::int8 || all_see_all) {  // codes are finite
      sum_step<queries, type>(weights, v, head_dim, place, states);
      continue;
    }
    place.fetch_ahead = 0;  // from a copy it would lead nowhere
    if (is_one_row) {
      v = v_seen_by(tile, 0, memory, v, position);
      sum_step<queries, type>(weights, v, head_dim, place, states);
    } else {
      for (int q = 0; q < queries; ++q) {
        sum_step<1, type>(weights + q * kPartitionTokens,
                          v_seen_by(tile, q, memory, v, position),
                          head_dim,
                          place,
                          states + q * state_floats(head_dim));
      }
    }
  }
}

/// The states of one partition for all queries of a tile.
template <int queries, KvType type>
void attend_partition(const QueryTile& tile,
                      const AttendMemory& memory,
                      std::int64_t partition,
                      float* states) {
  constexpr int kStrips = strips_beside(queries);
  const std::int64_t start = partition * kPartitionTokens;
  const std::int64_t state_stride = state_floats(tile.args->kv.shape.head_dim);
  const TokenRange seen_by_tile =
      within_partition(tile.first_seen(0), tile.last_seen(queries - 1), start);
  if (seen_by_tile.first >= seen_by_tile.last) {
    for (int q = 0; q < queries; ++q) {
      states[q * state_stride] = -__builtin_inff();
      states[q * state_stride + 1] = 0.0F;
    }
    return;
  }
  // Whole chain steps: what lies outside `seen` has weight zero and changes nothing.
  const TokenRange all{seen_by_tile.first / kChainStep * kChainStep,
                       (seen_by_tile.last + kChainStep - 1) / kChainStep * kChainStep};
  for (int i = all.first; i < all.last; i += 16 * kStrips) {
    score_tokens<queries, kStrips, type>(tile, memory, start + i);
  }
  for (int q = 0; q < queries; ++q) {
    weigh_tokens<type>(tile, memory, q, start, all, states + q * state_stride);
  }
  sum_values<queries, type>(tile, memory, start, all, states);
}
