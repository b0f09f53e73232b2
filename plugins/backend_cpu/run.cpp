// One thread walks the phases of a step: ops on rows and columns, candidates, and what the leader
// does alone. Ops on heads are in run_heads.cpp.
#include "step_thread.hpp"

#include <luna/float16.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace luna::cpu {
namespace {

class StepThread : public ThreadView {
 public:
  StepThread(StepContext& context, std::uint32_t thread) : ThreadView(context, thread) {}

  void run() {
    std::uint32_t i = 0;
    for (const std::uint32_t end : s_.phase_ends) {
      if (i != 0) c_.team->barrier();
      for (; i < end; ++i)
        if (c_.status.load(std::memory_order_relaxed) == LUNA_OK) run_op(s_.ops[i]);
    }
  }

 private:
  void run_op(const CompiledOp& op) {
    switch (op.action) {
      case Action::embed:
        return run_embed(op);
      case Action::rms_norm:
      case Action::layer_norm:
        return run_norm(op);
      case Action::quantize:
        return run_quantize(op);
      case Action::linear:
        return run_linear(op);
      case Action::grouped_linear:
      case Action::moe_route:
      case Action::moe_sum:
        return run_expert_op(*this, op);
      case Action::head_norm:
      case Action::rope:
      case Action::kv_write:
      case Action::attend:
      case Action::merge_parts:
        return run_head_op(*this, op);
      case Action::attend_tiles:
        return run_slice_op(*this, op);
      case Action::observe:
      case Action::prune:
        return run_prune_op(*this, op);
      case Action::act_mul:
      case Action::add:
      case Action::scale:
      case Action::softcap:
        return run_elementwise(op);
      case Action::gather_rows:
        return run_gather(op);
      case Action::copy_rows:
        return run_copy(op);
      case Action::logits:
        return run_logits(op);
      case Action::score_chunks:
        return run_score_chunks(op);
      case Action::merge_chunks:
        return run_merge_chunks(op);
      case Action::kv_copy:
      case Action::send:
      case Action::recv:
      case Action::all_reduce:
      case Action::all_gather:
      case Action::barrier:
        if (thread_ == 0) run_leader_op(op);
        return;
    }
  }

  // ---- Rows

  void run_embed(const CompiledOp& op) const {
    const Range rows = rows_of(op, op.out.rows);
    for (std::uint32_t row = rows.first; row < rows.last; ++row)
      k_.unpack_row(
          op.weight->form, op.weight->packed.data, c_.step.token_ids[row], floats(op.out, row));
  }
  void run_norm(const CompiledOp& op) const {
    const Range rows = rows_of(op, op.out.rows);
    for (std::uint32_t row = rows.first; row < rows.last; ++row) {
      const float* x = floats(op.in[0], row);
      float* y = floats(op.out, row);
      if (op.action == Action::rms_norm)
        k_.rms_norm(x, op.vector, op.out.width, op.number, y);
      else
        k_.layer_norm({x, op.vector, op.bias, op.out.width, op.number, y});
    }
  }
  void run_quantize(const CompiledOp& op) const {
    const ActivationBuffer& buffer = s_.activations[op.activation];
    const Range rows = rows_of(op, buffer.rows);
    if (rows.size() == 0) return;
    for (std::uint32_t slot = 0; slot < buffer.n_slots; ++slot) {
      const float* x = floats(op.in[0], rows.first) + slot * buffer.k;
      if (buffer.is_dense) {
        const kernels::DenseRows out = dense(buffer, slot);
        k_.round_rows(x, stride_floats(op.in[0]), rows.first, rows.size(), &out);
      } else {
        const kernels::QuantizedRows out = quantized(buffer, slot);
        k_.quantize_rows(x, stride_floats(op.in[0]), rows.first, rows.size(), &out);
      }
    }
  }
  void run_gather(const CompiledOp& op) const {
    const Range rows = rows_of(op, RowCount::out);
    for (std::uint32_t row = rows.first; row < rows.last; ++row)
      std::memcpy(bytes(op.out, row),
                  bytes(op.in[0], c_.step.out_rows[row]),
                  op.out.width * dtype_bytes(op.out.dtype));
  }
  void run_copy(const CompiledOp& op) const {
    const Range rows = rows_of(op, op.out.rows);
    for (std::uint32_t row = rows.first; row < rows.last; ++row) {
      if (op.in[0].dtype == op.out.dtype) {
        std::memcpy(
            bytes(op.out, row), bytes(op.in[0], row), op.out.width * dtype_bytes(op.out.dtype));
        continue;
      }
      for (std::uint32_t i = 0; i < op.out.width; ++i)
        store(bytes(op.out, row), op.out.dtype, i, load(bytes(op.in[0], row), op.in[0].dtype, i));
    }
  }
  static float load(const std::byte* row, std::uint32_t dtype, std::uint32_t i) {
    if (dtype == LUNA_DTYPE_F32) return reinterpret_cast<const float*>(row)[i];
    const std::uint16_t half = reinterpret_cast<const std::uint16_t*>(row)[i];
    return dtype == LUNA_DTYPE_F16 ? f16_to_f32(half) : bf16_to_f32(half);
  }
  static void store(std::byte* row, std::uint32_t dtype, std::uint32_t i, float x) {
    if (dtype == LUNA_DTYPE_F32)
      reinterpret_cast<float*>(row)[i] = x;
    else
      reinterpret_cast<std::uint16_t*>(row)[i] =
          dtype == LUNA_DTYPE_F16 ? f32_to_f16(x) : f32_to_bf16(x);
  }

