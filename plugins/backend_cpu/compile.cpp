// Ops to actions: which kernel, which split, which activations to quantize where.
#include "schedule.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

namespace luna::cpu {
namespace {

std::uint64_t slot_row_stride(std::uint64_t bytes) {
  // Whole lines, so that threads' columns do not share one; no multiple of 1024 bytes, because rows
  // that far apart share the sets of the L1 cache.
  const std::uint64_t lines = (bytes + 63) / 64 * 64;
  return lines % 1024 == 0 ? lines + 64 : lines;
}

class ScheduleCompiler {
 public:
  ScheduleCompiler(const CompileInput& input, Width width)
      : input_(input), p_(*input.program), width_(width) {}

  Result<Schedule> run() {
    schedule_.width = width_;
    find_private_slots();
    content_.assign(p_.n_slots, 0);
    for (std::uint32_t i = 0; i < p_.n_ops; ++i) {
      const OpReader op(p_, p_.ops[i]);
      if (Result<void> added = add(op, i); !added)
        return added.error().in("op " + std::to_string(i) + " (" +
                                std::string(op_name(op.op().op)) + ")");
      for (std::uint32_t o = 0; o < op.op().n_out; ++o)
        ++content_[op.out(o).slot];
    }
    form_phases(&schedule_);
    place_memory(p_, width_, &schedule_);
    return std::move(schedule_);
  }

 private:
  static bool is_recomputed(std::uint32_t op) {
    return op == LUNA_OP_RMS_NORM || op == LUNA_OP_LAYER_NORM || op == LUNA_OP_GATHER_ROWS;
  }
  /// In a narrow schedule each thread has its own copy of what only norms and gathers write.
  void find_private_slots() {
    private_.assign(p_.n_slots, is_narrow(width_));
    for (std::uint32_t i = 0; i < p_.n_ops; ++i) {
      const OpReader op(p_, p_.ops[i]);
      for (std::uint32_t o = 0; o < op.op().n_out; ++o)
        if (!is_recomputed(op.op().op)) private_[op.out(o).slot] = false;
    }
  }

  TensorRef tensor(const luna_view& view) const {
    TensorRef t;
    t.slot = view.slot;
    t.width = view.dims[1];
    t.dtype = view.dtype;
    t.rows = view.dims[0] == LUNA_DIM_ROWS ? RowCount::step : RowCount::out;
    t.column_bytes = view.offset;
    t.stride_bytes = slot_row_stride(p_.slots[view.slot].bytes);
    t.is_private = private_[view.slot];
    return t;
  }
  CompiledOp& append(Action action, Split split) {
    schedule_.ops.emplace_back();
    schedule_.ops.back().action = action;
    schedule_.ops.back().split = split;
    return schedule_.ops.back();
  }
  /// An op over the program's own inputs and output.
  CompiledOp& append(const OpReader& op, Action action, Split split) {
    CompiledOp& made = append(action, split);
    std::uint32_t n = 0;
    for (std::uint32_t i = 0; i < op.op().n_in; ++i)
      if (op.slot(op.in(i)).kind == LUNA_SLOT_SCRATCH && n < 2) made.in[n++] = tensor(op.in(i));
    if (op.op().n_out != 0 && op.slot(op.out(0)).kind == LUNA_SLOT_SCRATCH)
      made.out = tensor(op.out(0));
    return made;
  }
  [[nodiscard]] Split row_split(const OpReader& op) const {
    return private_[op.out(0).slot] ? Split::every_thread : Split::rows;
  }
  [[nodiscard]] Split head_split() const { return is_narrow(width_) ? Split::heads : Split::rows; }
  [[nodiscard]] const Weight* weight_of(const luna_view& view) const {
    return input_.weights.empty() ? nullptr : input_.weights[view.slot];
  }
  Result<const float*> vector(const luna_view& view) const {
    const Weight* weight = weight_of(view);
    if (weight == nullptr) return nullptr;
    if (weight->is_vector()) return weight->vector.data();
    return Error{Code::unsupported, "norm weights and biases must be dense"};
  }

