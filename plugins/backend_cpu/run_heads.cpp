// Ops on heads: head_norm, rope, kv_write, attend.
//
// Narrow steps share them by (sequence, KV head): then one thread rotates, writes and reads a head,
// without a barrier in between. Wide steps share rope and kv_write by rows. Attention is cut by
// cost in wide steps and where KV is long (attend_share.hpp).
#include "attend_share.hpp"
#include "head_view.hpp"

namespace luna::cpu {
namespace {

class HeadOps : public HeadView {
 public:
  explicit HeadOps(const ThreadView& view) : HeadView(view) {}

  void run(const CompiledOp& op) const {
    const bool by_heads = op.split == Split::heads;
    switch (op.action) {
      case Action::head_norm:
        return by_heads ? for_own_heads(&HeadOps::norm_head, op) : run_norm_rows(op);
      case Action::rope:
        return by_heads ? for_own_heads(&HeadOps::rope_head, op) : run_rope_rows(op);
      case Action::kv_write:
        return by_heads ? for_own_heads(&HeadOps::kv_write_head, op) : run_kv_write_rows(op);
      case Action::merge_parts:
        return run_merge_parts(op);
      default:
        return by_heads ? run_attend_heads(op) : run_attend_parts(op);
    }
  }

 private:
  /// Calls the member for this thread's share of (sequence, KV head).
  void for_own_heads(void (HeadOps::*body)(const CompiledOp&, std::uint32_t, std::uint32_t) const,
                     const CompiledOp& op) const {
    const Range units = share(c_.step.n_seqs * n_kv_heads());
    for (std::uint32_t unit = units.first; unit < units.last; ++unit)
      (this->*body)(op, unit / n_kv_heads(), unit % n_kv_heads());
  }

  /// Heads [first, first + n) of a row.
  void norm_heads(const CompiledOp& op,
                  std::uint32_t row,
                  std::uint32_t first,
                  std::uint32_t n) const {
    for (std::uint32_t head = first; head < first + n; ++head) {
      const std::size_t at = std::size_t{head} * op.head_dim;
      k_.rms_norm(
          floats(op.in[0], row) + at, op.vector, op.head_dim, op.number, floats(op.out, row) + at);
    }
  }
  void run_norm_rows(const CompiledOp& op) const {
    const Range rows = rows_of(op, RowCount::step);
    for (std::uint32_t row = rows.first; row < rows.last; ++row)
      norm_heads(op, row, 0, op.n_heads);
  }
  void norm_head(const CompiledOp& op, std::uint32_t seq, std::uint32_t kv_head) const {
    const std::uint32_t heads = op.n_heads / n_kv_heads();
    for (std::uint32_t row = c_.step.seq_first_row[seq]; row < c_.step.seq_first_row[seq + 1];
         ++row)
      norm_heads(op, row, kv_head * heads, heads);
  }

  [[nodiscard]] kernels::RopeArgs rope_args(const CompiledOp& op, std::uint32_t row) const {
    const RopeTable& table = *op.rope;
    const std::size_t at = std::size_t{c_.step.positions[row]} * table.n_pairs;
    kernels::RopeArgs args;
    args.style =
        op.kind == LUNA_ROPE_HALVES ? kernels::RopeStyle::halves : kernels::RopeStyle::interleaved;
    args.n_heads = static_cast<int>(op.n_heads);
    args.head_dim = static_cast<int>(op.head_dim);
    args.n_rot = static_cast<int>(2 * table.n_pairs);
    args.cosine = table.cosine.data() + at;
    args.sine = table.sine.data() + at;
    args.x = floats(op.in[0], row);
    args.y = floats(op.out, row);
    return args;
  }
  void run_rope_rows(const CompiledOp& op) const {
    const Range rows = rows_of(op, RowCount::step);
    for (std::uint32_t row = rows.first; row < rows.last; ++row)
      k_.rope(rope_args(op, row));
  }
  void rope_head(const CompiledOp& op, std::uint32_t seq, std::uint32_t kv_head) const {
    const std::uint32_t heads = op.n_heads / n_kv_heads();
    for (std::uint32_t row = c_.step.seq_first_row[seq]; row < c_.step.seq_first_row[seq + 1];
         ++row) {
      kernels::RopeArgs args = rope_args(op, row);
      args.n_heads = static_cast<int>(heads);
      args.x += std::size_t{kv_head} * heads * op.head_dim;
      args.y += std::size_t{kv_head} * heads * op.head_dim;
      k_.rope(args);
    }
  }

