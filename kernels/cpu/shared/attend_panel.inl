// Queries in panels, the order in which a panel reads KV, and what is fetched ahead of it. Included
// like vector_math.inl, after kv.inl.
//
// A query is one head of one row. The tiles of a panel, each as many queries as registers hold,
// take a step of 32 positions one after the other, while it is in L1.

inline constexpr int kTileQueries = 4;
inline constexpr int kPanelQueries = kAttendTogetherQueries;  // whole tiles of three and of four

/// A panel's working memory, carved from the caller's scratch.
struct AttendMemory {
  ChainValue* q;         // [kQueryTerms][kPanelQueries][head_dim]
  float* scores;         // [kPanelQueries][kPartitionTokens]
  ChainValue* weights;   // [kProbabilityTerms][kPanelQueries][kPartitionTokens]
  std::byte* step_copy;  // [32][head_dim] BF16: V, zeros where nobody looks; INT8 widened
  float* stack;          // [kStackDepth][kPanelQueries][state_floats]

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
  m.step_copy = reinterpret_cast<std::byte*>(p);
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
/// Partitions [first, last).
struct PartitionRange {
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

/// Consecutive queries of one sequence whose accumulators fit registers.
struct QueryTile {
  const AttendArgs* args;
  std::int64_t first;  // row * group_heads + head
  int at;              // of the first one in its panel
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
LUNA_ISA_INLINE QueryTile make_tile(const AttendArgs& args, std::int64_t first, int at, int count) {
  QueryTile tile{&args, first, at, count, {}, {}};
  const PositionRange of_first = tile.seen_by(0);
  const PositionRange of_last = tile.seen_by(count - 1);
  tile.seen_by_any = {of_first.first, of_last.last};
  tile.seen_by_all = {of_last.first, of_first.last};
  return tile;
}

/// A part of a panel that reads the same KV: its tiles, and the steps of a partition it reads.
struct ReadSpan {
  int first_tile;
  int last_tile;
  TokenRange steps;
};

/// Tiles of one sequence, or of some whose KV begins in the same blocks.
struct QueryPanel {
  int count = 0;  // of queries
  int n_tiles = 0;
  int n_sequences = 0;
  QueryTile tiles[kPanelQueries];
  int tile_ends[kPanelQueries];       // past the last tile of each sequence
  std::int64_t shared_positions = 0;  // whole steps; positions below are the same for all sequences

