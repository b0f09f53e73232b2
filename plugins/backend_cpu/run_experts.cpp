// Ops of a mixture of experts: moe_route, grouped_linear, moe_sum.
//
// Threads share each expert's columns, as they do those of any linear op, and take the experts in
// turn: an expert's weights are read once for all rows that go to it.
#include "step_thread.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace luna::cpu {
namespace {

class ExpertOps : public ThreadView {
 public:
  explicit ExpertOps(const ThreadView& view) : ThreadView(view) {}

  void run(const CompiledOp& op) const {
    if (op.action == Action::moe_route) return run_route(op);
    if (op.action == Action::moe_sum) return run_sum(op);
    run_linear(op);
  }

 private:
  void run_route(const CompiledOp& op) const {
    const Range rows = rows_of(op, RowCount::step);
    for (std::uint32_t row = rows.first; row < rows.last; ++row)
      route(floats(op.in[0], row), op, floats(op.out, row));
  }

  /// Plain doubles: the experts of a row are few, and all instruction sets choose the same.
  static void route(const float* scores, const CompiledOp& op, float* routes) {
    const std::uint32_t n = op.out.width;
    const auto score = [&](std::uint32_t e) {
      return std::isnan(scores[e]) ? -std::numeric_limits<float>::infinity() : scores[e];
    };
    std::fill_n(routes, n, 0.0F);
    double sum = 0.0;
    double largest = 0.0;
    for (std::uint32_t i = 0; i < op.k; ++i) {
      std::uint32_t best = n;
      for (std::uint32_t e = 0; e < n; ++e)
        if (routes[e] == 0.0F && (best == n || score(e) > score(best))) best = e;
      if (i == 0) largest = score(best);
      routes[best] = 1.0F;
      sum += std::exp(score(best) - largest);
    }
    if (op.kind == 0) {
      sum = 0.0;
      for (std::uint32_t e = 0; e < n; ++e)
        sum += std::exp(score(e) - largest);
    }
    for (std::uint32_t e = 0; e < n; ++e)
      if (routes[e] != 0.0F) routes[e] = static_cast<float>(std::exp(score(e) - largest) / sum);
  }

  void run_linear(const CompiledOp& op) const {
    const Range strips = share(static_cast<std::uint32_t>(op.form->n_strips));
    const TensorRef& routes = op.in[0];
    const std::uint32_t n = n_rows(RowCount::step);
    if (n == 0 || strips.size() == 0) return;
    auto* n_slots = reinterpret_cast<std::uint32_t*>(own_ + s_.slot_counts);  // of a row, so far
    std::fill_n(n_slots, n, 0U);
    for (std::uint32_t expert = 0; expert < routes.width; ++expert) {
      const auto is_wanted = [&](std::uint32_t row) {
        return floats(routes, row)[expert] != 0.0F && n_slots[row] < op.k;
      };
      for (std::uint32_t row = 0; row < n;) {
        if (!is_wanted(row)) {
          ++row;
          continue;
        }
        const std::uint32_t first = row;
        const std::uint32_t slot = n_slots[row];
        for (; row < n && is_wanted(row) && n_slots[row] == slot; ++row)
          ++n_slots[row];
        multiply(op, expert, slot, {first, row}, strips);
      }
    }
  }

  /// Rows that have the expert in the same slot.
  void multiply(const CompiledOp& op,
                std::uint32_t expert,
                std::uint32_t slot,
                Range rows,
                Range strips) const {
    const ActivationBuffer& buffer = s_.activations[op.activation];
    const std::uint32_t slot_in = buffer.n_slots == 1 ? 0 : slot;
    kernels::QuantizedRows quantized_rows;
    kernels::DenseRows dense_rows;
    kernels::LinearArgs args;
    args.form = op.form.get();
    args.packed = op.weight->packed.data + expert * kernels::packed_bytes(*op.form);
    if (buffer.is_dense) {
      dense_rows = dense(buffer, slot_in);
      args.dense = &dense_rows;
    } else {
      quantized_rows = quantized(buffer, slot_in);
      args.quantized = &quantized_rows;
    }
    args.first_row = rows.first;
    args.n_rows = rows.size();
    args.first_strip = strips.first;
    args.n_strips = strips.size();
    args.y = floats(op.out, 0) + static_cast<std::size_t>(slot) * op.out.width / op.k;
    args.y_stride = stride_floats(op.out);
    args.scratch = own_ + s_.kernel_scratch;
    k_.linear(args);
  }

  void run_sum(const CompiledOp& op) const {
    for_own_columns(op, [&](std::uint32_t row, Range columns) {
      const float* routes = floats(op.in[1], row);
      const float* slot = floats(op.in[0], row) + columns.first;
      float* y = floats(op.out, row) + columns.first;
      std::fill_n(y, columns.size(), 0.0F);
      std::uint32_t left = op.in[0].width / op.out.width;
      for (std::uint32_t expert = 0; expert < op.in[1].width && left > 0; ++expert) {
        if (routes[expert] == 0.0F) continue;
        for (std::uint32_t c = 0; c < columns.size(); ++c)
          y[c] += routes[expert] * slot[c];
        slot += op.out.width;
        --left;
      }
    });
  }
};

}  // namespace

void run_expert_op(const ThreadView& view, const CompiledOp& op) {
  ExpertOps(view).run(op);
}

}  // namespace luna::cpu