  // ---- Columns

  void run_linear(const CompiledOp& op) const {
    const ActivationBuffer& buffer = s_.activations[op.activation];
    const Range strips = share(static_cast<std::uint32_t>(op.form->n_strips));
    if (n_rows(buffer.rows) == 0 || strips.size() == 0) return;
    kernels::QuantizedRows quantized_rows;
    kernels::DenseRows dense_rows;
    kernels::LinearArgs args;
    args.form = op.form.get();
    args.packed = op.weight->packed.data;
    if (buffer.is_dense) {
      dense_rows = dense(buffer);
      args.dense = &dense_rows;
    } else {
      quantized_rows = quantized(buffer);
      args.quantized = &quantized_rows;
    }
    args.n_rows = n_rows(buffer.rows);
    args.first_strip = strips.first;
    args.n_strips = strips.size();
    args.y = floats(op.out, 0);
    args.y_stride = stride_floats(op.out);
    args.scratch = own_ + s_.kernel_scratch;
    k_.linear(args);
    if (op.vector == nullptr) return;
    for_own_columns(op, [&](std::uint32_t row, Range c) {
      float* y = floats(op.out, row) + c.first;
      k_.add(y, op.vector + c.first, c.size(), y);
    });
  }
  void run_elementwise(const CompiledOp& op) const {
    for_own_columns(op, [&](std::uint32_t row, Range c) {
      const float* a = floats(op.in[0], row) + c.first;
      float* y = floats(op.out, row) + c.first;
      switch (op.action) {
        case Action::act_mul:
          return k_.act_mul(op.kind == LUNA_ACT_GELU_TANH ? kernels::Activation::gelu_tanh
                                                          : kernels::Activation::silu,
                            a,
                            floats(op.in[1], row) + c.first,
                            c.size(),
                            y);
        case Action::add:
          return k_.add(a, floats(op.in[1], row) + c.first, c.size(), y);
        case Action::scale:
          return k_.scale(a, op.number, c.size(), y);
        default:
          return k_.softcap(a, op.number, c.size(), y);
      }
    });
  }
  void run_logits(const CompiledOp& op) const {
    const TensorRef& x = op.in[0];
    const Range columns = columns_of(x.width);
    for (std::uint32_t row = 0; row < n_rows(x.rows); ++row)
      if ((c_.step.out_flags[row] & LUNA_OUT_LOGITS) != 0)
        std::memcpy(c_.logits + std::size_t{row} * x.width + columns.first,
                    floats(x, row) + columns.first,
                    columns.size() * sizeof(float));
  }

  // ---- Candidates

  [[nodiscard]] static std::uint32_t n_chunks_of(std::uint32_t width) {
    return (width + kernels::kLogitsChunk - 1) / kernels::kLogitsChunk;
  }
  [[nodiscard]] kernels::LogitsState* states_of(std::uint32_t row, std::uint32_t n_chunks) const {
    return reinterpret_cast<kernels::LogitsState*>(c_.shared + s_.chunk_states) +
           std::size_t{row} * n_chunks;
  }
  [[nodiscard]] bool wants_candidates(std::uint32_t row) const {
    return (c_.step.out_flags[row] & LUNA_OUT_CANDIDATES) != 0;
  }
  void run_score_chunks(const CompiledOp& op) const {
    const std::uint32_t width = op.in[0].width;
    const std::uint32_t n_chunks = n_chunks_of(width);
    const Range own = share(n_chunks);
    if (own.size() == 0) return;
    const std::uint32_t first = own.first * kernels::kLogitsChunk;
    const std::uint32_t last = std::min<std::uint32_t>(own.last * kernels::kLogitsChunk, width);
    for (std::uint32_t row = 0; row < c_.step.n_out_rows; ++row)
      if (wants_candidates(row))
        k_.logits_chunks({floats(op.in[0], row),
                          first,
                          last - first,
                          static_cast<int>(op.k),
                          states_of(row, n_chunks) + own.first});
  }
  void run_merge_chunks(const CompiledOp& op) const {
    const Range rows = share(c_.step.n_out_rows);
    const std::uint32_t n_chunks = n_chunks_of(op.in[0].width);
    for (std::uint32_t row = rows.first; row < rows.last; ++row) {
      if (!wants_candidates(row)) continue;
      std::uint32_t* out = c_.candidates + std::size_t{row} * 2 * (op.k + 1);
      auto* found = reinterpret_cast<kernels::Candidate*>(out);
      float log_sum_exp = 0.0F;
      const int n = kernels::merge_logits(states_of(row, n_chunks),
                                          static_cast<int>(n_chunks),
                                          static_cast<int>(op.k),
                                          found,
                                          &log_sum_exp);
      // Fewer than k numbers in the row: the rest can never be drawn.
      for (std::uint32_t i = static_cast<std::uint32_t>(n); i < op.k; ++i)
        found[i] = {-std::numeric_limits<float>::infinity(), 0};
      out[2 * op.k] = std::bit_cast<std::uint32_t>(log_sum_exp);
      out[2 * op.k + 1] = 0;
    }
  }