  void run_kv_write_rows(const CompiledOp& op) const {
    const Range rows = rows_of(op, RowCount::step);
    std::uint32_t seq = 0;
    for (std::uint32_t row = rows.first; row < rows.last; ++row) {
      while (row >= c_.step.seq_first_row[seq + 1])
        ++seq;
      k_.kv_write(
          {kv_of(op.layer, seq), slot_of(seq, row), floats(op.in[0], row), floats(op.in[1], row)});
    }
  }
  void kv_write_head(const CompiledOp& op, std::uint32_t seq, std::uint32_t kv_head) const {
    kernels::KvView kv = kv_of(op.layer, seq);
    kv.base += kv_head * kernels::kv_head_bytes(kv.shape);
    kv.shape.n_kv_heads = 1;
    const std::size_t at = kv_head * static_cast<std::size_t>(kv.shape.head_dim);
    for (std::uint32_t row = c_.step.seq_first_row[seq]; row < c_.step.seq_first_row[seq + 1];
         ++row)
      k_.kv_write({kv, slot_of(seq, row), floats(op.in[0], row) + at, floats(op.in[1], row) + at});
  }

  /// One call of a kernel, which waits for what comes after it.
  struct Call {
    std::uint32_t n_seqs = 0;  // 0: none
    std::uint32_t shared_slots = 0;
    PartitionRange part;  // empty: all
    float* states = nullptr;
    kernels::AttendArgs args[kernels::kAttendTogetherQueries];
  };
  void make(Call* call, const kernels::AttendArgs* next) const {
    call->args[0].next = next;
    if (call->n_seqs > 1)
      k_.attend_together({call->args, static_cast<int>(call->n_seqs), call->shared_slots, next});
    else if (!call->part.is_empty())
      k_.attend_partial(
          {call->args[0], call->part.first, call->part.last - call->part.first, call->states});
    else if (call->n_seqs == 1)
      k_.attend(call->args[0]);
    call->n_seqs = 0;
  }
  void run_attend_heads(const CompiledOp& op) const {
    Call call;
    const Range units = share(c_.step.n_seqs * n_kv_heads());
    for (std::uint32_t unit = units.first; unit < units.last; ++unit)
      for_runs(unit / n_kv_heads(), kNarrowRows, [&](const RowRun& run) {
        const kernels::AttendArgs args = attend_args(op, run, unit % n_kv_heads());
        make(&call, &args);
        call.n_seqs = 1;
        call.args[0] = args;
      });
    make(&call, nullptr);
  }