  Result<void> add(const OpReader& op, std::uint32_t op_idx) {
    switch (op.op().op) {
      case LUNA_OP_EMBED:
        append(op, Action::embed, Split::rows).weight = weight_of(op.in(0));
        return {};
      case LUNA_OP_RMS_NORM:
      case LUNA_OP_LAYER_NORM:
        return add_norm(op);
      case LUNA_OP_LINEAR:
        return add_linear(op);
      case LUNA_OP_HEAD_NORM:
        return add_head_norm(op);
      case LUNA_OP_GROUPED_LINEAR:
        return add_grouped_linear(op);
      case LUNA_OP_MOE_ROUTE: {
        CompiledOp& made = append(op, Action::moe_route, Split::rows);
        made.k = op.attr(LUNA_MOE_ROUTE_K);
        made.kind = op.attr(LUNA_MOE_ROUTE_NORMALIZES);
        return {};
      }
      case LUNA_OP_MOE_SUM:
        append(op, Action::moe_sum, Split::columns);
        return {};
      case LUNA_OP_ROPE:
        return add_rope(op, op_idx);
      case LUNA_OP_KV_WRITE:
        append(op, Action::kv_write, head_split()).layer = op.attr(LUNA_KV_WRITE_LAYER);
        return {};
      case LUNA_OP_ATTEND:
        return add_attend(op);
      case LUNA_OP_KV_PRUNE:
        if (width_ == Width::observing) add_prune(op);
        return {};
      case LUNA_OP_GATHER_ROWS:
        append(op, Action::gather_rows, row_split(op));
        return {};
      case LUNA_OP_COPY:
      case LUNA_OP_CONVERT:
        append(op, Action::copy_rows, Split::rows);
        return {};
      case LUNA_OP_LOGITS:
        append(op, Action::logits, Split::columns);
        return {};
      case LUNA_OP_TOP_CANDIDATES:
        append(op, Action::score_chunks, Split::chunks).k = op.attr(LUNA_TOP_CANDIDATES_K);
        append(op, Action::merge_chunks, Split::rows).k = op.attr(LUNA_TOP_CANDIDATES_K);
        return {};
      default:
        return add_simple(op);
    }
  }

  /// Elementwise ops by columns, as the linear ops before them; communication by the leader.
  Result<void> add_simple(const OpReader& op) {
    switch (op.op().op) {
      case LUNA_OP_ACT_MUL:
        append(op, Action::act_mul, Split::columns).kind = op.attr(LUNA_ACT_MUL_KIND);
        return {};
      case LUNA_OP_ADD:
        append(op, Action::add, Split::columns);
        return {};
      case LUNA_OP_SCALE:
        append(op, Action::scale, Split::columns).number = op.attr_f32(LUNA_SCALE_FACTOR);
        return {};
      case LUNA_OP_SOFTCAP:
        append(op, Action::softcap, Split::columns).number = op.attr_f32(LUNA_SOFTCAP_CAP);
        return {};
      case LUNA_OP_KV_COPY:
        append(op, Action::kv_copy, Split::leader);
        return {};
      case LUNA_OP_SEND:
      case LUNA_OP_RECV: {
        CompiledOp& made =
            append(op, op.op().op == LUNA_OP_SEND ? Action::send : Action::recv, Split::leader);
        made.peer = op.attr(LUNA_COMM_PEER);
        made.tag = op.attr(LUNA_COMM_TAG);
        return {};
      }
      case LUNA_OP_ALL_REDUCE:
        append(op, Action::all_reduce, Split::leader);
        return {};
      case LUNA_OP_ALL_GATHER:
        append(op, Action::all_gather, Split::leader).gather = column_gather(op, 0);
        return {};
      case LUNA_OP_BARRIER:
        append(op, Action::barrier, Split::leader);
        return {};
      default:
        return Error{Code::unsupported, "not built"};
    }
  }

  Result<void> add_norm(const OpReader& op) {
    const bool is_layer_norm = op.op().op == LUNA_OP_LAYER_NORM;
    LUNA_TRY(const float* weight, vector(op.in(1)));
    CompiledOp& made =
        append(op, is_layer_norm ? Action::layer_norm : Action::rms_norm, row_split(op));
    made.vector = weight;
    made.number = op.attr_f32(0);
    if (is_layer_norm) {
      LUNA_TRY(made.bias, vector(op.in(2)));
    }
    return {};
  }

  /// What is known of a weight before it is loaded: enough to plan memory.
  static kernels::PackedForm assumed_form(const OpReader& op) {
    kernels::PackedForm form;
    form.form.klass = kernels::WeightClass::affine;
    form.form.segment = op.attr(LUNA_LINEAR_SEGMENT);
    form.storage = kernels::CodeStorage::nibbles;  // takes more scratch than dense weights do
    form.scale_group = 32;
    form.activation_bits = static_cast<int>(op.attr(LUNA_LINEAR_ACTIVATION_BITS));
    form.activation_group = std::max(32U, op.attr(LUNA_LINEAR_ACTIVATION_GROUP));
    return form;
  }

