// Ops on heads: rope, kv_write, attend.
//
// Narrow steps share them by (sequence, KV head): then one thread rotates, writes and reads a head,
// without a barrier in between. Wide steps share rope and kv_write by rows. Attention is cut by
// cost in wide steps and where KV is long (attend_share.hpp).
#include "attend_share.hpp"
#include "head_view.hpp"

#include <optional>

namespace luna::cpu {
namespace {

class HeadOps : public HeadView {
 public:
  explicit HeadOps(const ThreadView& view) : HeadView(view) {}

  void run(const CompiledOp& op) const {
    const bool by_heads = op.split == Split::heads;
    switch (op.action) {
      case Action::rope:
        return by_heads ? for_own_heads(&HeadOps::rope_head, op) : run_rope_rows(op);
      case Action::kv_write:
        return by_heads ? for_own_heads(&HeadOps::kv_write_head, op) : run_kv_write_rows(op);
      case Action::merge_parts:
        return run_merge_parts(op);
      default:
        return by_heads ? for_own_heads(&HeadOps::attend_head, op) : run_attend_parts(op);
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

  void attend_head(const CompiledOp& op, std::uint32_t seq, std::uint32_t kv_head) const {
    for_runs(
        seq, kNarrowRows, [&](const RowRun& run) { k_.attend(attend_args(op, run, kv_head)); });
  }

  /// Calls body(run, kv_head, unit) in the order in which attention is cut.
  template <typename Body>
  void for_units(const CompiledOp& op, Body&& body) const {
    std::uint64_t before = 0;
    for (std::uint32_t seq = 0; seq < c_.step.n_seqs; ++seq)
      for (std::uint32_t head = 0; head < n_kv_heads(); ++head)
        for_runs(seq, kAttendTaskRows, [&](const RowRun& run) {
          const AttendUnit unit{run.first_slot, run.n_rows, op.window, before};
          before += unit.cost();
          body(run, head, unit);
        });
  }
  [[nodiscard]] AttendShares attend_shares(const CompiledOp& op) const {
    std::uint64_t total = 0;
    for_units(op, [&](const RowRun&, std::uint32_t, const AttendUnit& unit) {
      total = unit.before + unit.cost();
    });
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
    std::optional<kernels::AttendArgs> whole;  // waits for what comes after it
    const auto attend_whole = [&](const kernels::AttendArgs* next) {
      if (!whole) return;
      whole->next = next;
      k_.attend(*whole);
      whole.reset();
    };
    for_units(op, [&](const RowRun& run, std::uint32_t head, const AttendUnit& unit) {
      const PartitionRange all = unit.partitions();
      const PartitionRange part = shares.part_of(unit, thread_);
      if (part.is_empty()) return;
      const kernels::AttendArgs args = attend_args(op, run, head);
      attend_whole(&args);
      if (part == all) {
        whole = args;
        return;
      }
      k_.attend_partial(
          {args, part.first, part.last - part.first, part_states(thread_, part, all)});
    });
    attend_whole(nullptr);
  }
  void run_merge_parts(const CompiledOp& op) const {
    const AttendShares shares = attend_shares(op);
    for_units(op, [&](const RowRun& run, std::uint32_t head, const AttendUnit& unit) {
      merge_unit(op, shares, run, head, unit);
    });
  }
  /// Joins what the threads left of a unit; each takes its share of the queries.
  void merge_unit(const CompiledOp& op,
                  const AttendShares& shares,
                  const RowRun& run,
                  std::uint32_t kv_head,
                  const AttendUnit& unit) const {
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
    const kernels::AttendArgs args = attend_args(op, run, kv_head);
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
