// What a thread knows in a step: its share of rows, columns and heads, and where tensors lie.
#pragma once

#include "run.hpp"

#include <algorithm>

namespace luna::cpu {

struct Range {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  [[nodiscard]] std::uint32_t size() const { return last - first; }
};

/// One thread's view of one step. A value for the length of the step.
class ThreadView {
 public:
  ThreadView(StepContext& context, std::uint32_t thread)
      : c_(context),
        s_(*context.schedule),
        k_(*context.kernels),
        thread_(thread),
        n_threads_(context.team->n_threads()),
        own_(context.private_memory + thread * context.private_stride) {}

 protected:
  // ---- Sharing out

  [[nodiscard]] Range share(std::uint32_t n) const {
    const std::uint64_t total = n;
    return {static_cast<std::uint32_t>(total * thread_ / n_threads_),
            static_cast<std::uint32_t>(total * (thread_ + 1) / n_threads_)};
  }
  [[nodiscard]] std::uint32_t n_rows(RowCount rows) const {
    return rows == RowCount::step ? c_.step.n_rows : c_.step.n_out_rows;
  }
  [[nodiscard]] Range rows_of(const CompiledOp& op, RowCount rows) const {
    const std::uint32_t n = n_rows(rows);
    return op.split == Split::every_thread ? Range{0, n} : share(n);
  }
  /// This thread's columns of a tensor: whole strips, as linear ops share them.
  [[nodiscard]] Range columns_of(std::uint32_t width) const {
    const Range strips = share((width + 15) / 16);
    return {16 * strips.first, std::min(16 * strips.last, width)};
  }

  // ---- Tensors

  /// What thread `thread` has of its own: it may be read once that thread has passed a barrier.
  [[nodiscard]] std::byte* memory_of(std::uint32_t thread) const {
    return c_.private_memory + thread * c_.private_stride;
  }
  [[nodiscard]] std::byte* base(bool is_private) const { return is_private ? own_ : c_.shared; }
  [[nodiscard]] std::byte* bytes(const TensorRef& t, std::uint32_t row) const {
    return base(t.is_private) + t.offset + t.column_bytes + row * t.stride_bytes;
  }
  [[nodiscard]] float* floats(const TensorRef& t, std::uint32_t row) const {
    return reinterpret_cast<float*>(bytes(t, row));
  }
  static std::int64_t stride_floats(const TensorRef& t) {
    return static_cast<std::int64_t>(t.stride_bytes / sizeof(float));
  }
  [[nodiscard]] kernels::QuantizedRows quantized(const ActivationBuffer& b,
                                                 std::uint32_t slot = 0) const {
    return kernels::place_quantized_rows(
        base(b.is_private) + b.offset + slot * b.slot_bytes, n_rows(b.rows), b.k, b.group, b.bits);
  }
  [[nodiscard]] kernels::DenseRows dense(const ActivationBuffer& b, std::uint32_t slot = 0) const {
    return kernels::place_dense_rows(
        base(b.is_private) + b.offset + slot * b.slot_bytes, n_rows(b.rows), b.k);
  }

  /// Calls body(row, columns) for every row of an op that is shared out by columns.
  template <typename Body>
  void for_own_columns(const CompiledOp& op, Body&& body) const {
    const Range columns = columns_of(op.out.width);
    if (columns.size() == 0) return;
    for (std::uint32_t row = 0; row < n_rows(op.out.rows); ++row)
      body(row, columns);
  }

  [[nodiscard]] std::uint32_t n_kv_heads() const {
    return static_cast<std::uint32_t>(c_.kv.shape.n_kv_heads);
  }

  StepContext& c_;
  const Schedule& s_;
  const kernels::KernelSet& k_;
  const std::uint32_t thread_;
  const std::uint32_t n_threads_;
  std::byte* const own_;  // this thread's private memory
};

/// rope, kv_write, attend or merge_parts, by the op's split (run_heads.cpp).
void run_head_op(const ThreadView& view, const CompiledOp& op);
/// moe_route, grouped_linear or moe_sum (run_experts.cpp).
void run_expert_op(const ThreadView& view, const CompiledOp& op);
/// attend_tiles (run_slices.cpp).
void run_slice_op(const ThreadView& view, const CompiledOp& op);
/// observe or prune (run_prune.cpp).
void run_prune_op(const ThreadView& view, const CompiledOp& op);

}  // namespace luna::cpu
