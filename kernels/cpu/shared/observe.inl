// How much attention each position gets. Included like vector_math.inl, after merge.inl.

/// Adds a tile's probabilities to the masses of [first, last), queries ascending.
template <int queries, KvType type>
void observe_tile(const ObserveArgs& args, const QueryTile& tile, const AttendMemory& memory) {
  constexpr int kStrips = strips_beside(queries);
  split_queries(tile, memory);
  const std::int64_t start = args.first / kPartitionTokens * kPartitionTokens;
  for (std::int64_t at = args.first; at < args.last; at += 16 * kStrips) {
    score_tokens<queries, kStrips, type>(tile, memory, at);
    for (std::int64_t i = at; i < at + 16 * kStrips; i += 16) {
      float* masses = kv_masses_at(args.attend.kv, args.attend.kv_head, i);
      F mass = load(masses);
      for (int q = 0; q < queries; ++q) {
        const TokenRange seen = within_partition(tile.first_seen(q), tile.last_seen(q), i);
        const F score = load(memory.scores + q * kPartitionTokens + (i - start));
        const F p = exp_lanes(sub(score, set(args.log_sum_exp[tile.first_query + q])));
        mass = add(mass, select_range(p, set(0.0F), seen.first, seen.last));
      }
      store(masses, mass);
    }
  }
}
template <KvType type>
void observe_rows(const ObserveArgs& args) {
  const AttendArgs& rows = args.attend;
  const AttendMemory memory = place_attend_memory(rows.kv.shape.head_dim, rows.scratch);
  for (std::int64_t i = 0; i < rows.n_rows * rows.group_heads; i += tile_queries(rows)) {
    const QueryTile tile = make_tile(rows, i);
    switch (tile.n_queries) {
      case 1:
        observe_tile<1, type>(args, tile, memory);
        break;
      case 2:
        observe_tile<2, type>(args, tile, memory);
        break;
      case 3:
        observe_tile<3, type>(args, tile, memory);
        break;
      default:
        observe_tile<4, type>(args, tile, memory);
        break;
    }
  }
}
void observe(const ObserveArgs& args) {
  return args.attend.kv.shape.type == KvType::bf16 ? observe_rows<KvType::bf16>(args)
                                                   : observe_rows<KvType::int8>(args);
}
