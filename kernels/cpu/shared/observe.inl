// How much attention each position gets. Included like vector_math.inl, after merge.inl.

/// Adds a tile's probabilities to the masses of [first, last), queries ascending.
template <int queries, KvType type>
void observe_tile(const ObserveArgs& args, const QueryTile& tile, const AttendMemory& memory) {
  const std::int64_t start = args.first / kPartitionTokens * kPartitionTokens;
  for (std::int64_t at = args.first; at < args.last; at += kChainStep) {
    const KvHeadParts head = kv_parts_at<type>(args.attend.kv, args.attend.kv_head, at);
    score_step<queries, type>(tile, memory, {at, head, nullptr, nullptr});
    for (std::int64_t i = at; i < at + kChainStep; i += 16) {
      float* masses = kv_masses_at(args.attend.kv, args.attend.kv_head, i);
      F mass = load(masses);
      for (int q = 0; q < queries; ++q) {
        const PositionRange positions = tile.seen_by(q);
        const TokenRange seen = within_partition(positions.first, positions.last, i);
        const F score = load(memory.scores + q * kPartitionTokens + (i - start));
        const F p = exp_lanes(sub(score, set(args.log_sum_exp[tile.first + q])));
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
  for (std::int64_t i = 0; i < rows.n_rows * rows.group_heads; i += kPanelQueries) {
    const QueryPanel panel = make_panel(rows, i);
    split_queries(panel, memory);
    for_tiles(panel,
              {0, panel.n_tiles, {}},
              memory,
              [&](const QueryTile& tile, auto queries, const AttendMemory& own) {
                observe_tile<queries, type>(args, tile, own);
              });
  }
}
void observe(const ObserveArgs& args) {
  return args.attend.kv.shape.type == KvType::bf16 ? observe_rows<KvType::bf16>(args)
                                                   : observe_rows<KvType::int8>(args);
}
