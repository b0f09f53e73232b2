// Attention over paged KV. Included like vector_math.inl, after attend_panel.inl.
//
// Prefill rows, decode rows, slices and rows of sequences that begin alike go through the same
// code, so they have the same bits.

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

/// Codes of 16 columns as BF16, pairs of inputs a line; asks for as many bytes of `lines.fetched`.
LUNA_ISA_INLINE void widen_lines(const ByteLines& lines,
                                 int n_inputs,
                                 std::byte* to,
                                 std::size_t pair_stride) {
  const I high = set_word(static_cast<std::int32_t>(0xFFFF0000U));
  for (int i = 0; i < n_inputs / 2; ++i) {
    if (lines.fetched != nullptr) {
      fetch_part<2 * 16>(lines.fetched, i);
    }
    // An integer's BF16 is its FP32's high half.
    const I first = shift_right<16>(as_words(lines.load(2 * i, 0)));
    const I second = and_words(as_words(lines.load(2 * i + 1, 0)), high);
    store_words(to + static_cast<std::size_t>(i) * pair_stride, add_words(first, second));
  }
}
/// A step of K or V of INT8 as one of BF16, without its scales, in memory.step_copy: worth it where
/// more than one tile reads it.
const std::byte* widen_k(const KvHeadParts& head,
                         int head_dim,
                         const std::byte* fetched,
                         const AttendMemory& memory) {
  const auto dim = static_cast<std::size_t>(head_dim);
  for (std::size_t s = 0; s < kChainStep / 16; ++s) {
    ByteLines lines{head.k + (head.slot + 16 * s) * dim, 16, 0, fetched};
    lines.fetched += fetched == nullptr ? 0 : 16 * s * dim;
    widen_lines(lines, head_dim, memory.step_copy + s * dim * 32, 64);
  }
  return memory.step_copy;
}
const std::byte* widen_v(const std::byte* v,
                         int head_dim,
                         const std::byte* fetched,
                         const AttendMemory& memory) {
  const auto dim = static_cast<std::size_t>(head_dim);
  for (std::size_t d = 0; d < dim; d += 16) {
    ByteLines lines{v + d, dim, 0, fetched};
    lines.fetched += fetched == nullptr ? 0 : kChainStep * d;
    widen_lines(lines, kChainStep, memory.step_copy + d * 4, dim * 4);
  }
  return memory.step_copy;
}

/// A step of K: where it lies, as BF16 if it was widened (or null), and what is fetched meanwhile
/// (or null).
struct KvStep {
  std::int64_t position;
  KvHeadParts head;
  const std::byte* widened;
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
      const ChainRows q{memory.q + d, q_stride, kPanelQueries * q_stride};
      if (type == KvType::int8 && step.widened != nullptr) {
        const KvHeadParts copy{const_cast<std::byte*>(step.widened),
                               nullptr,
                               nullptr,
                               nullptr,
                               static_cast<std::size_t>(first)};
        chain_step<kStrips, queries, kQueryTerms>(
            acc, q, k_lines<KvType::bf16>(copy, head_dim, d, nullptr));
      } else {
        chain_step<kStrips, queries, kQueryTerms>(
            acc, q, k_lines<type>(step.head, head_dim, d, next_part<kStrips, type>(step.fetched)));
      }
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

/// Softmax of each query of a tile over its positions of a partition, times the scales of V where
/// it has any; weights outside what it sees within `steps` become exact zeros. Writes max and sum;
/// sum 0 where it sees nothing.
template <int queries, KvType type>
void weigh_tokens(const QueryTile& tile,
                  const AttendMemory& memory,
                  std::int64_t start,
                  float* states) {
  const TokenRange steps = steps_within(tile.seen_by_any, start);
  const TokenRange by_all = within_partition(tile.seen_by_all.first, tile.seen_by_all.last, start);
  const std::int64_t stride = state_floats(tile.args->kv.shape.head_dim);
  TokenRange seen[queries];
  F largest[queries];
  F sum[queries];
  for (int q = 0; q < queries; ++q) {
    const PositionRange positions = tile.seen_by(q);
    seen[q] = within_partition(positions.first, positions.last, start);
    largest[q] = set(-__builtin_inff());
    sum[q] = set(0.0F);
  }
  // x of 16 positions where query q sees them, `other` elsewhere.
  const auto where_seen = [&](F x, F other, int q, int first) LUNA_LAMBDA_INLINE {
    return by_all.contains(first, first + 16)
               ? x
               : select_range(x, other, seen[q].first - first, seen[q].last - first);
  };
  for (int i = steps.first; i < steps.last; i += 16) {
#pragma GCC unroll 16
    for (int q = 0; q < queries; ++q) {
      const F score = load(memory.scores + q * kPartitionTokens + i);
      largest[q] = max(largest[q], where_seen(score, set(-__builtin_inff()), q, i));
    }
  }
  for (int q = 0; q < queries; ++q) {
    states[q * stride] = max_lanes(largest[q]);
    largest[q] = set(states[q * stride]);
  }
  for (int i = steps.first; i < steps.last; i += 16) {
    F scale = set(1.0F);
    if constexpr (type == KvType::int8) {
      const KvHeadParts head = kv_parts_at<type>(tile.args->kv, tile.args->kv_head, start + i);
      scale = load_scales(head.v_scales + head.slot * 2);
    }
#pragma GCC unroll 16
    for (int q = 0; q < queries; ++q) {
      const F score = load(memory.scores + q * kPartitionTokens + i);
      const F p = where_seen(exp_lanes(sub(score, largest[q])), set(0.0F), q, i);
      sum[q] = add(sum[q], p);
      F weight = p;
      if constexpr (type == KvType::int8) {
        weight = where_seen(mul(p, scale), set(0.0F), q, i);
      }
      store_terms<kProbabilityTerms>(
          weight, memory.weights + q * kPartitionTokens + i, kPanelQueries * kPartitionTokens);
    }
  }
  for (int q = 0; q < queries; ++q) {
    states[q * stride + 1] = seen[q].first < seen[q].last ? sum_lanes(sum[q]) : 0.0F;
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
      store_words(memory.step_copy + at, and_words(load_words(v + at), keep));
    }
  }
  return memory.step_copy;
}

