// A whole backend in one file: one thread, FP32, every op as the loop that defines it. It serves
// models of the Llama family, slowly. Replace the loops by yours, one by one; this says whether
// they are right.
#include "ops.hpp"

#include <luna/backend.hpp>
#include <luna/backend_blocks.hpp>
#include <luna/op_program.hpp>
#include <luna/quant.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace plain {

struct Buffer {
  std::uint32_t kind = 0;
  std::uint64_t bytes = 0;
  std::unique_ptr<std::byte[]> memory;  // zeroed
  luna::Reservation reservation;
};

struct Weight {
  luna_weight_desc desc = {};
  std::uint64_t n_rows_loaded = 0;
  std::vector<float> values;  // [n_rows, n_cols]
  luna::Reservation reservation;
};

class PlainExecutable;
struct Job {
  PlainExecutable* executable = nullptr;
  luna_step step = {};
};
using Queue = luna::JobQueue<Job, 64>;  // of eight programs, eight steps in flight each

// What a program uses of its device, which outlives it.
struct Parts {
  luna::Host host;
  Queue* queue;
  luna::MemoryBudget* budget;
  const luna::HandleTable<Buffer>* buffers;
  const luna::HandleTable<Weight>* weights;
};

inline std::uint64_t kv_bytes(const luna_kv_layout& kv) {
  return std::uint64_t{2} * kv.n_layers * kv.n_kv_heads * kv.head_dim * kv.block_tokens *
         sizeof(float);
}

// Rows that a slot of activations may have.
inline std::uint64_t n_rows_max(const luna_program& p, std::uint32_t slot) {
  for (std::uint32_t i = 0; i < p.n_views; ++i)
    if (p.views[i].slot == slot)
      return p.views[i].dims[0] == LUNA_DIM_ROWS ? p.n_rows_max : p.n_out_rows_max;
  return 0;
}

inline std::uint64_t scratch_bytes(const luna_program& p) {
  std::uint64_t bytes = sizeof(double) * p.n_positions_max;  // of one head's scores
  for (std::uint32_t i = 0; i < p.n_slots; ++i)
    if (p.slots[i].kind == LUNA_SLOT_SCRATCH) bytes += p.slots[i].bytes * n_rows_max(p, i);
  return bytes;
}

// A compiled program: memory for every activation, and a loop over the ops.
class PlainExecutable final : public luna::Executable {
 public:
  PlainExecutable(const luna_program& program, const Parts& parts)
      : own_(luna::Program::copy_of(program)), p_(own_.abi()), parts_(parts) {}

  // All memory that a step needs is taken here, so that a step takes none.
  luna::Result<void> prepare(std::span<const std::uint64_t> handles) {
    LUNA_TRY(reservation_,
             luna::Reservation::make(parts_.budget, scratch_bytes(p_), "activations"));
    scores_.resize(p_.n_positions_max);
    activations_.resize(p_.n_slots);
    weights_.resize(p_.n_slots);
    for (std::uint32_t i = 0; i < p_.n_slots; ++i)
      if (p_.slots[i].kind == LUNA_SLOT_SCRATCH)
        activations_[i].resize(p_.slots[i].bytes * n_rows_max(p_, i));
    for (std::uint32_t i = 0; i < p_.n_views; ++i) {
      const luna_slot& slot = p_.slots[p_.views[i].slot];
      if (slot.kind != LUNA_SLOT_WEIGHT) continue;
      const Weight* weight = parts_.weights->find(handles[slot.index]);
      if (weight == nullptr || weight->n_rows_loaded != weight->desc.n_rows)
        return luna::Error{luna::Code::invalid_argument,
                           "weight " + std::to_string(slot.index) + " is not loaded"};
      LUNA_TRY(luna::check_weight_shape(p_.views[i], weight->desc, slot.index));
      weights_[p_.views[i].slot] = weight;
    }
    return {};
  }

  luna::Result<void> submit(const luna_step& step) override {
    luna::StepBounds bounds = luna::step_bounds(p_);
    for (std::uint32_t i = 0; i < p_.n_slots; ++i) {
      const std::uint32_t kind = p_.slots[i].kind;
      if (kind != LUNA_SLOT_KV && kind != LUNA_SLOT_LOGITS && kind != LUNA_SLOT_CANDIDATES)
        continue;
      const Buffer* buffer = bound(step, kind);
      const std::uint32_t wanted = kind == LUNA_SLOT_KV ? LUNA_BUFFER_KV : LUNA_BUFFER_OUT;
      if (buffer == nullptr || buffer->kind != wanted ||
          (kind != LUNA_SLOT_KV && buffer->bytes < luna::out_bytes(p_, kind)))
        return luna::Error{luna::Code::invalid_argument,
                           "step: no fitting buffer is bound to slot " + std::to_string(i)};
      if (kind == LUNA_SLOT_KV) bounds.n_kv_blocks = buffer->bytes / kv_bytes(p_.kv);
    }
    LUNA_TRY(luna::check_step(bounds, step));
    // The host may be of an older minor version, whose step is shorter.
    if (parts_.queue->push({this, luna::copy_record(step)})) return {};
    return luna::Error{luna::Code::exhausted, "step: the device's queue is full"};
  }

