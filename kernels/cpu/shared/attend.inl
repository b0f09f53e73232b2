// Attention over paged KV. Included like vector_math.inl, after kv.inl.
//
// A query is one head of one row. Queries go over KV in panels: the tiles of a panel, each as many
// queries as registers hold, take a step of 32 positions one after the other, while it is in L1.
// Prefill rows, decode rows and slices go through the same code, so they have the same bits.

inline constexpr int kTileQueries = 4;
inline constexpr int kPanelQueries = 12;  // whole tiles of three and of four

/// A panel's working memory, carved from the caller's scratch.
struct AttendMemory {
  ChainValue* q;        // [kQueryTerms][kPanelQueries][head_dim]
  float* scores;        // [kPanelQueries][kPartitionTokens]
  ChainValue* weights;  // [kProbabilityTerms][kPanelQueries][kPartitionTokens]
  std::byte* v_copy;    // [16][head_dim][2] BF16: a 32-token step with zeros where nobody looks
  float* stack;         // [kStackDepth][kPanelQueries][state_floats]

  /// That of the queries from `first` on.
  LUNA_MEMBER_INLINE AttendMemory from(std::int64_t first, int head_dim) const {
    AttendMemory rest = *this;
    rest.q += first * head_dim;
    rest.scores += first * kPartitionTokens;
    rest.weights += first * kPartitionTokens;
    return rest;
  }
};

/// Tree nodes waiting for their right sibling: one a level at most, and the one being made.
inline constexpr int kStackDepth = 33;

LUNA_ISA_INLINE AttendMemory place_attend_memory(int head_dim, void* scratch) {
  AttendMemory m;
  auto* p = static_cast<float*>(scratch);
  m.q = reinterpret_cast<ChainValue*>(p);
  p += kQueryTerms * kPanelQueries * head_dim;
  m.scores = p;
  p += kPanelQueries * kPartitionTokens;
  m.weights = reinterpret_cast<ChainValue*>(p);
  p += kProbabilityTerms * kPanelQueries * kPartitionTokens;
  m.v_copy = reinterpret_cast<std::byte*>(p);
  p += 16 * head_dim;
  m.stack = p;
  return m;
}

/// Positions relative to a partition's start, within it.
struct TokenRange {
  int first;
  int last;
  bool contains(int i) const { return i >= first && i < last; }
  bool contains(int begin, int end) const { return begin >= first && end <= last; }
};
LUNA_ISA_INLINE TokenRange within_partition(std::int64_t first,
                                            std::int64_t last,
                                            std::int64_t start) {
  const auto clamp = [](std::int64_t at) {
    return static_cast<int>(at < 0 ? 0 : at > kPartitionTokens ? kPartitionTokens : at);
  };
  return {clamp(first - start), clamp(last - start)};
}

/// Consecutive queries, a panel or a tile of it: which positions each one sees.
struct Queries {
  const AttendArgs* args;
  std::int64_t first;  // row * group_heads + head
  int count;
  std::int64_t fetch_end =
      INT64_MAX;  // the caller's KV may end here: nothing is fetched from there

  std::int64_t row(int query) const { return (first + query) / args->group_heads; }
  std::int64_t head(int query) const { return (first + query) % args->group_heads; }
  std::int64_t last_seen(int query) const { return args->first_position + row(query) + 1; }
  std::int64_t first_seen(int query) const {
    const std::int64_t from = last_seen(query) - args->window;
    return args->window == 0 || from < 0 ? 0 : from;
  }
  /// What a query sees of the partition from `start` on.
  TokenRange seen(int query, std::int64_t start) const {
    return within_partition(first_seen(query), last_seen(query), start);
  }
  /// Whole chain steps around what any of them sees of a partition: what lies outside has weight
  /// zero and changes nothing. Empty where nobody sees anything.
  TokenRange steps(std::int64_t start) const {
    const TokenRange all = within_partition(first_seen(0), last_seen(count - 1), start);
    if (all.first >= all.last) {
      return {0, 0};
    }
    return {all.first / kChainStep * kChainStep,
            (all.last + kChainStep - 1) / kChainStep * kChainStep};
  }
  /// The KV comes from memory with the first ones, the others find it in the cache.
  bool come_first() const { return first == 0; }
};

