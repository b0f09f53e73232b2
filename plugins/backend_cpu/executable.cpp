#include "executable.hpp"

#include "slice_service.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace luna::cpu {
namespace {

constexpr std::uint64_t kPage = 4096;
/// A position of a KV head takes about 8 ns, a barrier 0.3 us.
constexpr std::uint64_t kSplitGainPositions = 100;
std::uint64_t round_up(std::uint64_t n, std::uint64_t quantum) {
  return (n + quantum - 1) / quantum * quantum;
}

std::uint64_t rope_table_bytes(const luna_program& p, const OpReader& op) {
  return std::uint64_t{p.n_positions_max} * op.attr(LUNA_ROPE_N_ROT) * sizeof(float);
}

/// Whether two rope ops read the same table.
bool same_table(const OpReader& a, const OpReader& b) {
  return a.op().op == LUNA_OP_ROPE && b.op().op == LUNA_OP_ROPE && a.in(1).slot == b.in(1).slot &&
         a.attr(LUNA_ROPE_N_ROT) == b.attr(LUNA_ROPE_N_ROT) &&
         a.attr(LUNA_ROPE_MAGNITUDE) == b.attr(LUNA_ROPE_MAGNITUDE);
}
/// The first op whose table op i shares: i itself if none before does.
std::uint32_t table_owner(const luna_program& p, std::uint32_t i) {
  for (std::uint32_t j = 0; j < i; ++j)
    if (same_table(OpReader(p, p.ops[j]), OpReader(p, p.ops[i]))) return j;
  return i;
}

struct ArenaPlan {
  std::uint64_t shared_bytes = 0;
  std::uint64_t private_stride = 0;
  [[nodiscard]] std::uint64_t bytes(std::uint32_t n_threads) const {
    return shared_bytes + n_threads * private_stride;
  }
};
/// Room for any one of the schedules.
ArenaPlan plan_arena(const Schedules& schedules) {
  ArenaPlan plan;
  for (const Schedule* s : {&schedules.narrow,
                            &schedules.narrow_long,
                            &schedules.wide,
                            &schedules.observing,
                            &schedules.sliced}) {
    plan.shared_bytes = std::max(plan.shared_bytes, round_up(s->shared_bytes, kPage));
    plan.private_stride = std::max(plan.private_stride, round_up(s->private_bytes, kPage));
  }
  return plan;
}

Result<Schedules> compile_schedules(const CompileInput& input) {
  const luna_program& program = *input.program;
  Schedules schedules;
  LUNA_TRY(schedules.narrow, compile_schedule(input, Width::narrow));
  LUNA_TRY(schedules.narrow_long, compile_schedule(input, Width::narrow_long));
  if (program.n_rows_max > kNarrowRows) {
    LUNA_TRY(schedules.wide, compile_schedule(input, Width::wide));
  }
  if (step_bounds(program).can_slice) {
    LUNA_TRY(schedules.sliced, compile_schedule(input, Width::sliced));
  }
  if (step_bounds(program).can_prune) {
    LUNA_TRY(schedules.observing, compile_schedule(input, Width::observing));
  }
  return schedules;
}

std::uint32_t last_slot(const luna_step& step, std::uint32_t seq) {
  return step.positions[step.seq_first_row[seq + 1] - 1] - prune_of(step, seq).n_pruned;
}

bool has_slot(const luna_program& program, std::uint32_t kind) {
  return std::any_of(program.slots, program.slots + program.n_slots, [&](const luna_slot& slot) {
    return slot.kind == kind;
  });
}

}  // namespace

Result<void> check_numerics(std::uint32_t numerics) {
  static constexpr const char* kNames[] = {"f32", "i12", "i8", "bf16"};
  if (numerics == LUNA_NUMERICS_I12 || numerics == LUNA_NUMERICS_I8 ||
      numerics == LUNA_NUMERICS_BF16)
    return {};
  const std::string name = numerics <= LUNA_NUMERICS_BF16 ? kNames[numerics] : "unknown";
  return Error{Code::unsupported,
               "numerics '" + name + "' is not built; the cpu backend computes i12, i8 and bf16"};
}