  // On the device's thread.
  void run(const luna_step& step) {
    const std::uint64_t began_ns = parts_.host.now_ns();
    for (std::uint32_t i = 0; i < p_.n_ops; ++i)
      run_op(luna::OpReader(p_, p_.ops[i]), step);
    luna_step_result result = {};
    result.struct_size = sizeof(result);
    result.message = "";
    result.busy_ns = parts_.host.now_ns() - began_ns;
    step.done(step.done_context, &result);
  }

  static bool can(std::uint32_t op) {
    switch (op) {
      case LUNA_OP_EMBED:
      case LUNA_OP_RMS_NORM:
      case LUNA_OP_LINEAR:
      case LUNA_OP_ROPE:
      case LUNA_OP_KV_WRITE:
      case LUNA_OP_ATTEND:
      case LUNA_OP_ACT_MUL:
      case LUNA_OP_ADD:
      case LUNA_OP_GATHER_ROWS:
      case LUNA_OP_LOGITS:
      case LUNA_OP_TOP_CANDIDATES:
      case LUNA_OP_KV_COPY:
        return true;
      default:
        return false;
    }
  }

 private:
  void run_op(const luna::OpReader& op, const luna_step& step) {
    const auto in = [&](std::uint32_t i) { return rows(op.in(i), step); };
    const auto out = [&] { return rows(op.out(0), step); };
    switch (op.op().op) {
      case LUNA_OP_EMBED:
        return embed(matrix(op.in(0)), step.token_ids, out());
      case LUNA_OP_RMS_NORM:
        return rms_norm(in(0), matrix(op.in(1)).values, op.attr_f32(LUNA_RMS_NORM_EPS), out());
      case LUNA_OP_LINEAR:
        return linear(
            in(0), matrix(op.in(1)), op.op().n_in == 3 ? matrix(op.in(2)).values : nullptr, out());
      case LUNA_OP_ROPE:
        return rope(in(0),
                    step.positions,
                    {op.attr(LUNA_ROPE_N_HEADS),
                     op.attr(LUNA_ROPE_HEAD_DIM),
                     op.attr(LUNA_ROPE_N_ROT),
                     op.attr(LUNA_ROPE_STYLE) == LUNA_ROPE_HALVES,
                     op.attr_f32(LUNA_ROPE_MAGNITUDE),
                     static_cast<const double*>(op.slot(op.in(1)).data)},
                    out());
      case LUNA_OP_KV_WRITE:
        return for_each_row(step, [&](std::uint32_t row, const KvOfSequence& kv) {
          kv_write(in(0).row(row),
                   in(1).row(row),
                   kv,
                   op.attr(LUNA_KV_WRITE_LAYER),
                   step.positions[row]);
        });
      case LUNA_OP_ATTEND:
        return for_each_row(step, [&](std::uint32_t row, const KvOfSequence& kv) {
          attend(in(0).row(row),
                 kv,
                 {op.attr(LUNA_ATTEND_LAYER),
                  op.attr(LUNA_ATTEND_N_HEADS),
                  op.attr_f32(LUNA_ATTEND_SCALE),
                  op.attr(LUNA_ATTEND_WINDOW),
                  op.attr_f32(LUNA_ATTEND_SOFTCAP)},
                 std::span(scores_).first(step.positions[row] + 1),
                 out().row(row));
        });
      case LUNA_OP_ACT_MUL:
        return act_mul(in(0), in(1), op.attr(LUNA_ACT_MUL_KIND) == LUNA_ACT_GELU_TANH, out());
      case LUNA_OP_ADD:
        return add(in(0), in(1), out());
      case LUNA_OP_GATHER_ROWS:
        return gather_rows(in(0), step.out_rows, out());
      case LUNA_OP_KV_COPY:
        for (std::uint32_t i = 0; i < step.n_kv_copies; ++i) {
          std::byte* const memory = bound(step, LUNA_SLOT_KV)->memory.get();
          std::memmove(memory + step.kv_copies[i].to_block * kv_bytes(p_.kv),
                       memory + step.kv_copies[i].from_block * kv_bytes(p_.kv),
                       kv_bytes(p_.kv));
        }
        return;
      default:
        return run_output(op, step);
    }
  }