/// Queries of a tile: three where that makes whole rows, so that no tile straddles two of them.
LUNA_ISA_INLINE int tile_queries(const AttendArgs& args) {
  return args.group_heads % 3 == 0 ? 3 : kTileQueries;
}

/// Calls body(tile, its memory) for the tiles of a panel.
template <class Body>
LUNA_ISA_INLINE void for_tiles(const Queries& panel, const AttendMemory& memory, Body body) {
  const int most = tile_queries(*panel.args);
  for (int first = 0; first < panel.count; first += most) {
    Queries tile = panel;
    tile.first += first;
    tile.count = panel.count - first < most ? panel.count - first : most;
    body(tile, memory.from(first, panel.args->kv.shape.head_dim));
  }
}

/// The rows of Q in BF16 terms.
void split_queries(const Queries& panel, const AttendMemory& memory) {
  const int head_dim = panel.args->kv.shape.head_dim;
  for (int i = 0; i < panel.count; ++i) {
    const float* q = panel.args->q + panel.row(i) * panel.args->q_stride + panel.head(i) * head_dim;
    for (int d = 0; d < head_dim; d += 16) {
      store_terms<kQueryTerms>(
          load(q + d), memory.q + i * head_dim + d, std::int64_t{kPanelQueries} * head_dim);
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
LUNA_ISA_INLINE std::ptrdiff_t fetch_distance(const Queries& tile,
                                              std::int64_t position,
                                              bool is_value) {
  if (!tile.come_first()) {
    return 0;
  }
  const KvView& kv = tile.args->kv;
  const std::int64_t start = position / kPartitionTokens * kPartitionTokens;
  const std::int64_t seen_end = tile.last_seen(tile.count - 1);
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

/// A step of 32 positions: where it lies, and what its K and V fetch ahead.
struct KvStep {
  std::int64_t position;
  KvHeadParts head;
  std::ptrdiff_t fetch_ahead;
};

/// Scores of a step for all queries of a tile, scaled and capped.
template <int queries, KvType type>
void score_step(const Queries& tile, const AttendMemory& memory, const KvStep& step) {
  constexpr int kStrips = strips_beside(queries * kQueryTerms);
  const AttendArgs& args = *tile.args;
  const auto head_dim = static_cast<std::size_t>(args.kv.shape.head_dim);
  const std::int64_t q_stride = args.kv.shape.head_dim;
  for (int first = 0; first < kChainStep; first += 16 * kStrips) {
    KvHeadParts head = step.head;
    head.slot += static_cast<std::size_t>(first);
    F acc[kStrips][queries];
    for (int s = 0; s < kStrips; ++s) {
      for (int i = 0; i < queries; ++i) {
        acc[s][i] = set(0.0F);
      }
    }
    for (std::size_t d = 0; d < head_dim; d += kChainStep) {
      chain_step<kStrips, queries, kQueryTerms>(acc,
                                                {memory.q + d, q_stride, kPanelQueries * q_stride},
                                                k_lines<type>(head, head_dim, d, step.fetch_ahead));
    }
    float* scores = memory.scores + step.position % kPartitionTokens + first;
    for (int s = 0; s < kStrips; ++s) {
      F scale = set(args.scale);
      if constexpr (type == KvType::int8) {
        scale = mul(load_scales(head.k_scales + (head.slot + 16 * static_cast<std::size_t>(s)) * 2),
                    scale);
      }
      for (int i = 0; i < queries; ++i) {
        F score = mul(acc[s][i], scale);
        if (args.softcap != 0.0F) {
          score = softcap_lanes(score, set(args.softcap));
        }
        store(scores + i * kPartitionTokens + 16 * s, score);
      }
    }
  }
}

/// x where `seen` covers a position, `other` elsewhere; for 16 positions from `first` on.
LUNA_ISA_INLINE F where_seen(F x, F other, TokenRange seen, int first) {
  return seen.contains(first, first + 16)
             ? x
             : select_range(x, other, seen.first - first, seen.last - first);
}

/// Softmax of one query of a tile over its positions, times the scales of V where it has any;
/// weights outside what it sees within `steps` become exact zeros. Writes max and sum; sum 0 where
/// it sees nothing.
template <KvType type>
LUNA_ISA_INLINE void weigh_tokens(const Queries& tile,
                                  const AttendMemory& memory,
                                  int query,
                                  std::int64_t start,
                                  TokenRange steps,
                                  float* state) {
  const TokenRange seen = tile.seen(query, start);
  const float* scores = memory.scores + query * kPartitionTokens;
  ChainValue* weights = memory.weights + query * kPartitionTokens;
  const F absent = set(-__builtin_inff());
  F largest = absent;
  for (int i = steps.first; i < steps.last; i += 16) {
    largest = max(largest, where_seen(load(scores + i), absent, seen, i));
  }
  const float score_max = max_lanes(largest);
  F sum = set(0.0F);
  for (int i = steps.first; i < steps.last; i += 16) {
    const F p = where_seen(exp_lanes(sub(load(scores + i), set(score_max))), set(0.0F), seen, i);
    sum = add(sum, p);
    F weight = p;
    if constexpr (type == KvType::int8) {
      const KvHeadParts head = kv_parts_at<type>(tile.args->kv, tile.args->kv_head, start + i);
      weight = where_seen(mul(p, load_scales(head.v_scales + head.slot * 2)), set(0.0F), seen, i);
    }
    store_terms<kProbabilityTerms>(weight, weights + i, kPanelQueries * kPartitionTokens);
  }
  state[0] = score_max;
  state[1] = seen.first < seen.last ? sum_lanes(sum) : 0.0F;
}

/// A copy of V of 32 positions with zeros where the query does not look: 0 times what a stale slot,
/// or one of a later row, holds may be NaN.
const std::byte* v_seen_by(const Queries& tile,
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

/// V of a step, and whether it is the first and the last of a partition's that a tile takes.
struct ValueStep {
  const std::byte* v;
  std::ptrdiff_t fetch_ahead;
  bool is_first;
  bool is_last;
};

/// out[query] += sum over 32 positions of weight * V. `weights` and `states` begin with the first
/// query.
template <int queries, KvType type>
LUNA_ISA_INLINE void sum_step(const ChainValue* weights,
                              const ValueStep& step,
                              int head_dim,
                              float* states) {
  constexpr int kStrips = strips_beside(queries * kProbabilityTerms);
  const std::int64_t stride = state_floats(head_dim);
  const ChainRows a{weights, kPartitionTokens, kPanelQueries * kPartitionTokens};
  for (int d = 0; d < head_dim; d += 16 * kStrips) {
    F acc[kStrips][queries];
    for (int s = 0; s < kStrips; ++s) {
      for (int q = 0; q < queries; ++q) {
        acc[s][q] = step.is_first ? set(0.0F) : load(states + q * stride + 16 + d + 16 * s);
      }
    }
    chain_step<kStrips, queries, kProbabilityTerms>(
        acc,
        a,
        v_lines<type>(step.v,
                      static_cast<std::size_t>(head_dim),
                      static_cast<std::size_t>(d),
                      step.fetch_ahead));
    // Steps left out as wholly masked would add +0, which turns -0 into +0: so does the end.
    for (int s = 0; s < kStrips; ++s) {
      for (int q = 0; q < queries; ++q) {
        store(states + q * stride + 16 + d + 16 * s,
              step.is_last ? add(acc[s][q], set(0.0F)) : acc[s][q]);
      }
    }
  }
}

/// sum_step() for all queries of a tile, none of which meets what it does not see.
template <int queries, KvType type>
void sum_seen_values(const Queries& tile,
                     const AttendMemory& memory,
                     std::int64_t position,
                     ValueStep step,
                     float* states) {
  const int head_dim = tile.args->kv.shape.head_dim;
  const ChainValue* weights = memory.weights + position % kPartitionTokens;
  const bool all_see_all =
      position >= tile.first_seen(queries - 1) && position + kChainStep <= tile.last_seen(0);
  if (type == KvType::int8 || all_see_all) {  // codes are finite
    sum_step<queries, type>(weights, step, head_dim, states);
    return;
  }
  const std::byte* v = step.v;
  step.fetch_ahead = 0;  // from a copy it would lead nowhere
  if (tile.row(0) == tile.row(queries - 1)) {
    step.v = v_seen_by(tile, 0, memory, v, position);
    sum_step<queries, type>(weights, step, head_dim, states);
    return;
  }
  for (int q = 0; q < queries; ++q) {
    step.v = v_seen_by(tile, q, memory, v, position);
    sum_step<1, type>(
        weights + q * kPartitionTokens, step, head_dim, states + q * state_floats(head_dim));
  }
}

/// Calls body(number of the tile's queries, as a constant).
template <class Body>
LUNA_ISA_INLINE void with_count(const Queries& tile, Body body) {
  switch (tile.count) {
    case 1:
      return body(std::integral_constant<int, 1>{});
    case 2:
      return body(std::integral_constant<int, 2>{});
    case 3:
      return body(std::integral_constant<int, 3>{});
    default:
      return body(std::integral_constant<int, kTileQueries>{});
  }
}
static_assert(kTileQueries == 4);

/// The scores of a panel over the partition from `start` on.
template <KvType type>
void score_partition(const Queries& panel, const AttendMemory& memory, std::int64_t start) {
  const TokenRange steps = panel.steps(start);
  for (int i = steps.first; i < steps.last; i += kChainStep) {
    KvStep step{start + i,
                kv_parts_at<type>(panel.args->kv, panel.args->kv_head, start + i),
                fetch_distance<type>(panel, start + i, false)};
    for_tiles(panel, memory, [&](const Queries& tile, const AttendMemory& of_tile) {
      if (tile.steps(start).contains(i)) {
        with_count(tile, [&](auto queries) { score_step<queries, type>(tile, of_tile, step); });
        step.fetch_ahead = 0;
      }
    });
  }
}

/// out[query] = sum over the positions of weight * V, for all queries of a panel.
template <KvType type>
void sum_partition(const Queries& panel,
                   const AttendMemory& memory,
                   std::int64_t start,
                   float* states) {
  const std::int64_t stride = state_floats(panel.args->kv.shape.head_dim);
  const std::size_t token_bytes =
      static_cast<std::size_t>(panel.args->kv.shape.head_dim) * kv_code_bytes(type);
  const TokenRange steps = panel.steps(start);
  for (int i = steps.first; i < steps.last; i += kChainStep) {
    const KvHeadParts head = kv_parts_at<type>(panel.args->kv, panel.args->kv_head, start + i);
    ValueStep step{head.v + head.slot * token_bytes,
                   fetch_distance<type>(panel, start + i, true),
                   false,
                   false};
    for_tiles(panel, memory, [&](const Queries& tile, const AttendMemory& of_tile) {
      const TokenRange own = tile.steps(start);
      if (own.contains(i)) {
        step.is_first = i == own.first;
        step.is_last = i + kChainStep == own.last;
        float* of_first = states + (tile.first - panel.first) * stride;
        with_count(tile, [&](auto queries) {
          sum_seen_values<queries, type>(tile, of_tile, start + i, step, of_first);
        });
        step.fetch_ahead = 0;
      }
    });
  }
}

/// The states of one partition for all queries of a panel.
template <KvType type>
void attend_partition(const Queries& panel,
                      const AttendMemory& memory,
                      std::int64_t partition,
                      float* states) {
  const std::int64_t start = partition * kPartitionTokens;
  const std::int64_t stride = state_floats(panel.args->kv.shape.head_dim);
  score_partition<type>(panel, memory, start);
  for_tiles(panel, memory, [&](const Queries& tile, const AttendMemory& of_tile) {
    for (int q = 0; q < tile.count; ++q) {
      weigh_tokens<type>(tile,
                         of_tile,
                         q,
                         start,
                         tile.steps(start),
                         states + (tile.first - panel.first + q) * stride);
    }
  });
  sum_partition<type>(panel, memory, start, states);
}
