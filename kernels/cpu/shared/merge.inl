// States of attention joined by the canonical tree, and the entry points. Included like
// vector_math.inl, after attend.inl.

/// left = join(left, right). A state without positions passes the other one through untouched.
void join_states(int head_dim, float* left, const float* right) {
  if (right[1] == 0.0F) {
    return;
  }
  if (left[1] == 0.0F) {
    std::memcpy(left, right, sizeof(float) * static_cast<std::size_t>(state_floats(head_dim)));
    return;
  }
  const float top = left[0] > right[0] ? left[0] : right[0];
  const float left_weight = exp_scalar(left[0] - top);
  const float right_weight = exp_scalar(right[0] - top);
  left[0] = top;
  left[1] = std::fma(right[1], right_weight, left[1] * left_weight);
  for (int d = 16; d < head_dim + 16; d += 16) {
    store(left + d, fma(load(right + d), set(right_weight), mul(load(left + d), set(left_weight))));
  }
}

/// Nodes in ascending order, joined as soon as both children are there.
struct TreeStack {
  float* states;             // [kStackDepth][n_queries][state_floats]
  std::int64_t node_floats;  // n_queries * state_floats
  int head_dim;
  int depth = 0;
  TreeNode nodes[kStackDepth] = {};

  float* top() { return states + depth * node_floats; }

  /// Takes the node whose states were written to top().
  void push(TreeNode node) {
    // A left sibling that is not on the stack has no positions: the node stands for its parent.
    while (node.index % 2 != 0) {
      if (depth > 0) {
        const TreeNode left = nodes[depth - 1];
        if (left.level != node.level || left.index + 1 != node.index) {
          break;
        }
        join_top();
      }
      node = {node.level + 1, node.index / 2};
    }
    nodes[depth++] = node;
  }
  /// Joins what is left: missing right children pass the left one through.
  float* finish() {
    while (depth > 1) {
      --depth;  // the last node is at top() now, its left neighbour below it
      join_top();
      ++depth;
    }
    return states;
  }
  /// Joins the state at top() into the node below it, which then is at top().
  void join_top() {
    --depth;
    const std::int64_t state = state_floats(head_dim);
    for (std::int64_t at = 0; at < node_floats; at += state) {
      join_states(
          head_dim, states + depth * node_floats + at, states + (depth + 1) * node_floats + at);
    }
  }
};

/// Pushes the states of partitions [first_partition, last_partition), one after the other.
template <KvType type>
void attend_partitions(const QueryPanel& panel,
                       const AttendMemory& memory,
                       PartitionRange partitions,
                       TreeStack* stack,
                       ReadAhead* ahead) {
  for (std::int64_t p = partitions.first; p < partitions.last; ++p) {
    attend_partition<type>(panel, memory, p, stack->top(), ahead);
    stack->push({0, static_cast<std::int32_t>(p)});
  }
}
LUNA_ISA_INLINE void attend_partitions(const QueryPanel& panel,
                                       const AttendMemory& memory,
                                       PartitionRange partitions,
                                       TreeStack* stack,
                                       ReadAhead* ahead) {
  if (panel.tiles[0].args->kv.shape.type == KvType::bf16) {
    attend_partitions<KvType::bf16>(panel, memory, partitions, stack, ahead);
  } else {
    attend_partitions<KvType::int8>(panel, memory, partitions, stack, ahead);
  }
}

LUNA_ISA_INLINE TreeStack make_stack(const AttendMemory& memory, int head_dim, int n_queries) {
  return {memory.stack, n_queries * state_floats(head_dim), head_dim};
}

/// out = state's out / sum, by the reciprocal; zeros where nothing was seen.
LUNA_ISA_INLINE void finish_state(const float* state,
                                  int head_dim,
                                  float* out,
                                  float* log_sum_exp) {
  const F inverse = set(state[1] == 0.0F ? 0.0F : 1.0F / state[1]);
  for (int d = 0; d < head_dim; d += 16) {
    store(out + d, state[1] == 0.0F ? set(0.0F) : mul(load(state + 16 + d), inverse));
  }
  if (log_sum_exp != nullptr) {
    *log_sum_exp = log_of_sum(state[0], state[1]);
  }
}