  // LOGITS and TOP_CANDIDATES: rows that somebody waits for.
  void run_output(const luna::OpReader& op, const luna_step& step) {
    const bool is_full = op.op().op == LUNA_OP_LOGITS;
    const Rows x = rows(op.in(0), step);
    std::byte* const to =
        bound(step, is_full ? LUNA_SLOT_LOGITS : LUNA_SLOT_CANDIDATES)->memory.get();
    const std::size_t row_bytes = std::size_t{4} * op.out(0).dims[1];
    for (std::uint32_t i = 0; i < x.n_rows; ++i) {
      if (is_full && (step.out_flags[i] & LUNA_OUT_LOGITS) != 0)
        std::memcpy(to + i * row_bytes, x.row(i), row_bytes);
      if (!is_full && (step.out_flags[i] & LUNA_OUT_CANDIDATES) != 0)
        top_candidates({x.row(i), x.width},
                       op.attr(LUNA_TOP_CANDIDATES_K),
                       reinterpret_cast<std::uint32_t*>(to + i * row_bytes));
    }
  }

  Buffer* bound(const luna_step& step, std::uint32_t kind) const {
    for (std::uint32_t i = 0; i < step.n_binds; ++i)
      if (step.binds[i].slot < p_.n_slots && p_.slots[step.binds[i].slot].kind == kind)
        return parts_.buffers->find(step.binds[i].buffer);
    return nullptr;
  }
  Rows rows(const luna_view& view, const luna_step& step) {
    return {activations_[view.slot].data() + view.offset,
            p_.slots[view.slot].bytes,
            view.dims[0] == LUNA_DIM_ROWS ? step.n_rows : step.n_out_rows,
            view.dims[1]};
  }
  Matrix matrix(const luna_view& view) const {
    return {weights_[view.slot]->values.data(), view.dims[0], view.rank == 2 ? view.dims[1] : 1};
  }
  template <typename Call>
  void for_each_row(const luna_step& step, const Call& call) {
    for (std::uint32_t seq = 0; seq < step.n_seqs; ++seq) {
      const KvOfSequence kv = {reinterpret_cast<float*>(bound(step, LUNA_SLOT_KV)->memory.get()),
                               p_.kv,
                               step.block_tables + std::size_t{seq} * step.block_table_stride};
      for (std::uint32_t row = step.seq_first_row[seq]; row < step.seq_first_row[seq + 1]; ++row)
        call(row, kv);
    }
  }

  luna::Program own_;
  luna_program p_;  // points into own_
  Parts parts_;
  luna::Reservation reservation_;
  std::vector<const Weight*> weights_;               // by slot
  std::vector<std::vector<std::byte>> activations_;  // by slot
  std::vector<double> scores_;                       // [n_positions_max]
};

class PlainDevice final : public luna::Device {
 public:
  PlainDevice(luna::Host host, std::uint64_t memory_bytes)
      : budget_(memory_bytes),
        parts_{host, &queue_, &budget_, &buffers_, &weights_},
        thread_([this] { work(); }) {}
  ~PlainDevice() override {
    queue_.close();
    thread_.join();
  }

  luna::Result<std::uint64_t> weight_bytes(const luna_weight_desc& desc, std::uint32_t) override {
    return desc.n_rows * desc.n_cols * sizeof(float);
  }
  luna::Result<std::uint64_t> scratch_bytes(const luna_program& program) override {
    return plain::scratch_bytes(program);
  }
  luna::Result<std::uint64_t> kv_block_bytes(const luna_kv_layout& layout) override {
    return kv_bytes(layout);  // whatever type is asked for: FP32
  }
  luna::Result<void> supports(const luna_program& program, std::uint32_t op_idx) override {
    if (PlainExecutable::can(program.ops[op_idx].op)) return {};
    return luna::Error{luna::Code::unsupported,
                       std::string(luna::op_name(program.ops[op_idx].op)) + " is not written"};
  }

  // A weight comes in ranges of rows, in canonical form; the planes are gone after each call.
  luna::Result<std::uint64_t> weight_begin(const luna_weight_desc& desc, std::uint32_t) override {
    if (desc.klass == LUNA_WEIGHT_DENSE && desc.dtype != LUNA_DTYPE_F32 &&
        desc.dtype != LUNA_DTYPE_F16 && desc.dtype != LUNA_DTYPE_BF16)
      return luna::Error{luna::Code::unsupported, "dense weights are FP32, FP16 or BF16 here"};
    auto weight = std::make_unique<Weight>();
    LUNA_TRY(const std::uint64_t bytes, weight_bytes(desc, 0));
    LUNA_TRY(weight->reservation, luna::Reservation::make(&budget_, bytes, "weight"));
    weight->desc = luna::copy_record(desc);
    weight->values.resize(desc.n_rows * desc.n_cols);
    return weights_.add(std::move(weight));
  }
  luna::Result<void> weight_rows(std::uint64_t handle, const luna_weight_rows& rows) override {
    LUNA_TRY(Weight * weight, find(handle));
    LUNA_TRY(luna::check_weight_rows(weight->desc, rows));
    const luna::CanonicalRows canonical(weight->desc, rows);
    const std::uint64_t n_cols = weight->desc.n_cols;
    for (std::uint64_t row = 0; row < rows.n_rows; ++row)
      for (std::uint64_t col = 0; col < n_cols; ++col)
        weight->values[(rows.first_row + row) * n_cols + col] = canonical.value(row, col);
    // Ranges come in parallel, each once.
    std::atomic_ref(weight->n_rows_loaded).fetch_add(rows.n_rows);
    return {};
  }
  luna::Result<void> weight_end(std::uint64_t handle) override {
    LUNA_TRY(const Weight* weight, find(handle));
    if (weight->n_rows_loaded == weight->desc.n_rows) return {};
    return luna::Error{luna::Code::invalid_argument,
                       std::to_string(weight->n_rows_loaded) + " rows of " +
                           std::to_string(weight->desc.n_rows) + " were loaded"};
  }
  void weight_free(std::uint64_t handle) override { weights_.remove(handle); }