  /// Of tiles whose rows ascend.
  PositionRange seen_by_any(int first_tile, int last_tile) const {
    return {tiles[first_tile].seen_by_any.first, tiles[last_tile - 1].seen_by_any.last};
  }
  PositionRange seen_by_any() const {
    PositionRange seen = seen_by_any(0, tile_ends[0]);
    for (int s = 1; s < n_sequences; ++s) {
      const PositionRange other = seen_by_any(tile_ends[s - 1], tile_ends[s]);
      seen.first = other.first < seen.first ? other.first : seen.first;
      seen.last = other.last > seen.last ? other.last : seen.last;
    }
    return seen;
  }
  /// A partition is read in spans: what all sequences share first, then each one's own.
  int n_spans() const { return n_sequences + 1; }
  /// Past the shared span where it is empty.
  int first_span(std::int64_t start) const { return shared_positions > start ? 0 : 1; }
  ReadSpan span(int index, std::int64_t start) const {
    const std::int64_t shared = shared_positions - start;
    const int border = static_cast<int>(shared < 0 ? 0 : shared);
    if (index == 0) {
      TokenRange steps = border == 0 ? TokenRange{0, 0} : steps_within(seen_by_any(), start);
      steps.last = steps.last < border ? steps.last : border;
      return {0, n_tiles, steps};
    }
    const int first_tile = index == 1 ? 0 : tile_ends[index - 2];
    const int last_tile = tile_ends[index - 1];
    TokenRange steps = steps_within(seen_by_any(first_tile, last_tile), start);
    steps.first = steps.first > border ? steps.first : border;
    return {first_tile, last_tile, steps};
  }
};

/// Appends `count` queries of a sequence in tiles: of three where that makes whole rows, so that
/// none straddles two of them.
LUNA_ISA_INLINE void add_sequence(QueryPanel* panel,
                                  const AttendArgs& args,
                                  std::int64_t first,
                                  int count) {
  const int most = args.group_heads % 3 == 0 ? 3 : kTileQueries;
  for (int done = 0; done < count; done += most) {
    const int rest = count - done;
    panel->tiles[panel->n_tiles++] =
        make_tile(args, first + done, panel->count + done, rest < most ? rest : most);
  }
  panel->count += count;
  panel->tile_ends[panel->n_sequences++] = panel->n_tiles;
}
/// The panel of a sequence's queries from `first` on.
LUNA_ISA_INLINE QueryPanel make_panel(const AttendArgs& args, std::int64_t first) {
  QueryPanel panel;
  const std::int64_t left = args.n_rows * args.group_heads - first;
  add_sequence(&panel, args, first, static_cast<int>(left < kPanelQueries ? left : kPanelQueries));
  return panel;
}

/// Calls body(span, step) for what is read of the partition from `start` on.
template <class Body>
LUNA_ISA_INLINE void for_steps(const QueryPanel& panel, std::int64_t start, Body body) {
  for (int s = panel.first_span(start); s < panel.n_spans(); ++s) {
    const ReadSpan span = panel.span(s, start);
    for (int i = span.steps.first; i < span.steps.last; i += kChainStep) {
      body(span, i);
    }
  }
}

/// Calls body(tile, number of its queries as a constant, its memory) for a span's tiles.
template <class Body>
LUNA_ISA_INLINE void for_tiles(const QueryPanel& panel,
                               const ReadSpan& span,
                               const AttendMemory& memory,
                               Body body) {
  for (int t = span.first_tile; t < span.last_tile; ++t) {
    const QueryTile& tile = panel.tiles[t];
    const AttendMemory own = memory.from(tile.at, tile.args->kv.shape.head_dim);
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
  for (int t = 0; t < panel.n_tiles; ++t) {
    const QueryTile& tile = panel.tiles[t];
    const AttendArgs& args = *tile.args;
    const int head_dim = args.kv.shape.head_dim;
    for (int i = 0; i < tile.count; ++i) {
      const float* q = args.q + tile.row(i) * args.q_stride + tile.head(i) * head_dim;
      for (int d = 0; d < head_dim; d += 16) {
        store_terms<kQueryTerms>(load(q + d),
                                 memory.q + (tile.at + i) * head_dim + d,
                                 std::int64_t{kPanelQueries} * head_dim);
      }
    }
  }
}

// ---- Reading ahead

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

/// Walks over the KV in the order in which a panel reads it, and on to what the thread reads next.
/// Made once a call; take() is called once for each step read. It names nothing where the cache
/// holds the KV: a sequence's comes from memory with its first panel.
class ReadAhead {
 public:
  /// Names nothing at all if `panel` is null.
  ReadAhead(const QueryPanel* panel, PartitionRange partitions, const AttendArgs* next)
      : panel_(panel),
        next_(next),
        start_(partitions.first * kPartitionTokens),
        end_(partitions.last * kPartitionTokens) {
    if (panel_ == nullptr) {
      next_ = nullptr;
      return;
    }
    index_ = panel_->first_span(start_);
    span_ = panel_->span(index_, start_);
    at_ = span_.steps.first;
    settle();
    for (int i = 0; i < kFetchSteps; ++i) {
      advance();
    }
  }
  /// What is read kFetchSteps after the step at hand, or null.
  template <KvType type>
  const std::byte* take() {
    const std::byte* here = nullptr;
    if (panel_ != nullptr) {
      here = step_at<type>(*panel_->tiles[span_.first_tile].args, start_ + at_, is_value_);
    } else if (next_ != nullptr) {
      here = step_at<type>(*next_, start_, false);
    }
    advance();
    return here;
  }

 private:
  void advance() {
    if (panel_ != nullptr) {
      at_ += kChainStep;
      settle();
    } else if (next_ != nullptr) {
      start_ += kChainStep;
      next_ = start_ < end_ ? next_ : nullptr;
    }
  }
  /// Moves on from the end of a span to the next one that is not empty.
  void settle() {
    while (at_ >= span_.steps.last) {
      if (++index_ == panel_->n_spans()) {
        start_ += is_value_ ? kPartitionTokens : 0;
        is_value_ = !is_value_;
        if (start_ >= end_) {
          leave_panel();
          return;
        }
        index_ = panel_->first_span(start_);
      }
      span_ = panel_->span(index_, start_);
      at_ = span_.steps.first;
    }
  }
  void leave_panel() {
    panel_ = nullptr;
    if (next_ != nullptr) {
      const PositionRange seen = make_tile(*next_, 0, 0, 1).seen_by_any;
      start_ = seen.first / kChainStep * kChainStep;
      end_ = seen.last;
    }
  }

  const QueryPanel* panel_;  // null once it is left
  const AttendArgs* next_;   // null where nothing follows
  std::int64_t start_;       // of the partition; of the step of `next_`
  std::int64_t end_;
  bool is_value_ = false;
  int index_ = 0;  // of the span
  ReadSpan span_{};
  int at_ = 0;  // the step, in the partition
};
