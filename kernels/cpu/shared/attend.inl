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

/// Positions [first, last).
struct PositionRange {
  std::int64_t first;
  std::int64_t last;
};
/// Whole chain steps around what is seen of the partition from `start` on: what lies outside has
/// weight zero and changes nothing. Empty where nothing is seen.
LUNA_ISA_INLINE TokenRange steps_within(PositionRange seen, std::int64_t start) {
  const TokenRange tokens = within_partition(seen.first, seen.last, start);
  if (tokens.first >= tokens.last) {
    return {0, 0};
  }
  return {tokens.first / kChainStep * kChainStep,
          (tokens.last + kChainStep - 1) / kChainStep * kChainStep};
}

/// Consecutive queries whose accumulators fit registers.
struct QueryTile {
  const AttendArgs* args;
  std::int64_t first;  // row * group_heads + head
  int count;
  PositionRange seen_by_any;
  PositionRange seen_by_all;

  std::int64_t row(int query) const { return (first + query) / args->group_heads; }
  std::int64_t head(int query) const { return (first + query) % args->group_heads; }
  PositionRange seen_by(int query) const {
    const std::int64_t last = args->first_position + row(query) + 1;
    return {args->window == 0 || last < args->window ? 0 : last - args->window, last};
  }
};
LUNA_ISA_INLINE QueryTile make_tile(const AttendArgs& args, std::int64_t first, int count) {
  QueryTile tile{&args, first, count, {}, {}};
  const PositionRange of_first = tile.seen_by(0);
  const PositionRange of_last = tile.seen_by(count - 1);
  tile.seen_by_any = {of_first.first, of_last.last};
  tile.seen_by_all = {of_last.first, of_first.last};
  return tile;
}

/// The tiles of consecutive queries: of three where that makes whole rows, so that none straddles
/// two of them.
struct QueryPanel {
  const AttendArgs* args;
  std::int64_t first;  // query
  int count;           // of queries
  int n_tiles;
  QueryTile tiles[kPanelQueries / 3];
  /// The caller's KV may end here: nothing is fetched from there.
  std::int64_t fetch_end = INT64_MAX;

  PositionRange seen_by_any() const {
    return {tiles[0].seen_by_any.first, tiles[n_tiles - 1].seen_by_any.last};
  }
};
LUNA_ISA_INLINE QueryPanel make_panel(const AttendArgs& args, std::int64_t first) {
  QueryPanel panel;
  panel.args = &args;
  panel.first = first;
  const std::int64_t left = args.n_rows * args.group_heads - first;
  panel.count = static_cast<int>(left < kPanelQueries ? left : kPanelQueries);
  panel.n_tiles = 0;
  const int most = args.group_heads % 3 == 0 ? 3 : kTileQueries;
  for (int at = 0; at < panel.count; at += most) {
    const int rest = panel.count - at;
    panel.tiles[panel.n_tiles++] = make_tile(args, first + at, rest < most ? rest : most);
  }
  return panel;
}

/// Calls body(tile, number of its queries as a constant, its memory) for the tiles of a panel.
template <class Body>
LUNA_ISA_INLINE void for_tiles(const QueryPanel& panel, const AttendMemory& memory, Body body) {
  for (int t = 0; t < panel.n_tiles; ++t) {
    const QueryTile& tile = panel.tiles[t];
    const AttendMemory own = memory.from(tile.first - panel.first, panel.args->kv.shape.head_dim);
    switch (tile.count) {
      case 1:
        body(tile, std::integral_constant<int, 1>{}, own);
        break;
      case 2:
        body(tile, std::integral_constant<int, 2>{}, own);
        break;
      case 3:
        body(tile, std::integral_constant<int, 3>{}, own);
        break;
      default:
        body(tile, std::integral_constant<int, kTileQueries>{}, own);
        break;
    }
  }
}
static_assert(kTileQueries == 4);