Result<void> check_kv_type(const luna_kv_layout& layout) {
  static constexpr const char* kNames[] = {
      "f32", "f16", "bf16", "i8", "u8", "i32", "u32", "f8_e4m3", "f8_e5m2", "f64"};
  if (layout.dtype != LUNA_DTYPE_BF16 && layout.dtype != LUNA_DTYPE_I8)
    return Error{Code::unsupported,
                 std::string("KV of type '") +
                     (layout.dtype < std::size(kNames) ? kNames[layout.dtype] : "unknown") +
                     "' is not built yet; use bf16 or i8"};
  if (layout.head_dim % 32 != 0 || layout.head_dim > 256)
    return Error{Code::unsupported,
                 "head_dim = " + std::to_string(layout.head_dim) +
                     ": must be a multiple of 32, at most 256"};
  return {};
}

kernels::KvShape kv_shape_of(const luna_kv_layout& kv) {
  return {static_cast<int>(kv.n_kv_heads),
          static_cast<int>(kv.head_dim),
          static_cast<int>(kv.block_tokens),
          kv.dtype == LUNA_DTYPE_I8 ? kernels::KvType::int8 : kernels::KvType::bf16,
          (kv.flags & LUNA_KV_OBSERVED) != 0};
}

std::uint64_t kv_block_bytes_of(const luna_kv_layout& kv) {
  return kv.n_layers * kernels::kv_block_bytes(kv_shape_of(kv));
}

Result<std::uint64_t> scratch_bytes_of(const luna_program& program, std::uint32_t n_threads) {
  CompileInput input;
  input.program = &program;
  LUNA_TRY(const Schedules schedules, compile_schedules(input));
  std::uint64_t bytes = plan_arena(schedules).bytes(n_threads);
  for (std::uint32_t i = 0; i < program.n_ops; ++i)
    if (program.ops[i].op == LUNA_OP_ROPE && table_owner(program, i) == i)
      bytes += rope_table_bytes(program, OpReader(program, program.ops[i]));
  return bytes;
}

Result<std::unique_ptr<Executable>> CpuExecutable::make(const luna_program& program,
                                                        std::span<const std::uint64_t> weights,
                                                        const DeviceServices& services) {
  LUNA_TRY(check_numerics(program.numerics));
  if (program.kv.n_layers != 0) LUNA_TRY(check_kv_type(program.kv));
  std::unique_ptr<CpuExecutable> made(new CpuExecutable(services));
  made->program_ = Program::copy_of(program);
  made->abi_ = made->program_.abi();
  made->bounds_ = step_bounds(made->abi_);
  LUNA_TRY(const std::uint64_t bytes, scratch_bytes_of(program, services.team->n_threads()));
  LUNA_TRY(made->reservation_, Reservation::make(services.budget, bytes, "scratch"));
  CompileInput input;
  input.program = &made->abi_;
  LUNA_TRY(made->find_weights(weights, &input));
  made->make_rope_tables(&input);
  LUNA_TRY(made->schedules_, compile_schedules(input));
  LUNA_TRY(made->allocate(bytes));
  made->attend_rules_ = made->attend_rules();
  return std::unique_ptr<Executable>(std::move(made));
}

