// Attention over paged KV. Included like vector_math.inl, after bf16_chain.inl.
//
// A query is one head of one row; a tile is up to kQueryRows queries, whatever rows they belong to.
// Prefill rows, decode rows and slices go through the same code, so they have the same bits.

inline constexpr int kQueryRows = 4;

/// One tile's working memory, carved from the caller's scratch.
struct AttendMemory {
  float* q;           // [kQueryTerms][kQueryRows][head_dim]
  float* scores;      // [kQueryRows][kPartitionTokens]
  float* weights;     // [kProbabilityTerms][kQueryRows][kPartitionTokens]
  std::byte* v_tail;  // [16][head_dim][2] BF16: a 32-token step with zeros beyond what is written
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
  m.v_tail = reinterpret_cast<std::byte*>(p);
  p += 16 * head_dim;
  m.stack = p;
  return m;
}

/// A tile of queries: which positions each one sees.
struct QueryTile {
  const AttendArgs* args;
  std::int64_t first_query;  // row * group_heads + head
  int n_queries;
  std::int64_t n_written;  // positions below this are in the KV

  std::int64_t row(int query) const { return (first_query + query) / args->group_heads; }
  std::int64_t head(int query) const { return (first_query + query) % args->group_heads; }
  std::int64_t last_seen(int query) const { return args->first_position + row(query) + 1; }
  std::int64_t first_seen(int query) const {
    const std::int64_t first = last_seen(query) - args->window;
    return args->window == 0 || first < 0 ? 0 : first;
  }
};

/// One KV head of the block that holds a position.
LUNA_ISA_INLINE std::byte* kv_head_at(const KvView& kv, int kv_head, std::int64_t position) {
  const std::int64_t block = position / kv.shape.block_tokens - kv.first_block;
  return kv.base + static_cast<std::size_t>(kv.table[block]) * kv.block_stride_bytes +
         static_cast<std::size_t>(kv_head) * kv_head_bytes(kv.shape);
}

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

/// Scores of 16 positions from `position` on, scaled and capped, for all queries of the tile.
template <int queries>
void score_tokens(const QueryTile& tile, const AttendMemory& memory, std::int64_t position) {
  const AttendArgs& args = *tile.args;
  const int head_dim = args.kv.shape.head_dim;
  const std::int64_t in_block = position % args.kv.shape.block_tokens;
  const std::byte* k = kv_head_at(args.kv, args.kv_head, position) +
                       static_cast<std::size_t>(in_block) * static_cast<std::size_t>(head_dim) * 2;
  F acc[queries];
  for (int i = 0; i < queries; ++i) {
    acc[i] = set(0.0F);
  }
  for (int d = 0; d < head_dim; d += kChainStep) {
    const ChainRows a{memory.q + d, head_dim, std::int64_t{kQueryRows} * head_dim};
    chain_step<queries, kQueryTerms>(acc, a, k + static_cast<std::size_t>(d) * 32, 64);
  }
  float* scores = memory.scores + position % kPartitionTokens;
  for (int i = 0; i < queries; ++i) {
    F s = mul(acc[i], set(args.scale));
    if (args.softcap != 0.0F) {
      s = softcap_lanes(s, set(args.softcap));
    }
    store(scores + i * kPartitionTokens, s);
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

/// Softmax of one query over its positions; weights outside `seen` within `all` become exact zeros.
/// Returns max and sum; sum 0 where it sees nothing.
LUNA_ISA_INLINE void weigh_tokens(
    const AttendMemory& memory, int query, TokenRange all, TokenRange seen, float* state) {
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
    for (int t = 0; t < kProbabilityTerms; ++t) {
      const F term = round_to_bf16(rest);
      store(weights + t * kQueryRows * kPartitionTokens + i, term);
      rest = sub(rest, term);
    }
  }
  state[0] = score_max;
  state[1] = seen.first < seen.last ? sum_lanes(sum) : 0.0F;
}

/// V of 32 positions: in place, or a copy with zeros beyond the positions written (0 times what an
/// unwritten slot holds may be NaN).
const std::byte* v_step(const QueryTile& tile, const AttendMemory& memory, std::int64_t position) {
  const AttendArgs& args = *tile.args;
  const auto head_dim = static_cast<std::size_t>(args.kv.shape.head_dim);
  const auto block_tokens = static_cast<std::size_t>(args.kv.shape.block_tokens);
  const auto in_block = static_cast<std::size_t>(position) % block_tokens;
  const std::byte* v =
      kv_head_at(args.kv, args.kv_head, position) + (block_tokens + in_block) * head_dim * 2;
  const std::int64_t written = tile.n_written - position;
  if (written >= 32) {
    return v;
  }
  const I low = set_word(0xFFFF);
  for (std::int64_t t = 0; t < 16; ++t) {
    for (std::size_t d = 0; d < head_dim; d += 16) {
      const std::size_t at = (static_cast<std::size_t>(t) * head_dim + d) * 4;
      const I pair = load_words(v + at);
      store_words(memory.v_tail + at,
                  2 * t + 1 < written ? pair
                  : 2 * t < written   ? and_words(pair, low)
                                      : set_word(0));
    }
  }
  return memory.v_tail;
}

/// out[query] = sum over the positions of weight * V, for all queries of the tile.
template <int queries>
void sum_values(const QueryTile& tile,
                const AttendMemory& memory,
                std::int64_t start,
                TokenRange all,
                float* states) {
  const int head_dim = tile.args->kv.shape.head_dim;
  const std::int64_t state_stride = state_floats(head_dim);
  const int first = all.first / kChainStep * kChainStep;
  for (int i = first; i < all.last; i += kChainStep) {
    const std::byte* v = v_step(tile, memory, start + i);
    const ChainRows a{memory.weights + i, kPartitionTokens, kQueryRows * kPartitionTokens};
    for (int d = 0; d < head_dim; d += 16) {
      F acc[queries];
      for (int q = 0; q < queries; ++q) {
        acc[q] = i == first ? set(0.0F) : load(states + q * state_stride + 16 + d);
      }
      chain_step<queries, kProbabilityTerms>(
          acc, a, v + static_cast<std::size_t>(d) * 4, static_cast<std::size_t>(head_dim) * 4);
      // Steps left out as wholly masked would add +0, which turns -0 into +0: so does the end.
      const bool is_last = i + kChainStep >= all.last;
      for (int q = 0; q < queries; ++q) {
        store(states + q * state_stride + 16 + d, is_last ? add(acc[q], set(0.0F)) : acc[q]);
      }
    }
  }
}

/// The states of one partition for all queries of a tile.
template <int queries>
void attend_partition(const QueryTile& tile,
                      const AttendMemory& memory,
                      std::int64_t partition,
                      float* states) {
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
  for (int i = all.first; i < all.last; i += 16) {
    score_tokens<queries>(tile, memory, start + i);
  }
  for (int q = 0; q < queries; ++q) {
    const TokenRange seen = within_partition(tile.first_seen(q), tile.last_seen(q), start);
    weigh_tokens(memory, q, all, seen, states + q * state_stride);
  }
  sum_values<queries>(tile, memory, start, all, states);
}