/// The rows of Q in BF16 terms.
void split_queries(const QueryPanel& panel, const AttendMemory& memory) {
  const AttendArgs& args = *panel.args;
  const int head_dim = args.kv.shape.head_dim;
  for (int i = 0; i < panel.count; ++i) {
    const std::int64_t query = panel.first + i;
    const float* q =
        args.q + query / args.group_heads * args.q_stride + query % args.group_heads * head_dim;
    for (int d = 0; d < head_dim; d += 16) {
      store_terms<kQueryTerms>(
          load(q + d), memory.q + i * head_dim + d, std::int64_t{kPanelQueries} * head_dim);
    }
  }
}

/// K or V of a position, the first of a step: 32 positions that lie together.
template <KvType type>
LUNA_ISA_INLINE const std::byte* step_at(const AttendArgs& args,
                                         std::int64_t position,
                                         bool is_value) {
  const KvHeadParts head = kv_parts_at<type>(args.kv, args.kv_head, position);
  return (is_value ? head.v : head.k) +
         head.slot * static_cast<std::size_t>(args.kv.shape.head_dim) * kv_code_bytes(type);
}

/// KV comes from memory in steps of 32 positions, K of a partition and then its V. The hardware
/// does not foresee the way from block to block, so each step asks for the one kFetchSteps later.
inline constexpr int kFetchSteps = 2;

/// What is read kFetchSteps after step `at` of K (or V) of a partition, be it in the next partition
/// or of the next call; null if nothing is, or if the cache holds it: the KV comes from memory with
/// the first panel.
template <KvType type>
LUNA_ISA_INLINE const std::byte* fetch_target(const QueryPanel& panel,
                                              std::int64_t start,
                                              int at,
                                              bool is_value) {
  if (panel.first != 0) {
    return nullptr;
  }
  const AttendArgs& args = *panel.args;
  const PositionRange seen = panel.seen_by_any();
  const TokenRange steps = steps_within(seen, start);
  const int length = steps.last - steps.first;
  const int ahead = at - steps.first + (is_value ? length : 0) + kFetchSteps * kChainStep;
  if (ahead < 2 * length) {
    return step_at<type>(args, start + steps.first + ahead % length, ahead >= length);
  }
  const std::int64_t next = start + kPartitionTokens;
  const std::int64_t position = next + ahead - 2 * length;
  if (next < seen.last) {
    return position < seen.last && position < panel.fetch_end ? step_at<type>(args, position, false)
                                                              : nullptr;
  }
  if (args.next == nullptr || panel.count < args.n_rows * args.group_heads) {
    return nullptr;
  }
  const PositionRange of_next = make_tile(*args.next, 0, 1).seen_by_any;
  const std::int64_t in_next = of_next.first / kChainStep * kChainStep + ahead - 2 * length;
  return in_next < of_next.last ? step_at<type>(*args.next, in_next, false) : nullptr;
}

/// The part of `fetched` that goes with a chain step over `strips` strips; moves on to the next.
template <int strips, KvType type>
LUNA_ISA_INLINE const std::byte* next_part(const std::byte*& fetched) {
  const std::byte* part = fetched;
  fetched += part == nullptr ? 0 : strips * 16 * kChainStep * kv_code_bytes(type);
  return part;
}

/// 16 BF16 scales.
LUNA_ISA_INLINE F load_scales(const std::byte* p) {
  return as_floats(shift_left<16>(load_halves(p)));
}

/// A step of K or V: where it lies, and what is fetched meanwhile (or null).
struct KvStep {
  std::int64_t position;
  KvHeadParts head;
  const std::byte* fetched;
};