Result<void> CpuExecutable::find_weights(std::span<const std::uint64_t> handles,
                                         CompileInput* input) {
  input->weights.assign(abi_.n_slots, nullptr);
  for (std::uint32_t i = 0; i < abi_.n_views; ++i) {
    const luna_view& view = abi_.views[i];
    const luna_slot& slot = abi_.slots[view.slot];
    if (slot.kind != LUNA_SLOT_WEIGHT) continue;
    const Weight* weight = services_.weights->find(handles[slot.index]);
    if (weight == nullptr || !weight->is_complete)
      return Error{Code::invalid_argument,
                   "weight " + std::to_string(slot.index) + " is not a loaded weight"};
    LUNA_TRY(check_weight_shape(view, weight->desc, slot.index));
    if (weight->numerics != abi_.numerics)
      return Error{Code::invalid_argument,
                   "weight " + std::to_string(slot.index) + " was loaded for numerics class " +
                       std::to_string(weight->numerics) + ", the program computes in " +
                       std::to_string(abi_.numerics)};
    input->weights[view.slot] = weight;
  }
  return {};
}

void CpuExecutable::make_rope_tables(CompileInput* input) {
  input->ropes.assign(abi_.n_ops, nullptr);
  for (std::uint32_t i = 0; i < abi_.n_ops; ++i) {
    const OpReader op(abi_, abi_.ops[i]);
    if (op.op().op != LUNA_OP_ROPE) continue;
    const std::uint32_t owner = table_owner(abi_, i);
    if (owner != i) {
      input->ropes[i] = input->ropes[owner];
      continue;
    }
    auto table = std::make_unique<RopeTable>();
    table->n_pairs = op.attr(LUNA_ROPE_N_ROT) / 2;
    const std::size_t n_numbers = std::size_t{abi_.n_positions_max} * table->n_pairs;
    table->cosine.reserve(n_numbers);  // exactly what was reserved of the budget
    table->sine.reserve(n_numbers);
    const auto* frequencies = static_cast<const double*>(op.slot(op.in(1)).data);
    const float magnitude = op.attr_f32(LUNA_ROPE_MAGNITUDE);
    for (std::uint32_t position = 0; position < abi_.n_positions_max; ++position)
      for (std::uint32_t pair = 0; pair < table->n_pairs; ++pair) {
        const double angle = position * frequencies[pair];
        table->cosine.push_back(static_cast<float>(std::cos(angle)) * magnitude);
        table->sine.push_back(static_cast<float>(std::sin(angle)) * magnitude);
      }
    input->ropes[i] = table.get();
    ropes_.push_back(std::move(table));
  }
}

Result<void> CpuExecutable::allocate(std::uint64_t bytes) {
  const ArenaPlan plan = plan_arena(schedules_);
  const std::uint32_t n_threads = services_.team->n_threads();
  if (plan.bytes(n_threads) > bytes)
    return Error{Code::internal,
                 "the arena outgrew its plan of " + std::to_string(bytes) +
                     " bytes: " + std::to_string(plan.bytes(n_threads))};
  LUNA_TRY(arena_, Mapping::make(plan.bytes(n_threads)));
  shared_bytes_ = plan.shared_bytes;
  private_stride_ = plan.private_stride;
  services_.team->run_and_wait([&](std::uint32_t thread) {  // first touch by who will use it
    std::memset(arena_.data() + shared_bytes_ + thread * private_stride_, 0, private_stride_);
    if (thread == 0) std::memset(arena_.data(), 0, shared_bytes_);
  });
  for (Pending& pending : pending_) {
    StepContext& c = pending.context;
    pending.owner = this;
    c.team = services_.team;
    c.kernels = &kernels::select_kernels();
    c.host = services_.host;
    c.slices.serial = &slice_serial_;
    c.shared = arena_.data();
    c.private_memory = arena_.data() + shared_bytes_;
    c.private_stride = private_stride_;
    c.attend_order.reserve(abi_.n_seqs_max);
    c.kv.shape = kv_shape_of(abi_.kv);
    c.kv.block_bytes = kv_block_bytes_of(abi_.kv);
  }
  return {};
}