  /// The form of a linear op's weight, or of the rows of it that are one expert's.
  Result<kernels::PackedForm> form_of(const OpReader& op,
                                      const Weight* weight,
                                      std::uint32_t n_experts) const {
    kernels::PackedForm form = assumed_form(op);
    if (weight != nullptr) {
      luna_weight_desc desc = weight->desc;
      desc.n_rows /= n_experts;
      LUNA_TRY(form, plan_weight(desc, op.attr(LUNA_LINEAR_SEGMENT), p_.numerics));
    }
    const bool is_dense = form.is_dense();
    if (!is_dense &&
        (op.attr(LUNA_LINEAR_ACTIVATION_BITS) != static_cast<std::uint32_t>(form.activation_bits) ||
         op.attr(LUNA_LINEAR_ACTIVATION_GROUP) !=
             static_cast<std::uint32_t>(form.activation_group)))
      return Error{Code::invalid_argument,
                   "activations of " + std::to_string(op.attr(LUNA_LINEAR_ACTIVATION_BITS)) +
                       " bits in groups of " +
                       std::to_string(op.attr(LUNA_LINEAR_ACTIVATION_GROUP)) +
                       "; its weight takes " + std::to_string(form.activation_bits) + " and " +
                       std::to_string(form.activation_group)};
    return form;
  }

  Result<void> add_linear(const OpReader& op) {
    const Weight* weight = weight_of(op.in(1));
    LUNA_TRY(const kernels::PackedForm form, form_of(op, weight, 1));
    const float* bias = nullptr;
    if (op.op().n_in == 3) {
      LUNA_TRY(bias, vector(op.in(2)));
    }
    const std::uint32_t activation = activation_of(op.in(0), form, op.in(0).dims[1]);
    CompiledOp& made = append(op, Action::linear, Split::columns);
    made.weight = weight;
    made.form = std::make_unique<const kernels::PackedForm>(form);
    made.vector = bias;
    made.activation = activation;
    return {};
  }

  /// The buffer with this input quantized as the weight wants it; quantizes it if no op before did.
  ///
  /// k  columns of the weight: those of x, or of each of its slots
  std::uint32_t activation_of(const luna_view& x,
                              const kernels::PackedForm& form,
                              std::uint32_t k) {
    const TensorRef in = tensor(x);
    const bool is_dense = form.is_dense();
    Quantized key{in.slot,
                  content_[in.slot],
                  in.column_bytes,
                  in.width,
                  k,
                  is_dense ? 0 : form.activation_bits,
                  is_dense ? 0 : form.activation_group};
    const auto found = std::find(quantized_.begin(), quantized_.end(), key);
    if (found != quantized_.end()) return static_cast<std::uint32_t>(found - quantized_.begin());
    ActivationBuffer buffer;
    buffer.is_dense = is_dense;
    buffer.k = k;
    buffer.n_slots = in.width / k;
    buffer.group = key.group;
    buffer.bits = key.bits;
    buffer.rows = in.rows;
    buffer.is_private = is_narrow(width_);
    const std::int64_t n_rows = rows_max_of(p_, width_, in.rows);
    // Room for every kind, so that the plan made before the weights are known holds.
    const std::int64_t group = std::max<std::int64_t>(buffer.group, 32);
    buffer.slot_bytes = std::max(
        {kernels::dense_rows_bytes(n_rows, buffer.k),
         kernels::quantized_rows_bytes(n_rows, buffer.k, group, 12),
         kernels::quantized_rows_bytes(n_rows, buffer.k, group, kernels::kShortActivationBits)});
    buffer.slot_bytes = (buffer.slot_bytes + 63) / 64 * 64;
    buffer.bytes = buffer.slot_bytes * buffer.n_slots;
    const auto index = static_cast<std::uint32_t>(quantized_.size());
    quantized_.push_back(key);
    schedule_.activations.push_back(buffer);
    CompiledOp& made =
        append(Action::quantize, buffer.is_private ? Split::every_thread : Split::rows);
    made.in[0] = in;
    made.activation = index;
    return index;
  }

  Result<void> add_grouped_linear(const OpReader& op) {
    const std::uint32_t n_experts = op.in(1).dims[1];
    const luna_view& w = op.in(2);
    const std::uint32_t n_expert_rows = w.dims[0] / n_experts;
    if (n_expert_rows % 16 != 0)
      return Error{Code::unsupported,
                   "experts of " + std::to_string(n_expert_rows) +
                       " rows: must be a multiple of 16, so that no strip has rows of two"};
    const Weight* weight = weight_of(w);
    LUNA_TRY(const kernels::PackedForm form, form_of(op, weight, n_experts));
    const std::uint32_t activation = activation_of(op.in(0), form, w.dims[1]);
    CompiledOp& made = append(Action::grouped_linear, Split::experts);
    made.in[0] = tensor(op.in(1));
    made.out = tensor(op.out(0));
    made.weight = weight;
    made.form = std::make_unique<const kernels::PackedForm>(form);
    made.activation = activation;
    made.k = made.out.width / n_expert_rows;
    return {};
  }

