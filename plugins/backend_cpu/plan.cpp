// Phases and memory of a schedule.
#include "attend_share.hpp"
#include "schedule.hpp"
#include "slice_tile.hpp"

#include <algorithm>
#include <limits>

namespace luna::cpu {
namespace {

constexpr std::uint64_t kLine = 64;
std::uint64_t round_up(std::uint64_t n, std::uint64_t quantum) {
  return (n + quantum - 1) / quantum * quantum;
}

// ---- Phases -------------------------------------------------------------------------------------

enum class Thing : std::uint8_t { slot, activation, kv, parts, exponents, states, message };

/// What an op touches, and which part of it each thread touches.
struct Access {
  Thing thing = Thing::slot;
  std::uint32_t index = 0;  // slot or activation
  std::uint64_t first = 0;  // bytes within a row
  std::uint64_t last = 0;
  bool writes = false;
  /// leader stands for "anything": it is a local part only for ops that the leader alone does.
  Split part = Split::leader;
};

/// Whether two ops of different threads may meet on the same bytes.
bool conflicts(const Access& a, const Access& b) {
  if (a.thing != b.thing || a.index != b.index || (!a.writes && !b.writes)) return false;
  if (a.thing == Thing::slot && (a.first >= b.last || b.first >= a.last)) return false;
  const bool is_local = a.part == Split::rows || a.part == Split::columns || a.part == Split::heads;
  return !(is_local && a.part == b.part && a.first == b.first && a.last == b.last);
}

/// The part of a tensor that a thread reads: its own, where the split says which that is.
Split part_of(const CompiledOp& op, const TensorRef& tensor) {
  if (op.split == Split::rows && op.action == Action::gather_rows && &tensor == &op.in[0])
    return Split::leader;  // any row of the step
  return op.split;
}

std::vector<Access> accesses_of(const Schedule& schedule, const CompiledOp& op) {
  std::vector<Access> list;
  const auto tensor = [&](const TensorRef& t, bool writes) {
    if (t.width == 0 || t.is_private) return;
    const std::uint64_t bytes = t.width * dtype_bytes(t.dtype);
    list.push_back(
        {Thing::slot, t.slot, t.column_bytes, t.column_bytes + bytes, writes, part_of(op, t)});
  };
  const auto activation = [&](bool writes) {
    const ActivationBuffer& buffer = schedule.activations[op.activation];
    if (buffer.is_private) return;
    // A linear op reads all columns of all rows; rows are shared out only while quantizing.
    list.push_back(
        {Thing::activation, op.activation, 0, 0, writes, writes ? Split::rows : Split::leader});
  };
  if (op.action != Action::linear && op.action != Action::merge_parts) {  // they read other things
    tensor(op.in[0], false);
    tensor(op.in[1], false);
  }
  tensor(op.out, true);
  if (op.action == Action::quantize) activation(true);
  if (op.action == Action::linear || op.action == Action::grouped_linear) activation(false);
  const bool prunes = op.action == Action::observe || op.action == Action::prune;
  const bool writes_kv = op.action == Action::kv_write || op.action == Action::kv_copy || prunes;
  if (writes_kv || op.action == Action::attend)
    list.push_back({Thing::kv, 0, 0, 0, writes_kv, op.split});
  if (op.action == Action::attend || op.action == Action::merge_parts || prunes)
    list.push_back({Thing::exponents, 0, 0, 0, !prunes, Split::leader});
  if (op.split == Split::head_parts)
    list.push_back({Thing::parts, 0, 0, 0, op.action == Action::attend, Split::leader});
  if (op.action == Action::score_chunks || op.action == Action::merge_chunks)
    list.push_back({Thing::states, 0, 0, 0, op.action == Action::score_chunks, Split::leader});
  if (op.action == Action::send || op.action == Action::recv || op.action == Action::all_reduce ||
      op.action == Action::all_gather)
    list.push_back({Thing::message, 0, 0, 0, true, Split::leader});
  return list;
}

}  // namespace

void form_phases(Schedule* schedule) {
  std::vector<Access> phase;  // of the ops of the phase so far
  const auto is_alone = [&](std::uint32_t op) {
    return schedule->ops[op].action == Action::attend_tiles;
  };
  for (std::uint32_t i = 0; i < schedule->ops.size(); ++i) {
    const std::vector<Access> own = accesses_of(*schedule, schedule->ops[i]);
    const bool meets = (i != 0 && (is_alone(i) || is_alone(i - 1))) ||
                       std::any_of(own.begin(), own.end(), [&](const Access& a) {
                         return std::any_of(phase.begin(), phase.end(), [&](const Access& b) {
                           return conflicts(a, b);
                         });
                       });
    if (meets) {
      schedule->phase_ends.push_back(i);
      phase.clear();
    }
    phase.insert(phase.end(), own.begin(), own.end());
  }
  schedule->phase_ends.push_back(static_cast<std::uint32_t>(schedule->ops.size()));
}

// ---- Memory -------------------------------------------------------------------------------------
namespace {

/// A piece of shared memory and the phases it is alive in.
struct Piece {
  std::uint64_t bytes = 0;
  std::uint32_t first_phase = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t last_phase = 0;
  std::uint64_t offset = 0;
  [[nodiscard]] bool is_used() const { return first_phase <= last_phase; }
  void touch(std::uint32_t phase) {
    first_phase = std::min(first_phase, phase);
    last_phase = std::max(last_phase, phase);
  }
};

/// Lowest free offset for each piece, largest pieces first. Returns the bytes of all.
std::uint64_t place(std::vector<Piece>* pieces) {
  std::vector<Piece*> order;
  for (Piece& piece : *pieces)
    if (piece.is_used()) order.push_back(&piece);
  std::stable_sort(order.begin(), order.end(), [](const Piece* a, const Piece* b) {
    return a->bytes > b->bytes;
  });
  std::vector<const Piece*> placed;  // by offset
  std::uint64_t total = 0;
  for (Piece* piece : order) {
    std::uint64_t at = 0;
    for (const Piece* other : placed) {
      const bool overlaps_in_time =
          piece->first_phase <= other->last_phase && other->first_phase <= piece->last_phase;
      if (!overlaps_in_time || other->offset + other->bytes <= at) continue;
      if (at + piece->bytes <= other->offset) break;
      at = other->offset + other->bytes;
    }
    piece->offset = at;
    total = std::max(total, at + piece->bytes);
    placed.insert(
        std::upper_bound(placed.begin(),
                         placed.end(),
                         piece,
                         [](const Piece* a, const Piece* b) { return a->offset < b->offset; }),
        piece);
  }
  return total;
}

class MemoryPlan {
 public:
  MemoryPlan(const luna_program& program, Width width, Schedule* schedule)
      : p_(program),
        width_(width),
        s_(*schedule),
        pieces_(program.n_slots + schedule->activations.size()) {}