  // ---- The leader alone

  void run_leader_op(const CompiledOp& op) {
    if (op.action == Action::kv_copy) {
      for (std::uint32_t i = 0; i < c_.step.n_kv_copies; ++i)
        std::memmove(c_.kv.base + std::size_t{c_.step.kv_copies[i].to_block} * c_.kv.block_bytes,
                     c_.kv.base + std::size_t{c_.step.kv_copies[i].from_block} * c_.kv.block_bytes,
                     c_.kv.block_bytes);
      return;
    }
    const std::uint64_t start_ns = c_.host.now_ns();
    const luna_status status = op.action == Action::all_gather ? gather(op) : communicate(op);
    c_.wait_ns += c_.host.now_ns() - start_ns;
    if (status != LUNA_OK) c_.status.store(status, std::memory_order_relaxed);
  }
  luna_status communicate(const CompiledOp& op) {
    const luna_comm& comm = *c_.comm;
    if (op.action == Action::barrier) {  // a sum nobody reads: all ranks have arrived with it
      const float one = 1.0F;
      float sum = 0.0F;
      return comm.all_reduce(comm.self, &one, &sum, 1, LUNA_REDUCE_SUM_F32);
    }
    const TensorRef& t = op.action == Action::recv ? op.out : op.in[0];
    const std::uint32_t n = n_rows(t.rows);
    if (n == 0) return LUNA_OK;  // logits that nobody wants: no rank sends or waits
    const std::uint64_t n_floats = std::uint64_t{n} * t.width;
    auto* in = reinterpret_cast<float*>(c_.shared + s_.message);
    float* out = in + (n_floats + 15) / 16 * 16;
    if (op.action != Action::recv)
      for (std::uint32_t row = 0; row < n; ++row)
        std::memcpy(in + std::size_t{row} * t.width, floats(t, row), t.width * sizeof(float));
    if (op.action == Action::send)
      return comm.send(comm.self, op.peer, op.tag, in, n_floats * sizeof(float));
    const luna_status status =
        op.action == Action::recv
            ? comm.recv(comm.self, op.peer, op.tag, out, n_floats * sizeof(float))
            : comm.all_reduce(comm.self, in, out, n_floats, LUNA_REDUCE_SUM_F32);
    if (status != LUNA_OK) return status;
    for (std::uint32_t row = 0; row < n; ++row)
      std::memcpy(floats(op.out, row), out + std::size_t{row} * t.width, t.width * sizeof(float));
    return LUNA_OK;
  }
  /// This rank's columns lie in y before those of the others come.
  luna_status gather(const CompiledOp& op) {
    const TensorRef& x = op.in[0];
    ColumnGather gather = op.gather;
    gather.n_rows = n_rows(x.rows);
    const std::size_t own_n = std::size_t{gather.n_rows} * x.width;
    auto* own = reinterpret_cast<float*>(c_.shared + s_.message);
    float* received = own + (own_n + 15) / 16 * 16;
    const std::size_t received_n = std::size_t{gather.n_rows} * gather.share(0).count;
    const auto store = [&](ColumnShare share, const float* rows) {
      for (std::uint32_t row = 0; row < gather.n_rows; ++row)
        std::memcpy(floats(op.out, row) + share.first,
                    rows + std::size_t{row} * share.count,
                    share.count * sizeof(float));
    };
    for (std::uint32_t row = 0; row < gather.n_rows; ++row)
      std::memcpy(own + std::size_t{row} * x.width, floats(x, row), x.width * sizeof(float));
    store(gather.share(gather.rank), own);
    return gather_columns(*c_.comm, gather, {own, own_n}, {received, received_n}, store);
  }
};

}  // namespace

void run_step(StepContext& context, std::uint32_t thread) {
  if (thread == 0) context.start_ns = context.host.now_ns();
  StepThread(context, thread).run();
}

}  // namespace luna::cpu