/// Attention of a panel; the KV comes from memory unless the cache holds it.
void attend_panel(const QueryPanel& panel,
                  const AttendMemory& memory,
                  bool is_cached,
                  const AttendArgs* next) {
  const int head_dim = panel.tiles[0].args->kv.shape.head_dim;
  const PositionRange seen = panel.seen_by_any();
  const PartitionRange partitions{seen.first / kPartitionTokens,
                                  (seen.last - 1) / kPartitionTokens + 1};
  ReadAhead ahead(is_cached ? nullptr : &panel, partitions, next);
  TreeStack stack = make_stack(memory, head_dim, panel.count);
  split_queries(panel, memory);
  attend_partitions(panel, memory, partitions, &stack, &ahead);
  const float* states = stack.finish();
  for (int t = 0; t < panel.n_tiles; ++t) {
    const QueryTile& tile = panel.tiles[t];
    const AttendArgs& args = *tile.args;
    for (int q = 0; q < tile.count; ++q) {
      finish_state(states + (tile.at + q) * state_floats(head_dim),
                   head_dim,
                   args.out + tile.row(q) * args.out_stride + tile.head(q) * head_dim,
                   args.log_sum_exp == nullptr ? nullptr : args.log_sum_exp + tile.first + q);
    }
  }
}

void attend(const AttendArgs& args) {
  const AttendMemory memory = place_attend_memory(args.kv.shape.head_dim, args.scratch);
  const std::int64_t n_queries = args.n_rows * args.group_heads;
  for (std::int64_t i = 0; i < n_queries; i += kPanelQueries) {
    const QueryPanel panel = make_panel(args, i);
    attend_panel(panel, memory, i != 0, panel.count == n_queries ? args.next : nullptr);
  }
}

void attend_together(const AttendTogetherArgs& args) {
  const AttendArgs& first = args.sequences[0];
  QueryPanel panel;
  for (int s = 0; s < args.n_sequences; ++s) {
    const AttendArgs& sequence = args.sequences[s];
    add_sequence(&panel, sequence, 0, static_cast<int>(sequence.n_rows * sequence.group_heads));
  }
  panel.shared_positions = args.shared_positions;
  attend_panel(
      panel, place_attend_memory(first.kv.shape.head_dim, first.scratch), false, args.next);
}

void attend_partial(const AttendPartialArgs& args) {
  const int head_dim = args.attend.kv.shape.head_dim;
  const AttendMemory memory = place_attend_memory(head_dim, args.attend.scratch);
  const std::int64_t n_queries = args.attend.n_rows * args.attend.group_heads;
  const auto state = static_cast<std::size_t>(state_floats(head_dim));
  TreeNode nodes[kTreeNodesMax];
  const int n_nodes = cover_partitions(args.first_partition, args.n_partitions, nodes);
  for (std::int64_t i = 0; i < n_queries; i += kPanelQueries) {
    const QueryPanel panel = make_panel(args.attend, i);
    ReadAhead ahead(i != 0 ? nullptr : &panel,
                    {args.first_partition, args.first_partition + args.n_partitions},
                    panel.count == n_queries ? args.attend.next : nullptr);
    split_queries(panel, memory);
    for (int n = 0; n < n_nodes; ++n) {
      const std::int64_t first = std::int64_t{nodes[n].index} << nodes[n].level;
      TreeStack stack = make_stack(memory, head_dim, panel.count);
      attend_partitions(
          panel, memory, {first, first + (std::int64_t{1} << nodes[n].level)}, &stack, &ahead);
      std::memcpy(args.states + static_cast<std::size_t>(n * n_queries + i) * state,
                  stack.finish(),
                  sizeof(float) * state * static_cast<std::size_t>(panel.count));
    }
  }
}

void merge_partials(const MergeArgs& args) {
  const AttendMemory memory = place_attend_memory(args.head_dim, args.scratch);
  const auto state_bytes = sizeof(float) * static_cast<std::size_t>(state_floats(args.head_dim));
  TreeStack stack = make_stack(memory, args.head_dim, 1);
  stack.top()[1] = 0.0F;
  for (int n = 0; n < args.n_nodes; ++n) {
    std::memcpy(stack.top(), args.states[n], state_bytes);
    stack.push(args.nodes[n]);
  }
  finish_state(stack.finish(), args.head_dim, args.out, args.log_sum_exp);
}