/// Scores of a step for all queries of a tile, scaled and capped.
template <int queries, KvType type>
void score_step(const QueryTile& tile, const AttendMemory& memory, KvStep step) {
  constexpr int kStrips = strips_beside(queries * kQueryTerms);
  const AttendArgs& args = *tile.args;
  const auto head_dim = static_cast<std::size_t>(args.kv.shape.head_dim);
  const std::int64_t q_stride = args.kv.shape.head_dim;
  for (int first = 0; first < kChainStep; first += 16 * kStrips) {
    F acc[kStrips][queries];
    for (int s = 0; s < kStrips; ++s) {
      for (int i = 0; i < queries; ++i) {
        acc[s][i] = set(0.0F);
      }
    }
    for (std::size_t d = 0; d < head_dim; d += kChainStep) {
      chain_step<kStrips, queries, kQueryTerms>(
          acc,
          {memory.q + d, q_stride, kPanelQueries * q_stride},
          k_lines<type>(step.head, head_dim, d, next_part<kStrips, type>(step.fetched)));
    }
    float* scores = memory.scores + step.position % kPartitionTokens + first;
    for (int s = 0; s < kStrips; ++s) {
      F scale = set(args.scale);
      if constexpr (type == KvType::int8) {
        const std::size_t slot = step.head.slot + 16 * static_cast<std::size_t>(s);
        scale = mul(load_scales(step.head.k_scales + slot * 2), scale);
      }
      for (int i = 0; i < queries; ++i) {
        F score = mul(acc[s][i], scale);
        if (args.softcap != 0.0F) {
          score = softcap_lanes(score, set(args.softcap));
        }
        store(scores + i * kPartitionTokens + 16 * s, score);
      }
    }
    step.head.slot += 16 * kStrips;
  }
}

/// x where `seen` covers a position, `other` elsewhere; for 16 positions from `first` on.
LUNA_ISA_INLINE F where_seen(F x, F other, TokenRange seen, int first) {
  return seen.contains(first, first + 16)
             ? x
             : select_range(x, other, seen.first - first, seen.last - first);
}

/// Softmax of each query of a tile over its positions of a partition, times the scales of V where
/// it has any; weights outside what it sees within `steps` become exact zeros. Writes max and sum;
/// sum 0 where it sees nothing.
template <int queries, KvType type>
void weigh_tokens(const QueryTile& tile,
                  const AttendMemory& memory,
                  std::int64_t start,
                  float* states) {
  const TokenRange steps = steps_within(tile.seen_by_any, start);
  const std::int64_t stride = state_floats(tile.args->kv.shape.head_dim);
  const F absent = set(-__builtin_inff());
  TokenRange seen[queries];
  for (int q = 0; q < queries; ++q) {
    const PositionRange positions = tile.seen_by(q);
    seen[q] = within_partition(positions.first, positions.last, start);
    const float* scores = memory.scores + q * kPartitionTokens;
    F largest = absent;
    for (int i = steps.first; i < steps.last; i += 16) {
      largest = max(largest, where_seen(load(scores + i), absent, seen[q], i));
    }
    states[q * stride] = max_lanes(largest);
  }
  for (int q = 0; q < queries; ++q) {
    const float* scores = memory.scores + q * kPartitionTokens;
    ChainValue* weights = memory.weights + q * kPartitionTokens;
    const F score_max = set(states[q * stride]);
    F sum = set(0.0F);
    for (int i = steps.first; i < steps.last; i += 16) {
      const F p = where_seen(exp_lanes(sub(load(scores + i), score_max)), set(0.0F), seen[q], i);
      sum = add(sum, p);
      F weight = p;
      if constexpr (type == KvType::int8) {
        const KvHeadParts head = kv_parts_at<type>(tile.args->kv, tile.args->kv_head, start + i);
        weight =
            where_seen(mul(p, load_scales(head.v_scales + head.slot * 2)), set(0.0F), seen[q], i);
      }
      store_terms<kProbabilityTerms>(weight, weights + i, kPanelQueries * kPartitionTokens);
    }
    states[q * stride + 1] = seen[q].first < seen[q].last ? sum_lanes(sum) : 0.0F;
  }
}

/// A copy of V of 32 positions with zeros where the query does not look: 0 times what a stale slot,
/// or one of a later row, holds may be NaN.
const std::byte* v_seen_by(const QueryTile& tile,
                           int query,
                           const AttendMemory& memory,
                           const std::byte* v,
                           std::int64_t position) {
  const auto head_dim = static_cast<std::size_t>(tile.args->kv.shape.head_dim);
  const std::int64_t first = tile.seen_by(query).first - position;
  const std::int64_t last = tile.seen_by(query).last - position;
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
  const std::byte* fetched;
  bool is_first;
  bool is_last;
};