  Result<void> add_rope(const OpReader& op, std::uint32_t op_idx) {
    CompiledOp& made = append(op, Action::rope, head_split());
    made.n_heads = op.attr(LUNA_ROPE_N_HEADS);
    made.head_dim = op.attr(LUNA_ROPE_HEAD_DIM);
    made.kind = op.attr(LUNA_ROPE_STYLE);
    made.rope = input_.ropes.empty() ? nullptr : input_.ropes[op_idx];
    if (!is_shared_by_heads(made.n_heads)) made.split = Split::rows;
    return {};
  }
  Result<void> add_head_norm(const OpReader& op) {
    LUNA_TRY(const float* weight, vector(op.in(1)));
    CompiledOp& made = append(op, Action::head_norm, head_split());
    made.vector = weight;
    made.number = op.attr_f32(LUNA_HEAD_NORM_EPS);
    made.head_dim = op.in(1).dims[0];
    made.n_heads = op.in(0).dims[1] / made.head_dim;
    if (!is_shared_by_heads(made.n_heads)) made.split = Split::rows;
    return {};
  }
  /// Heads are shared out by KV head; other shapes (none known) go by rows.
  [[nodiscard]] bool is_shared_by_heads(std::uint32_t n_heads) const {
    return p_.kv.n_kv_heads != 0 && n_heads % p_.kv.n_kv_heads == 0;
  }

  Result<void> add_attend(const OpReader& op) {
    const std::uint32_t group_heads = op.attr(LUNA_ATTEND_N_HEADS) / p_.kv.n_kv_heads;
    if (p_.kv.head_dim % 32 != 0 || p_.kv.head_dim > 256)
      return Error{Code::unsupported,
                   "head_dim = " + std::to_string(p_.kv.head_dim) +
                       ": must be a multiple of 32, at most 256"};
    if (group_heads > 16)
      return Error{Code::unsupported,
                   std::to_string(group_heads) + " query heads a KV head: at most 16 are built"};
    if (width_ == Width::sliced) {
      describe_attention(op, &append(op, Action::attend_tiles, Split::tiles));
      return {};
    }
    const Split split = width_ == Width::narrow ? Split::heads : Split::head_parts;
    describe_attention(op, &append(op, Action::attend, split));
    if (split == Split::head_parts) describe_attention(op, &append(op, Action::merge_parts, split));
    return {};
  }
  void add_prune(const OpReader& op) {
    CompiledOp& observe = append(op, Action::observe, Split::partitions);
    observe.layer = op.attr(LUNA_KV_PRUNE_LAYER);
    observe.n_heads = op.attr(LUNA_KV_PRUNE_N_HEADS);
    observe.number = op.attr_f32(LUNA_KV_PRUNE_SCALE);
    observe.softcap = op.attr_f32(LUNA_KV_PRUNE_SOFTCAP);
    if (op.attr(LUNA_KV_PRUNE_LAYER) != op.attr(LUNA_KV_PRUNE_GROUP_LAST)) return;
    CompiledOp& prune = append(Action::prune, Split::sequences);
    prune.layer = op.attr(LUNA_KV_PRUNE_LAYER);
    prune.group_first = op.attr(LUNA_KV_PRUNE_GROUP_FIRST);
  }
  static void describe_attention(const OpReader& op, CompiledOp* made) {
    made->layer = op.attr(LUNA_ATTEND_LAYER);
    made->n_heads = op.attr(LUNA_ATTEND_N_HEADS);
    made->number = op.attr_f32(LUNA_ATTEND_SCALE);
    made->window = op.attr(LUNA_ATTEND_WINDOW);
    made->softcap = op.attr_f32(LUNA_ATTEND_SOFTCAP);
  }

  /// Content of a view, quantized one way. content_ counts the writes to a slot.
  struct Quantized {
    std::uint32_t slot;
    std::uint32_t content;
    std::uint64_t column_bytes;
    std::uint32_t width;
    std::uint32_t k;
    int bits;
    std::int64_t group;
    bool operator==(const Quantized&) const = default;
  };

  const CompileInput& input_;
  const luna_program& p_;
  const Width width_;
  Schedule schedule_;
  std::vector<bool> private_;
  std::vector<std::uint32_t> content_;
  std::vector<Quantized> quantized_;  // beside schedule_.activations
};

}  // namespace

std::uint32_t rows_max_of(const luna_program& program, Width width, RowCount rows) {
  const std::uint32_t n = rows == RowCount::step ? program.n_rows_max : program.n_out_rows_max;
  return is_narrow(width) ? std::min(n, kNarrowRows) : n;
}

Result<Schedule> compile_schedule(const CompileInput& input, Width width) {
  return ScheduleCompiler(input, width).run();
}

}  // namespace luna::cpu
