#include "executable.hpp"

#include <algorithm>

namespace luna::reference {
namespace {

const void* find_bind(const luna_program& program,
                      const luna_step& step,
                      std::uint32_t kind,
                      std::uint64_t* buffer) {
  for (std::uint32_t i = 0; i < step.n_binds; ++i) {
    const luna_bind& bind = step.binds[i];
    if (bind.slot >= program.n_slots || program.slots[bind.slot].kind != kind) continue;
    *buffer = bind.buffer;
    return bind.comm;
  }
  return nullptr;
}

const luna_comm* bound_comm(const luna_program& program, const luna_step& step) {
  std::uint64_t buffer = 0;
  return static_cast<const luna_comm*>(find_bind(program, step, LUNA_SLOT_COMM, &buffer));
}

bool has_slot(const luna_program& program, std::uint32_t kind) {
  return std::any_of(program.slots, program.slots + program.n_slots, [&](const luna_slot& slot) {
    return slot.kind == kind;
  });
}

std::uint64_t rows_max_of(const luna_program& program, std::uint32_t slot) {
  for (std::uint32_t i = 0; i < program.n_views; ++i)
    if (program.views[i].slot == slot)
      return program.views[i].dims[0] == LUNA_DIM_ROWS ? program.n_rows_max
                                                       : program.n_out_rows_max;
  return 0;
}

std::uint32_t widest(const luna_program& program, bool weights) {
  std::uint32_t width = 1;
  for (std::uint32_t i = 0; i < program.n_views; ++i) {
    const luna_view& view = program.views[i];
    const bool is_weight = program.slots[view.slot].kind == LUNA_SLOT_WEIGHT;
    if (view.rank == 2 && is_weight == weights) width = std::max(width, view.dims[1]);
  }
  return width;
}

bool uses(const luna_program& program, std::initializer_list<std::uint32_t> ops) {
  return std::any_of(program.ops, program.ops + program.n_ops, [&](const luna_op& op) {
    return std::find(ops.begin(), ops.end(), op.op) != ops.end();
  });
}

/// Floats of each vector beside the activations; the sum of what allocate() makes.
struct ScratchPlan {
  std::uint64_t linear_doubles = 0;
  std::uint64_t score_doubles = 0;
  std::uint64_t prune_slots = 0;
  std::uint64_t ids = 0;
  std::uint64_t message_floats = 0;

