// What ops on heads share: a sequence's KV, its runs of rows, the arguments of attention.
#pragma once

#include "slice_tile.hpp"
#include "step_thread.hpp"

namespace luna::cpu {

/// A thread's view of heads and KV. A value for the length of an op.
class HeadView : public ThreadView {
 public:
  explicit HeadView(const ThreadView& view) : ThreadView(view) {}

 protected:
  /// Where the KV of a row lies: its position, less those pruned.
  [[nodiscard]] std::uint32_t slot_of(std::uint32_t seq, std::uint32_t row) const {
    return c_.step.positions[row] - prune_of(c_.step, seq).n_pruned;
  }
  [[nodiscard]] const std::uint32_t* table_of(std::uint32_t seq) const {
    return c_.step.block_tables + std::size_t{seq} * c_.step.block_table_stride;
  }
  [[nodiscard]] kernels::KvView kv_of(std::uint32_t layer, std::uint32_t seq) const {
    kernels::KvView kv;
    kv.shape = c_.kv.shape;
    kv.base = c_.kv.base + layer * kernels::kv_block_bytes(c_.kv.shape);
    kv.block_stride_bytes = c_.kv.block_bytes;
    kv.table = table_of(seq);
    return kv;
  }

  /// Calls body(run) for the runs of a sequence, at most rows_max rows each.
  template <typename Body>
  void for_runs(std::uint32_t seq, std::uint32_t rows_max, Body&& body) const {
    const std::uint32_t end = c_.step.seq_first_row[seq + 1];
    std::uint32_t row = c_.step.seq_first_row[seq];
    while (row < end) {
      std::uint32_t n = 1;
      while (row + n < end && n < rows_max &&
             c_.step.positions[row + n] == c_.step.positions[row] + n)
        ++n;
      body(RowRun{seq, row, n, slot_of(seq, row)});
      row += n;
    }
  }
  [[nodiscard]] std::uint32_t group_heads(const CompiledOp& op) const {
    return op.n_heads / n_kv_heads();
  }
  [[nodiscard]] std::size_t head_dim() const {
    return static_cast<std::size_t>(c_.kv.shape.head_dim);
  }
  [[nodiscard]] kernels::AttendArgs attend_args(const CompiledOp& op,
                                                const RowRun& run,
                                                std::uint32_t kv_head) const {
    const std::size_t at = std::size_t{kv_head} * group_heads(op) * head_dim();
    kernels::AttendArgs args;
    args.kv = kv_of(op.layer, run.seq);
    args.kv_head = static_cast<int>(kv_head);
    args.group_heads = static_cast<int>(group_heads(op));
    args.first_position = run.first_slot;
    args.n_rows = run.n_rows;
    args.window = op.window;
    args.scale = op.number;
    args.softcap = op.softcap;
    args.q = floats(op.in[0], run.first_row) + at;
    args.q_stride = stride_floats(op.in[0]);
    args.out = floats(op.out, run.first_row) + at;
    args.out_stride = stride_floats(op.out);
    args.scratch = own_ + s_.kernel_scratch;
    if (s_.width == Width::observing) args.log_sum_exp = log_sum_exps(op, run.first_row, kv_head);
    return args;
  }
  /// The log-sum-exps of a row and the heads of a KV head; those of the next row follow.
  [[nodiscard]] float* log_sum_exps(const CompiledOp& op,
                                    std::uint32_t row,
                                    std::uint32_t kv_head) const {
    const std::size_t at = (std::size_t{kv_head} * c_.step.n_rows + row) * group_heads(op);
    return reinterpret_cast<float*>(c_.shared + s_.log_sum_exps) + at;
  }
};

}  // namespace luna::cpu