  luna::Result<luna::DeviceBuffer> alloc(std::uint32_t kind, std::uint64_t bytes) override {
    auto buffer = std::make_unique<Buffer>();
    LUNA_TRY(buffer->reservation, luna::Reservation::make(&budget_, bytes, "buffer"));
    buffer->kind = kind;
    buffer->bytes = bytes;
    buffer->memory = std::make_unique<std::byte[]>(bytes);
    void* const host = kind == LUNA_BUFFER_OUT ? buffer->memory.get() : nullptr;
    LUNA_TRY(const std::uint64_t handle, buffers_.add(std::move(buffer)));
    return luna::DeviceBuffer{handle, host};
  }
  void free_buffer(std::uint64_t handle) override { buffers_.remove(handle); }

  luna::Result<std::unique_ptr<luna::Executable>> compile(
      const luna_program& program, std::span<const std::uint64_t> weights) override {
    for (std::uint32_t i = 0; i < program.n_ops; ++i)
      LUNA_TRY(supports(program, i));
    if (luna::step_bounds(program).can_slice)
      return luna::Error{luna::Code::unsupported, "attention over KV of other devices"};
    auto made = std::make_unique<PlainExecutable>(program, parts_);
    LUNA_TRY(made->prepare(weights));
    return std::unique_ptr<luna::Executable>(std::move(made));
  }

 private:
  luna::Result<Weight*> find(std::uint64_t handle) const {
    Weight* const weight = weights_.find(handle);
    if (weight != nullptr) return weight;
    return luna::Error{luna::Code::invalid_argument,
                       "there is no weight " + std::to_string(handle)};
  }
  void work() {
    Job job;
    for (;;) {
      const std::uint32_t seen = queue_.signal();
      if (queue_.pop(&job))
        job.executable->run(job.step);
      else if (queue_.is_closed())
        return;
      else
        queue_.sleep(seen);
    }
  }

  luna::MemoryBudget budget_;
  luna::HandleTable<Weight> weights_{1 << 16};
  luna::HandleTable<Buffer> buffers_{1 << 10};
  Queue queue_;
  Parts parts_;
  std::thread thread_;  // last: it uses all of the above
};

class PlainBackend {
 public:
  using OpenDevice = PlainDevice;
  explicit PlainBackend(luna::Host host) : host_(host) {}
  static luna::Result<std::unique_ptr<PlainBackend>> create(luna::Host host,
                                                            const luna::Settings&) {
    return std::make_unique<PlainBackend>(host);
  }
  std::optional<luna_device_info> device_info(std::uint32_t index) {
    if (index > 0) return std::nullopt;
    luna_device_info info = {};
    info.struct_size = sizeof(info);
    info.memory_bytes_total = info.memory_bytes_free = std::uint64_t{8} << 30;
    info.n_threads_max = 1;
    info.numerics = (2U << LUNA_NUMERICS_BF16) - 1;   // any class: computed in FP32
    info.kv_dtypes = (2U << LUNA_DTYPE_F8_E5M2) - 1;  // any type: kept as FP32
    luna::copy_literal(info.name, "plain");
    luna::copy_literal(info.detail, "FP32, one thread");
    return info;
  }
  luna::Result<std::unique_ptr<luna::Device>> open(const luna_device_open& options) {
    return std::unique_ptr<luna::Device>(new PlainDevice(host_, options.memory_bytes));
  }

 private:
  luna::Host host_;
};

}  // namespace plain

static constexpr luna_backend_if kTable = luna::make_backend_table<plain::PlainBackend>();

LUNA_DEFINE_PLUGIN("org.luna.example.backend.plain",
                   "plain",
                   "0.1.0",
                   "Every op as the loop that defines it, FP32, one thread.",
                   LUNA_KIND_BACKEND,
                   kTable)