Result<void> CpuExecutable::bind(const luna_step& step, StepContext* context) const {
  StepBounds bounds = bounds_;
  context->kv.base = nullptr;
  context->logits = nullptr;
  context->candidates = nullptr;
  context->comm = nullptr;
  context->slices.peers = nullptr;
  for (std::uint32_t i = 0; i < step.n_binds; ++i) {
    const luna_bind& bind = step.binds[i];
    if (bind.slot >= abi_.n_slots)
      return Error{Code::invalid_argument,
                   "step: bind to slot " + std::to_string(bind.slot) + " of " +
                       std::to_string(abi_.n_slots)};
    const std::uint32_t kind = abi_.slots[bind.slot].kind;
    if (kind == LUNA_SLOT_COMM) {
      context->comm = static_cast<const luna_comm*>(bind.comm);
      continue;
    }
    if (kind == LUNA_SLOT_SLICES) {
      context->slices.peers = static_cast<const luna_slice_peers*>(bind.comm);
      if (LUNA_HAS(context->slices.peers, luna_slice_peers, comms))
        bounds.n_slice_peers = std::min(context->slices.peers->n_peers, LUNA_SLICE_PEERS_MAX);
      continue;
    }
    const Buffer* buffer = services_.buffers->find(bind.buffer);
    if (buffer == nullptr)
      return Error{Code::invalid_argument,
                   "step: there is no buffer " + std::to_string(bind.buffer)};
    if (kind == LUNA_SLOT_KV && buffer->kind == LUNA_BUFFER_KV) {
      context->kv.base = buffer->memory.data();
      bounds.n_kv_blocks = buffer->bytes / context->kv.block_bytes;
    }
    if (buffer->kind != LUNA_BUFFER_OUT || buffer->bytes < out_bytes(abi_, kind)) continue;
    if (kind == LUNA_SLOT_LOGITS) context->logits = reinterpret_cast<float*>(buffer->memory.data());
    if (kind == LUNA_SLOT_CANDIDATES)
      context->candidates = reinterpret_cast<std::uint32_t*>(buffer->memory.data());
  }
  const std::pair<std::uint32_t, const void*> needed[] = {
      {LUNA_SLOT_KV, context->kv.base},
      {LUNA_SLOT_LOGITS, context->logits},
      {LUNA_SLOT_CANDIDATES, context->candidates},
      {LUNA_SLOT_COMM, context->comm}};
  for (const auto& [kind, memory] : needed)
    if (memory == nullptr && has_slot(abi_, kind))
      return Error{Code::invalid_argument,
                   "step: nothing (or too little) is bound to the slot of "
                   "kind " +
                       std::to_string(kind)};
  return check_step(bounds, step);
}

/// Rows of a task: as many as the kernel takes queries, by the op with most heads a KV head.
AttendOrderRules CpuExecutable::attend_rules() const {
  AttendOrderRules rules{abi_.kv.block_tokens, 0, abi_.kv.n_kv_heads, services_.team->n_threads()};
  std::uint32_t n_heads = 0;
  for (std::uint32_t i = 0; i < abi_.n_ops; ++i)
    if (abi_.ops[i].op == LUNA_OP_ATTEND)
      n_heads = std::max(n_heads, OpReader(abi_, abi_.ops[i]).attr(LUNA_ATTEND_N_HEADS));
  if (n_heads != 0)
    rules.rows_max = kernels::kAttendTogetherQueries / std::max(1U, n_heads / abi_.kv.n_kv_heads);
  return rules;
}