  void run() {
    std::uint32_t phase = 0;
    for (std::uint32_t i = 0; i < s_.ops.size(); ++i) {
      while (i >= s_.phase_ends[phase])
        ++phase;
      visit(s_.ops[i], phase);
    }
    s_.shared_bytes = place(&pieces_);
    s_.message = take_shared(message_bytes_);
    s_.chunk_states = take_shared(state_bytes_);
    s_.kernel_scratch = take_private(kernel_bytes_);
    s_.parts = take_private(2 * s_.part_bytes);
    s_.log_sum_exps = take_shared(exponent_bytes_);
    s_.prune_lists = take_private(prune_bytes_);
    s_.slot_counts = take_private(count_bytes_);
    take_slice_memory();
    if (s_.part_bytes != 0 || width_ == Width::sliced)
      s_.part_lists = take_private(n_partitions_of(p_.n_positions_max) *
                                   (sizeof(kernels::TreeNode) + sizeof(const float*)));
    for (CompiledOp& op : s_.ops)
      for (TensorRef* t : {&op.in[0], &op.in[1], &op.out})
        if (t->width != 0) t->offset = t->is_private ? private_offset(*t) : pieces_[t->slot].offset;
    for (std::uint32_t a = 0; a < s_.activations.size(); ++a) {
      ActivationBuffer& buffer = s_.activations[a];
      buffer.offset =
          buffer.is_private ? take_private(buffer.bytes) : pieces_[p_.n_slots + a].offset;
    }
  }