/// out[query] += sum over 32 positions of weight * V. `weights` and `states` begin with the first
/// query.
template <int queries, KvType type>
LUNA_ISA_INLINE void sum_step(const ChainValue* weights,
                              ValueStep step,
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
                      next_part<kStrips, type>(step.fetched)));
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
void sum_seen_values(const QueryTile& tile,
                     const AttendMemory& memory,
                     std::int64_t position,
                     ValueStep step,
                     float* states) {
  const int head_dim = tile.args->kv.shape.head_dim;
  const ChainValue* weights = memory.weights + position % kPartitionTokens;
  const bool all_see_all =
      position >= tile.seen_by_all.first && position + kChainStep <= tile.seen_by_all.last;
  if (type == KvType::int8 || all_see_all) {  // codes are finite
    sum_step<queries, type>(weights, step, head_dim, states);
    return;
  }
  const std::byte* v = step.v;
  if (tile.row(0) == tile.row(queries - 1)) {
    step.v = v_seen_by(tile, 0, memory, v, position);
    sum_step<queries, type>(weights, step, head_dim, states);
    return;
  }
  for (int q = 0; q < queries; ++q) {
    step.v = v_seen_by(tile, q, memory, v, position);
    sum_step<1, type>(
        weights + q * kPartitionTokens, step, head_dim, states + q * state_floats(head_dim));
    step.fetched = nullptr;
  }
}

/// The scores of a panel over the partition from `start` on.
template <KvType type>
void score_partition(const QueryPanel& panel, const AttendMemory& memory, std::int64_t start) {
  const TokenRange steps = steps_within(panel.seen_by_any(), start);
  for (int i = steps.first; i < steps.last; i += kChainStep) {
    KvStep step{start + i,
                kv_parts_at<type>(panel.args->kv, panel.args->kv_head, start + i),
                fetch_target<type>(panel, start, i, false)};
    for_tiles(panel, memory, [&](const QueryTile& tile, auto queries, const AttendMemory& of_tile) {
      if (steps_within(tile.seen_by_any, start).contains(i)) {
        score_step<queries, type>(tile, of_tile, step);
        step.fetched = nullptr;
      }
    });
  }
}

/// out[query] = sum over the positions of weight * V, for all queries of a panel.
template <KvType type>
void sum_partition(const QueryPanel& panel,
                   const AttendMemory& memory,
                   std::int64_t start,
                   float* states) {
  const std::int64_t stride = state_floats(panel.args->kv.shape.head_dim);
  const TokenRange steps = steps_within(panel.seen_by_any(), start);
  for (int i = steps.first; i < steps.last; i += kChainStep) {
    ValueStep step{step_at<type>(*panel.args, start + i, true),
                   fetch_target<type>(panel, start, i, true),
                   false,
                   false};
    for_tiles(panel, memory, [&](const QueryTile& tile, auto queries, const AttendMemory& of_tile) {
      const TokenRange own = steps_within(tile.seen_by_any, start);
      if (own.contains(i)) {
        step.is_first = i == own.first;
        step.is_last = i + kChainStep == own.last;
        float* of_first = states + (tile.first - panel.first) * stride;
        sum_seen_values<queries, type>(tile, of_tile, start + i, step, of_first);
        step.fetched = nullptr;
      }
    });
  }
}

/// The states of one partition for all queries of a panel.
template <KvType type>
void attend_partition(const QueryPanel& panel,
                      const AttendMemory& memory,
                      std::int64_t partition,
                      float* states) {
  const std::int64_t start = partition * kPartitionTokens;
  const std::int64_t stride = state_floats(panel.args->kv.shape.head_dim);
  score_partition<type>(panel, memory, start);
  for_tiles(panel, memory, [&](const QueryTile& tile, auto queries, const AttendMemory& of_tile) {
    weigh_tokens<queries, type>(tile, of_tile, start, states + (tile.first - panel.first) * stride);
  });
  sum_partition<type>(panel, memory, start, states);
}