/// V of a step, and whether it is the first and the last of a partition's that a tile takes.
struct ValueStep {
  const std::byte* v;
  const std::byte* fetched;
  bool is_widened;  // INT8: v is the copy in BF16
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
  if (type == KvType::int8 && step.is_widened) {
    sum_step<queries, KvType::bf16>(weights, step, head_dim, states);
    return;
  }
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
void score_partition(const QueryPanel& panel,
                     const AttendMemory& memory,
                     std::int64_t start,
                     ReadAhead* ahead) {
  for_steps(panel, start, [&](const ReadSpan& span, int i) {
    const AttendArgs& args = *panel.tiles[span.first_tile].args;
    KvStep step{start + i,
                kv_parts_at<type>(args.kv, args.kv_head, start + i),
                nullptr,
                ahead->take<type>()};
    if (type == KvType::int8 && span.last_tile - span.first_tile > 1) {
      step.widened = widen_k(step.head, args.kv.shape.head_dim, step.fetched, memory);
      step.fetched = nullptr;
    }
    for_tiles(
        panel, span, memory, [&](const QueryTile& tile, auto queries, const AttendMemory& own) {
          if (steps_within(tile.seen_by_any, start).contains(i)) {
            score_step<queries, type>(tile, own, step);
            step.fetched = nullptr;
          }
        });
  });
}

/// Whether a tile of three can be multiplied with the one before it as one of six, whose operands
/// are loaded half as often: both see all of the step, at the same place of what they take.
template <KvType type>
LUNA_ISA_INLINE bool is_pair(const QueryTile* tiles, std::int64_t position, const ValueStep& step) {
  for (int t = 0; t < 2; ++t) {
    const bool sees_all = position >= tiles[t].seen_by_all.first &&
                          position + kChainStep <= tiles[t].seen_by_all.last;
    if (tiles[t].count != 3 || (type == KvType::bf16 && !sees_all)) {
      return false;
    }
  }
  const std::int64_t start = position / kPartitionTokens * kPartitionTokens;
  const TokenRange steps = steps_within(tiles[1].seen_by_any, start);
  const auto i = static_cast<int>(position - start);
  return steps.contains(i) && (i == steps.first) == step.is_first &&
         (i + kChainStep == steps.last) == step.is_last;
}
/// sum_step() for the queries of two such tiles.
void sum_pair(const QueryTile& first,
              const AttendMemory& memory,
              std::int64_t position,
              ValueStep step,
              float* states) {
  sum_step<6, KvType::bf16>(
      memory.weights + position % kPartitionTokens, step, first.args->kv.shape.head_dim, states);
}

/// out[query] = sum over the positions of weight * V, for all queries of a panel.
template <KvType type>
void sum_partition(const QueryPanel& panel,
                   const AttendMemory& memory,
                   std::int64_t start,
                   float* states,
                   ReadAhead* ahead) {
  for_steps(panel, start, [&](const ReadSpan& span, int i) {
    const AttendArgs& args = *panel.tiles[span.first_tile].args;
    const int head_dim = args.kv.shape.head_dim;
    ValueStep step{step_at<type>(args, start + i, true), ahead->take<type>(), false, false, false};
    if (type == KvType::int8 && span.last_tile - span.first_tile > 1) {
      step.v = widen_v(step.v, head_dim, step.fetched, memory);
      step.fetched = nullptr;
      step.is_widened = true;
    }
    for (int t = span.first_tile; t < span.last_tile; ++t) {
      const QueryTile& first = panel.tiles[t];
      const TokenRange steps = steps_within(first.seen_by_any, start);
      if (!steps.contains(i)) {
        continue;
      }
      step.is_first = i == steps.first;
      step.is_last = i + kChainStep == steps.last;
      float* of_first = states + first.at * state_floats(head_dim);
      if (t + 1 < span.last_tile && is_pair<type>(&first, start + i, step)) {
        sum_pair(first, memory.from(first.at, head_dim), start + i, step, of_first);
        ++t;
      } else {
        for_tiles(panel,
                  {t, t + 1, {}},
                  memory,
                  [&](const QueryTile& tile, auto queries, const AttendMemory& own) {
                    sum_seen_values<queries, type>(tile, own, start + i, step, of_first);
                  });
      }
      step.fetched = nullptr;
    }
  });
}

/// The states of one partition for all queries of a panel.
template <KvType type>
void attend_partition(const QueryPanel& panel,
                      const AttendMemory& memory,
                      std::int64_t partition,
                      float* states,
                      ReadAhead* ahead) {
  const std::int64_t start = partition * kPartitionTokens;
  score_partition<type>(panel, memory, start, ahead);
  for_tiles(panel,
            {0, panel.n_tiles, {}},
            memory,
            [&](const QueryTile& tile, auto queries, const AttendMemory& own) {
              weigh_tokens<queries, type>(
                  tile, own, start, states + tile.at * state_floats(tile.args->kv.shape.head_dim));
            });
  sum_partition<type>(panel, memory, start, states, ahead);
}