  /// A piece of attention: the rows of a run for one KV head; or, of the sequences of a task that
  /// is not alone, all rows.
  struct Piece {
    const AttendTask* task;
    std::uint32_t kv_head;
    RowRun run;       // alone
    AttendUnit unit;  // alone
    AttendCost cost;
  };
  /// The rows of a sequence that a task may take with others: they are one run.
  [[nodiscard]] RowRun whole_run(std::uint32_t seq) const {
    RowRun whole;
    for_runs(seq, c_.step.n_rows, [&](const RowRun& run) { whole = run; });
    return whole;
  }
  [[nodiscard]] std::uint64_t cost_together(const CompiledOp& op, const AttendTask& task) const {
    std::uint64_t cost = 0;
    for (std::uint32_t i = 0; i < task.n_seqs; ++i) {
      const RowRun run = whole_run(c_.attend_order.seq(task.first + i));
      const AttendUnit unit{run.first_slot, run.n_rows, op.window, 0};
      cost += unit.cost() - (i == 0 ? 0 : unit.cost_of_slots(task.shared_slots) / 2);
    }
    return cost;
  }
  /// Calls body(piece) in the order in which attention is cut: group after group of sequences that
  /// begin alike, head after head of it, so that its KV stays in the cache.
  template <typename Body>
  void for_pieces(const CompiledOp& op, Body&& body) const {
    std::uint64_t before = 0;
    std::uint32_t first = 0;
    for (const std::uint32_t end : c_.attend_order.group_ends()) {
      for (std::uint32_t head = 0; head < n_kv_heads(); ++head)
        for (const AttendTask& task : c_.attend_order.tasks().subspan(first, end - first)) {
          if (!task.is_alone()) {
            const AttendCost cost{before, cost_together(op, task)};
            body(Piece{&task, head, {}, {}, cost});
            before += cost.own;
            continue;
          }
          for_runs(c_.attend_order.seq(task.first), kAttendTaskRows, [&](const RowRun& run) {
            const AttendUnit unit{run.first_slot, run.n_rows, op.window, before};
            body(Piece{&task, head, run, unit, {before, unit.cost()}});
            before += unit.cost();
          });
        }
      first = end;
    }
  }
  [[nodiscard]] AttendShares attend_shares(const CompiledOp& op) const {
    std::uint64_t total = 0;
    for_pieces(op, [&](const Piece& piece) { total = piece.cost.before + piece.cost.own; });
    return {total, n_threads_};
  }
  /// Where a thread leaves the states of a part: at most one unit began on a thread before it, and
  /// at most one that begins here ends on a thread after it.
  [[nodiscard]] float* part_states(std::uint32_t thread,
                                   PartitionRange part,
                                   PartitionRange all) const {
    const std::uint64_t which = part.first == all.first ? 1 : 0;
    return reinterpret_cast<float*>(memory_of(thread) + s_.parts + which * s_.part_bytes);
  }
  void run_attend_parts(const CompiledOp& op) const {
    const AttendShares shares = attend_shares(op);
    Call call;
    for_pieces(op, [&](const Piece& piece) {
      const AttendTask& task = *piece.task;
      PartitionRange all;
      PartitionRange part;
      if (task.is_alone()) {
        all = piece.unit.partitions();
        part = shares.part_of(piece.unit, thread_);
        if (part.is_empty()) return;
      } else if (shares.owner_of(piece.cost) != thread_) {
        return;
      }
      const RowRun run = task.is_alone() ? piece.run : whole_run(c_.attend_order.seq(task.first));
      const kernels::AttendArgs args = attend_args(op, run, piece.kv_head);
      make(&call, &args);
      call.n_seqs = task.n_seqs;
      call.shared_slots = task.shared_slots;
      call.part = part == all ? PartitionRange{} : part;
      call.states = part_states(thread_, part, all);
      call.args[0] = args;
      for (std::uint32_t i = 1; i < task.n_seqs; ++i)
        call.args[i] =
            attend_args(op, whole_run(c_.attend_order.seq(task.first + i)), piece.kv_head);
    });
    make(&call, nullptr);
  }
  void run_merge_parts(const CompiledOp& op) const {
    const AttendShares shares = attend_shares(op);
    for_pieces(op, [&](const Piece& piece) {
      if (piece.task->is_alone()) merge_unit(op, shares, piece);
    });
  }
  /// Joins what the threads left of a unit; each takes its share of the queries.
  void merge_unit(const CompiledOp& op, const AttendShares& shares, const Piece& piece) const {
    const RowRun& run = piece.run;
    const AttendUnit& unit = piece.unit;
    const PartitionRange all = unit.partitions();
    if (all.last - all.first < 2) return;
    const std::uint32_t n_queries = run.n_rows * group_heads(op);
    const Range own = share(n_queries);
    const auto state_floats = static_cast<std::size_t>(kernels::state_floats(c_.kv.shape.head_dim));
    // Lists as long as there are partitions; a pointer moves on from query to query.
    auto** states = reinterpret_cast<const float**>(own_ + s_.part_lists);
    auto* nodes = reinterpret_cast<kernels::TreeNode*>(states + (all.last - all.first));
    int n_nodes = 0;
    for (std::uint32_t thread = 0; thread < n_threads_; ++thread) {
      const PartitionRange part = shares.part_of(unit, thread);
      if (part == all) return;  // nobody cut it
      if (part.is_empty()) continue;
      const int first = n_nodes;
      n_nodes += kernels::cover_partitions(part.first, part.last - part.first, nodes + n_nodes);
      for (int n = first; n < n_nodes; ++n)
        states[n] = part_states(thread, part, all) +
                    (static_cast<std::size_t>(n - first) * n_queries + own.first) * state_floats;
    }
    const kernels::AttendArgs args = attend_args(op, run, piece.kv_head);
    for (std::uint32_t query = own.first; query < own.last; ++query) {
      float* out = args.out + query / group_heads(op) * static_cast<std::size_t>(args.out_stride) +
                   query % group_heads(op) * head_dim();
      k_.merge_partials({static_cast<int>(head_dim()),
                         n_nodes,
                         nodes,
                         states,
                         out,
                         args.log_sum_exp == nullptr ? nullptr : args.log_sum_exp + query,
                         own_ + s_.kernel_scratch});
      for (int n = 0; n < n_nodes; ++n)
        states[n] += state_floats;
    }
  }
};

}  // namespace

void run_head_op(const ThreadView& view, const CompiledOp& op) {
  HeadOps(view).run(op);
}

}  // namespace luna::cpu