 private:
  [[nodiscard]] std::uint64_t tensor_bytes(const TensorRef& t) const {
    return t.stride_bytes * rows_max_of(p_, width_, t.rows);
  }
  void visit(const CompiledOp& op, std::uint32_t phase) {
    for (const TensorRef* t : {&op.in[0], &op.in[1], &op.out}) {
      if (t->width == 0 || t->is_private) continue;
      pieces_[t->slot].bytes = tensor_bytes(*t);
      pieces_[t->slot].touch(phase);
    }
    if (op.action == Action::quantize || op.action == Action::linear ||
        op.action == Action::grouped_linear) {
      const ActivationBuffer& buffer = s_.activations[op.activation];
      Piece& piece = pieces_[p_.n_slots + op.activation];
      if (!buffer.is_private) {
        piece.bytes = round_up(buffer.bytes, kLine);
        piece.touch(phase);
      }
    }
    const TensorRef& x = op.in[0];
    switch (op.action) {
      case Action::linear:
        kernel_bytes_ = std::max(kernel_bytes_, kernels::linear_scratch_bytes(*op.form));
        break;
      case Action::grouped_linear:
        kernel_bytes_ = std::max(kernel_bytes_, kernels::linear_scratch_bytes(*op.form));
        count_bytes_ = sizeof(std::uint32_t) * rows_max_of(p_, width_, x.rows);
        break;
      case Action::attend:
        kernel_bytes_ = std::max(kernel_bytes_,
                                 kernels::attend_scratch_bytes(static_cast<int>(p_.kv.head_dim)));
        if (op.split == Split::head_parts)
          s_.part_bytes = std::max(s_.part_bytes, part_bytes_of(op.n_heads));
        break;
      case Action::attend_tiles:
        kernel_bytes_ = std::max(kernel_bytes_,
                                 kernels::attend_scratch_bytes(static_cast<int>(p_.kv.head_dim)));
        break;
      case Action::observe:
        exponent_bytes_ =
            std::max(exponent_bytes_, sizeof(float) * op.n_heads * rows_max_of(p_, width_, x.rows));
        break;
      case Action::prune:
        prune_bytes_ = 3 * sizeof(float) * std::uint64_t{p_.n_positions_max};
        break;
      case Action::score_chunks:
        state_bytes_ = std::max(
            state_bytes_,
            sizeof(kernels::LogitsState) * n_chunks_of(x.width) * rows_max_of(p_, width_, x.rows));
        break;
      case Action::send:
      case Action::recv:
      case Action::all_reduce:
      case Action::all_gather: {
        const bool has_sent = op.action == Action::send || op.action == Action::all_reduce;
        const TensorRef& t = has_sent ? x : op.out;
        message_bytes_ = std::max(
            message_bytes_,
            2 * round_up(std::uint64_t{4} * t.width * rows_max_of(p_, width_, t.rows), kLine));
        break;
      }
      default:
        break;
    }
  }
  void take_slice_memory() {
    if (width_ != Width::sliced) return;
    s_.slice_shape = slice_shape_of(p_);
    if (s_.slice_shape.n_heads == 0) return;
    const std::uint64_t n = tile_list_max(s_.slice_shape);
    s_.slice_tile = take_shared(sizeof(SliceTile) + n * (sizeof(TileRun) + sizeof(TilePart)));
    s_.slice_states = take_shared(tile_state_bytes(s_.slice_shape));
    s_.slice_request = take_shared(slice_message_bytes(s_.slice_shape));
  }
  /// States that one thread leaves of one unit, of all its rows and heads.
  [[nodiscard]] std::uint64_t part_bytes_of(std::uint64_t n_heads) const {
    const std::uint64_t state_bytes =
        sizeof(float) *
        static_cast<std::uint64_t>(kernels::state_floats(static_cast<int>(p_.kv.head_dim)));
    const std::uint64_t n_rows = std::min(kAttendTaskRows, rows_max_of(p_, width_, RowCount::step));
    return tree_nodes_max(p_.n_positions_max) * n_rows * (n_heads / p_.kv.n_kv_heads) * state_bytes;
  }
  static std::uint64_t n_chunks_of(std::uint64_t width) {
    return (width + kernels::kLogitsChunk - 1) / kernels::kLogitsChunk;
  }
  std::uint64_t take_shared(std::uint64_t bytes) {
    const std::uint64_t at = round_up(s_.shared_bytes, kLine);
    s_.shared_bytes = at + bytes;
    return at;
  }
  std::uint64_t take_private(std::uint64_t bytes) {
    const std::uint64_t at = round_up(s_.private_bytes, kLine);
    s_.private_bytes = at + bytes;
    return at;
  }
  /// Private tensors are small and all alive at once: one place each.
  std::uint64_t private_offset(const TensorRef& t) {
    Piece& piece = pieces_[t.slot];
    if (piece.bytes == 0) {
      piece.bytes = tensor_bytes(t);
      piece.offset = take_private(piece.bytes);
    }
    return piece.offset;
  }

  const luna_program& p_;
  const Width width_;
  Schedule& s_;
  std::vector<Piece> pieces_;  // slots, then activations
  std::uint64_t kernel_bytes_ = 0;
  std::uint64_t state_bytes_ = 0;
  std::uint64_t exponent_bytes_ = 0;
  std::uint64_t prune_bytes_ = 0;
  std::uint64_t count_bytes_ = 0;
  std::uint64_t message_bytes_ = 0;
};

}  // namespace

void place_memory(const luna_program& program, Width width, Schedule* schedule) {
  MemoryPlan(program, width, schedule).run();
}

}  // namespace luna::cpu