  explicit ScratchPlan(const luna_program& p) {
    if (uses(p, {LUNA_OP_LINEAR})) linear_doubles = std::uint64_t{widest(p, true)} * kLinearLanes;
    if (uses(p, {LUNA_OP_ATTEND, LUNA_OP_KV_PRUNE})) score_doubles = p.n_positions_max;
    if (uses(p, {LUNA_OP_KV_PRUNE})) prune_slots = p.n_positions_max;
    if (uses(p, {LUNA_OP_TOP_CANDIDATES})) ids = widest(p, false);
    if (uses(p, {LUNA_OP_SEND, LUNA_OP_RECV, LUNA_OP_ALL_REDUCE, LUNA_OP_ALL_GATHER}))
      message_floats = std::uint64_t{p.n_rows_max} * widest(p, false);
  }
  [[nodiscard]] std::uint64_t bytes() const {
    return 8 * (linear_doubles + score_doubles) + 4 * (3 * prune_slots + ids + 2 * message_floats);
  }
};

}  // namespace

std::uint64_t kv_block_bytes_of(const luna_kv_layout& kv) {
  const std::uint64_t masses = (kv.flags & LUNA_KV_OBSERVED) != 0 ? 1 : 0;
  return std::uint64_t{kv.n_layers} * kv.n_kv_heads * (std::uint64_t{2} * kv.head_dim + masses) *
         kv.block_tokens * sizeof(float);
}

std::uint64_t scratch_bytes_of(const luna_program& program) {
  std::uint64_t bytes = ScratchPlan(program).bytes();
  for (std::uint32_t i = 0; i < program.n_slots; ++i)
    if (program.slots[i].kind == LUNA_SLOT_SCRATCH)
      bytes += program.slots[i].bytes * rows_max_of(program, i);
  return bytes;
}

Result<std::unique_ptr<Executable>> ReferenceExecutable::make(
    const luna_program& program,
    std::span<const std::uint64_t> weights,
    const DeviceServices& services) {
  std::unique_ptr<ReferenceExecutable> made(new ReferenceExecutable(services));
  made->program_ = Program::copy_of(program);
  made->abi_ = made->program_.abi();
  made->bounds_ = step_bounds(made->abi_);
  LUNA_TRY(made->find_weights(weights));
  LUNA_TRY(made->reservation_,
           Reservation::make(services.budget, scratch_bytes_of(program), "scratch"));
  made->allocate();
  return std::unique_ptr<Executable>(std::move(made));
}

Result<void> ReferenceExecutable::find_weights(std::span<const std::uint64_t> handles) {
  weights_.assign(abi_.n_slots, nullptr);
  for (std::uint32_t i = 0; i < abi_.n_views; ++i) {
    const luna_view& view = abi_.views[i];
    const luna_slot& slot = abi_.slots[view.slot];
    if (slot.kind != LUNA_SLOT_WEIGHT) continue;
    const Weight* weight = services_.weights->find(handles[slot.index]);
    if (weight == nullptr || !weight->is_complete)
      return Error{Code::invalid_argument,
                   "weight " + std::to_string(slot.index) + " is not a loaded weight"};
    LUNA_TRY(check_weight_shape(view, weight->desc, slot.index));
    weights_[view.slot] = weight;
  }
  return {};
}

void ReferenceExecutable::allocate() {
  activations_.resize(abi_.n_slots);
  for (std::uint32_t i = 0; i < abi_.n_slots; ++i)
    if (abi_.slots[i].kind == LUNA_SLOT_SCRATCH)
      activations_[i].resize(abi_.slots[i].bytes * rows_max_of(abi_, i));
  const ScratchPlan plan(abi_);
  linear_scratch_.resize(plan.linear_doubles);
  scores_.resize(plan.score_doubles);
  weights_of_slots_.resize(plan.prune_slots);
  ranks_.resize(plan.prune_slots);
  kept_.resize(plan.prune_slots);
  ids_.resize(plan.ids);
  message_.resize(plan.message_floats);
  message_out_.resize(plan.message_floats);
}

Buffer* ReferenceExecutable::bound(const luna_step& step, std::uint32_t kind) const {
  std::uint64_t buffer = 0;
  find_bind(abi_, step, kind, &buffer);
  return services_.buffers->find(buffer);
}

Result<void> ReferenceExecutable::submit(const luna_step& step) {
  StepBounds bounds = bounds_;
  for (const std::uint32_t kind : {LUNA_SLOT_KV, LUNA_SLOT_LOGITS, LUNA_SLOT_CANDIDATES}) {
    if (!has_slot(abi_, kind)) continue;
    const Buffer* buffer = bound(step, kind);
    if (buffer == nullptr ||
        buffer->kind != (kind == LUNA_SLOT_KV ? LUNA_BUFFER_KV : LUNA_BUFFER_OUT))
      return Error{Code::invalid_argument,
                   "step: no buffer is bound to the slot of kind " + std::to_string(kind)};
    if (kind == LUNA_SLOT_KV) bounds.n_kv_blocks = buffer->bytes / kv_block_bytes_of(abi_.kv);
    if (kind != LUNA_SLOT_KV && buffer->bytes < out_bytes(abi_, kind))
      return Error{Code::invalid_argument,
                   "step: the output buffer has " + std::to_string(buffer->bytes) + " bytes, " +
                       std::to_string(out_bytes(abi_, kind)) + " are needed"};
  }
  if (has_slot(abi_, LUNA_SLOT_COMM) && bound_comm(abi_, step) == nullptr)
    return Error{Code::invalid_argument, "step: no communicator is bound"};
  LUNA_TRY(check_step(bounds, step));
  if (!services_.queue->push({this, copy_record(step)}))
    return Error{Code::exhausted, "step: the device's queue is full"};
  return {};
}

void ReferenceExecutable::run(const luna_step& step) {
  luna_step_result result{};
  result.struct_size = sizeof(result);
  result.message = "";
  wait_ns_ = 0;
  const std::uint64_t start_ns = services_.host.now_ns();
  for (std::uint32_t i = 0; i < abi_.n_ops && result.status == LUNA_OK; ++i) {
    result.status = run_op(OpReader(abi_, abi_.ops[i]), step);
    if (result.status != LUNA_OK) result.message = "communication with another device failed";
  }
  result.wait_ns = wait_ns_;
  result.busy_ns = services_.host.now_ns() - start_ns - wait_ns_;
  step.done(step.done_context, &result);
}

Rows ReferenceExecutable::rows(const luna_view& view, const luna_step& step) {
  return {activations_[view.slot].data() + view.offset,
          static_cast<std::size_t>(abi_.slots[view.slot].bytes),
          view.dims[0] == LUNA_DIM_ROWS ? step.n_rows : step.n_out_rows,
          view.dims[1],
          view.dtype};
}

Matrix ReferenceExecutable::matrix(const luna_view& view) const {
  return {weights_[view.slot]->values.data(), view.dims[0], view.rank == 2 ? view.dims[1] : 1};
}

KvCache ReferenceExecutable::cache(const luna_step& step, std::uint32_t seq) const {
  const luna_kv_layout& layout = abi_.kv;
  KvCache kv;
  kv.base = reinterpret_cast<float*>(bound(step, LUNA_SLOT_KV)->memory.get());
  kv.block_floats = kv_block_bytes_of(layout) / sizeof(float);
  kv.layer_floats = kv.block_floats / layout.n_layers;
  kv.block_tokens = layout.block_tokens;
  kv.n_kv_heads = layout.n_kv_heads;
  kv.head_dim = layout.head_dim;
  kv.has_masses = (layout.flags & LUNA_KV_OBSERVED) != 0;
  kv.table = step.block_tables + std::size_t{seq} * step.block_table_stride;
  return kv;
}

luna_status ReferenceExecutable::run_op(const OpReader& op, const luna_step& step) {
  switch (op.op().op) {
    case LUNA_OP_KV_WRITE:
    case LUNA_OP_ATTEND:
    case LUNA_OP_KV_COPY:
    case LUNA_OP_KV_PRUNE:
      run_kv_op(op, step);
      return LUNA_OK;
    case LUNA_OP_LOGITS:
    case LUNA_OP_TOP_CANDIDATES:
      run_output_op(op, step);
      return LUNA_OK;
    case LUNA_OP_SEND:
    case LUNA_OP_RECV:
    case LUNA_OP_ALL_REDUCE:
    case LUNA_OP_BARRIER:
      return run_comm_op(op, step);
    case LUNA_OP_ALL_GATHER:
      return run_gather_op(op, step);
    default:
      run_row_op(op, step);
      return LUNA_OK;
  }
}

void ReferenceExecutable::run_row_op(const OpReader& op, const luna_step& step) {
  const Rows y = rows(op.out(0), step);
  const auto x = [&](std::uint32_t i) { return rows(op.in(i), step); };
  switch (op.op().op) {
    case LUNA_OP_EMBED:
      return embed(matrix(op.in(0)), step.token_ids, y);
    case LUNA_OP_RMS_NORM:
      return rms_norm(x(0), matrix(op.in(1)).values, op.attr_f32(LUNA_RMS_NORM_EPS), y);
    case LUNA_OP_HEAD_NORM:
      return head_norm(x(0), matrix(op.in(1)), op.attr_f32(LUNA_HEAD_NORM_EPS), y);
    case LUNA_OP_LAYER_NORM:
      return layer_norm(
          x(0), matrix(op.in(1)), matrix(op.in(2)), op.attr_f32(LUNA_LAYER_NORM_EPS), y);
    case LUNA_OP_LINEAR:
      return linear(x(0),
                    matrix(op.in(1)),
                    op.op().n_in == 3 ? matrix(op.in(2)).values : nullptr,
                    linear_scratch_,
                    y);
    case LUNA_OP_MOE_ROUTE:
      return moe_route(x(0), op.attr(LUNA_MOE_ROUTE_K), op.attr(LUNA_MOE_ROUTE_NORMALIZES) != 0, y);
    case LUNA_OP_GROUPED_LINEAR:
      return grouped_linear(x(0), x(1), matrix(op.in(2)), y);
    case LUNA_OP_MOE_SUM:
      return moe_sum(x(0), x(1), y);
    case LUNA_OP_ROPE:
      return rope(x(0),
                  step.positions,
                  {op.attr(LUNA_ROPE_N_HEADS),
                   op.attr(LUNA_ROPE_HEAD_DIM),
                   op.attr(LUNA_ROPE_N_ROT),
                   op.attr(LUNA_ROPE_STYLE) == LUNA_ROPE_HALVES,
                   op.attr_f32(LUNA_ROPE_MAGNITUDE),
                   static_cast<const double*>(op.slot(op.in(1)).data)},
                  y);
    case LUNA_OP_ACT_MUL:
      return act_mul(x(0), x(1), op.attr(LUNA_ACT_MUL_KIND) == LUNA_ACT_GELU_TANH, y);
    case LUNA_OP_ADD:
      return add(x(0), x(1), y);
    case LUNA_OP_SCALE:
      return scale(x(0), op.attr_f32(LUNA_SCALE_FACTOR), y);
    case LUNA_OP_SOFTCAP:
      return softcap(x(0), op.attr_f32(LUNA_SOFTCAP_CAP), y);
    case LUNA_OP_GATHER_ROWS:
      return gather_rows(x(0), step.out_rows, y);
    case LUNA_OP_COPY:
    case LUNA_OP_CONVERT:
      return convert(x(0), y);
    default:
      return;  // compile() accepted supported ops alone
  }
}

void ReferenceExecutable::run_kv_op(const OpReader& op, const luna_step& step) {
  if (op.op().op == LUNA_OP_KV_COPY) {
    const std::uint64_t block = kv_block_bytes_of(abi_.kv);
    std::byte* memory = bound(step, LUNA_SLOT_KV)->memory.get();
    for (std::uint32_t i = 0; i < step.n_kv_copies; ++i)
      std::memmove(memory + step.kv_copies[i].to_block * block,
                   memory + step.kv_copies[i].from_block * block,
                   block);
    return;
  }
  for (std::uint32_t seq = 0; seq < step.n_seqs; ++seq) {
    if (op.op().op == LUNA_OP_KV_PRUNE) {
      run_prune(op, step, seq);
      continue;
    }
    const KvCache kv = cache(step, seq);
    for (std::uint32_t row = step.seq_first_row[seq]; row < step.seq_first_row[seq + 1]; ++row) {
      const std::uint32_t slot = step.positions[row] - prune_of(step, seq).n_pruned;
      if (op.op().op == LUNA_OP_KV_WRITE) {
        kv_write(rows(op.in(0), step).row(row),
                 rows(op.in(1), step).row(row),
                 kv,
                 op.attr(LUNA_KV_WRITE_LAYER),
                 slot);
      } else {
        attend_row(rows(op.in(0), step).row(row),
                   kv,
                   {op.attr(LUNA_ATTEND_LAYER),
                    op.attr(LUNA_ATTEND_N_HEADS),
                    op.attr_f32(LUNA_ATTEND_SCALE),
                    op.attr(LUNA_ATTEND_WINDOW),
                    op.attr_f32(LUNA_ATTEND_SOFTCAP)},
                   std::span(scores_).first(slot + 1),
                   rows(op.out(0), step).row(row));
      }
    }
  }
}

void ReferenceExecutable::run_prune(const OpReader& op, const luna_step& step, std::uint32_t seq) {
  const luna_seq_prune prune = prune_of(step, seq);
  const KvCache kv = cache(step, seq);
  const std::uint32_t end = step.seq_first_row[seq + 1];
  const std::uint32_t layer = op.attr(LUNA_KV_PRUNE_LAYER);
  for (std::uint32_t row = end - prune.n_observed; row < end; ++row)
    observe_row(rows(op.in(0), step).row(row),
                kv,
                {layer,
                 op.attr(LUNA_KV_PRUNE_N_HEADS),
                 op.attr_f32(LUNA_KV_PRUNE_SCALE),
                 0,
                 op.attr_f32(LUNA_KV_PRUNE_SOFTCAP)},
                std::span(scores_).first(step.positions[row] - prune.n_pruned + 1));
  if (prune.n_keep == 0 || layer != op.attr(LUNA_KV_PRUNE_GROUP_LAST)) return;
  const std::size_t n_slots = step.positions[end - 1] - prune.n_pruned + 1;
  kv_prune(kv,
           {op.attr(LUNA_KV_PRUNE_GROUP_FIRST), layer},
           {std::span(weights_of_slots_).first(n_slots),
            std::span(ranks_).first(n_slots),
            std::span(kept_).first(n_slots)},
           prune.n_keep);
}

void ReferenceExecutable::run_output_op(const OpReader& op, const luna_step& step) {
  const Rows x = rows(op.in(0), step);
  const bool full = op.op().op == LUNA_OP_LOGITS;
  std::byte* out = bound(step, full ? LUNA_SLOT_LOGITS : LUNA_SLOT_CANDIDATES)->memory.get();
  const std::size_t out_row_bytes = std::size_t{4} * op.out(0).dims[1];
  for (std::uint32_t i = 0; i < x.n_rows; ++i) {
    std::byte* to = out + i * out_row_bytes;
    if (full && (step.out_flags[i] & LUNA_OUT_LOGITS) != 0)
      std::memcpy(to, x.row(i), out_row_bytes);
    if (!full && (step.out_flags[i] & LUNA_OUT_CANDIDATES) != 0)
      top_candidates({x.row(i), x.width},
                     op.attr(LUNA_TOP_CANDIDATES_K),
                     std::span(ids_).first(x.width),
                     reinterpret_cast<std::uint32_t*>(to));
  }
}

luna_status ReferenceExecutable::run_comm_op(const OpReader& op, const luna_step& step) {
  const luna_comm* comm = bound_comm(abi_, step);
  const std::uint32_t kind = op.op().op;
  const std::uint64_t start_ns = services_.host.now_ns();
  luna_status status = LUNA_OK;
  if (kind == LUNA_OP_BARRIER) {  // a sum nobody reads: every rank has arrived when it is there
    const float one = 1.0F;
    float sum = 0.0F;
    status = comm->all_reduce(comm->self, &one, &sum, 1, LUNA_REDUCE_SUM_F32);
    wait_ns_ += services_.host.now_ns() - start_ns;
    return status;
  }
  const Rows x = rows(kind == LUNA_OP_RECV ? op.out(0) : op.in(0), step);
  const std::uint64_t n = std::uint64_t{x.n_rows} * x.width;
  if (n == 0) return LUNA_OK;  // logits that nobody wants: no rank sends or waits
  if (kind != LUNA_OP_RECV)
    for (std::uint32_t i = 0; i < x.n_rows; ++i)
      std::copy_n(x.row(i), x.width, message_.data() + std::size_t{i} * x.width);
  if (kind == LUNA_OP_SEND)
    status = comm->send(
        comm->self, op.attr(LUNA_COMM_PEER), op.attr(LUNA_COMM_TAG), message_.data(), 4 * n);
  if (kind == LUNA_OP_RECV)
    status = comm->recv(
        comm->self, op.attr(LUNA_COMM_PEER), op.attr(LUNA_COMM_TAG), message_out_.data(), 4 * n);
  if (kind == LUNA_OP_ALL_REDUCE)
    status =
        comm->all_reduce(comm->self, message_.data(), message_out_.data(), n, LUNA_REDUCE_SUM_F32);
  wait_ns_ += services_.host.now_ns() - start_ns;
  if (kind == LUNA_OP_SEND || status != LUNA_OK) return status;
  const Rows y = rows(op.out(0), step);
  for (std::uint32_t i = 0; i < y.n_rows; ++i)
    std::copy_n(message_out_.data() + std::size_t{i} * y.width, y.width, y.row(i));
  return LUNA_OK;
}

luna_status ReferenceExecutable::run_gather_op(const OpReader& op, const luna_step& step) {
  const std::uint64_t start_ns = services_.host.now_ns();
  const Rows x = rows(op.in(0), step);
  const Rows y = rows(op.out(0), step);
  const ColumnGather gather = column_gather(op, x.n_rows);
  const auto store = [&](ColumnShare share, const float* columns) {
    for (std::uint32_t i = 0; i < y.n_rows; ++i)
      std::copy_n(columns + std::size_t{i} * share.count, share.count, y.row(i) + share.first);
  };
  for (std::uint32_t i = 0; i < x.n_rows; ++i)
    std::copy_n(x.row(i), x.width, message_.data() + std::size_t{i} * x.width);
  store(gather.share(gather.rank), message_.data());
  const luna_status status =
      gather_columns(*bound_comm(abi_, step),
                     gather,
                     std::span(message_).first(std::size_t{x.n_rows} * x.width),
                     message_out_,
                     store);
  wait_ns_ += services_.host.now_ns() - start_ns;
  return status;
}

}  // namespace luna::reference