/// Few rows with KV of uneven length, or of sequences that are attended to together, or fewer heads
/// than threads: attention is cut within heads if that frees the busiest thread of more than two
/// barriers cost.
const Schedule* CpuExecutable::schedule_for(const luna_step& step, const AttendOrder& order) const {
  if (!slices_of(step).empty()) return &schedules_.sliced;
  for (std::uint32_t seq = 0; seq < step.n_seqs; ++seq) {
    const luna_seq_prune prune = prune_of(step, seq);
    if (prune.n_observed != 0 || prune.n_keep != 0) return &schedules_.observing;
  }
  if (step.n_rows > kNarrowRows) return &schedules_.wide;
  if (order.has_shared()) return &schedules_.narrow_long;
  const std::uint64_t n_threads = services_.team->n_threads();
  const std::uint64_t n_heads = abi_.kv.n_kv_heads;
  const std::uint64_t n_units = step.n_seqs * n_heads;
  std::uint64_t total = 0;
  std::uint64_t busiest = 0;
  for (std::uint64_t thread = 0; thread < n_threads; ++thread) {
    std::uint64_t own = 0;  // positions read by this thread's heads
    for (std::uint64_t u = n_units * thread / n_threads; u < n_units * (thread + 1) / n_threads;
         ++u)
      own += last_slot(step, static_cast<std::uint32_t>(u / n_heads)) + 1;
    total += own;
    busiest = std::max(busiest, own);
  }
  return busiest > total / n_threads + kSplitGainPositions ? &schedules_.narrow_long
                                                           : &schedules_.narrow;
}

Result<std::unique_ptr<SliceService>> CpuExecutable::serve(std::uint64_t buffer,
                                                           const luna_comm& comm) {
  const Buffer* kv = services_.buffers->find(buffer);
  if (kv == nullptr || kv->kind != LUNA_BUFFER_KV)
    return Error{Code::invalid_argument, "serve: there is no KV buffer " + std::to_string(buffer)};
  SliceServiceOptions options;
  options.comm = &comm;
  options.host = services_.host;
  options.budget = services_.budget;
  options.cpus = services_.team->cpus();
  options.kv.shape = kv_shape_of(abi_.kv);
  options.kv.base = kv->memory.data();
  options.kv.block_bytes = kv_block_bytes_of(abi_.kv);
  options.n_kv_blocks = kv->bytes / options.kv.block_bytes;
  return CpuSliceService::make(abi_, options);
}

Result<void> CpuExecutable::submit(const luna_step& step) {
  if (n_pending_.load(std::memory_order_acquire) == kPendingMax)
    return Error{Code::exhausted,
                 "step: " + std::to_string(kPendingMax) + " steps are under way already"};
  Pending& pending = pending_[next_];
  StepContext& context = pending.context;
  LUNA_TRY(bind(step, &context));
  context.step = copy_record(step);
  if (slices_of(step).empty()) context.attend_order.find(step, attend_rules_);
  context.schedule = schedule_for(step, context.attend_order);
  context.status.store(LUNA_OK, std::memory_order_relaxed);
  context.slices.status = LUNA_OK;
  context.slices.failed = 0;
  context.wait_ns = 0;
  n_pending_.fetch_add(1, std::memory_order_acq_rel);
  const TeamJob job{
      [](void* c, std::uint32_t thread) { run_step(static_cast<Pending*>(c)->context, thread); },
      &CpuExecutable::finish,
      &pending};
  if (!services_.team->submit(job)) {
    n_pending_.fetch_sub(1, std::memory_order_acq_rel);
    return Error{Code::exhausted, "step: the device's queue is full"};
  }
  next_ = (next_ + 1) % kPendingMax;
  return {};
}

void CpuExecutable::finish(void* context) {
  auto* pending = static_cast<Pending*>(context);
  const StepContext& c = pending->context;
  luna_step_result result{};
  result.struct_size = sizeof(result);
  result.status = c.status.load(std::memory_order_relaxed);
  result.message = result.status == LUNA_OK ? "" : "communication with another device failed";
  if (result.status == LUNA_OK && c.slices.status != LUNA_OK) {
    result.status = c.slices.status;
    result.message = c.slices.message;
  }
  result.wait_ns = c.wait_ns;
  result.busy_ns = c.host.now_ns() - c.start_ns - c.wait_ns;
  const auto done = c.step.done;
  void* done_context = c.step.done_context;
  // Before `done`: it may submit the next step from another thread at once.
  pending->owner->n_pending_.fetch_sub(1, std::memory_order_acq_rel);
  done(done_context, &result);
}

}  // namespace luna::cpu
