// Writing op programs: Program owns one, ProgramBuilder makes one, to_text() prints one.
#pragma once

#include <luna/abi/quant.h>
#include <luna/op_rules.hpp>
#include <luna/op_verify.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace luna {

/// What a program may be asked to do in one step, and the KV it works on.
struct ProgramLimits {
  std::uint32_t numerics = LUNA_NUMERICS_I12;
  std::uint32_t n_rows_max = 0;
  std::uint32_t n_seqs_max = 0;
  std::uint32_t n_out_rows_max = 0;
  std::uint32_t n_blocks_per_seq_max = 0;
  std::uint32_t n_positions_max = 0;
  luna_kv_layout kv{};
};

/// How a linear op computes: three numbers that follow from its weight alone.
struct LinearNumerics {
  std::uint32_t segment = 0;
  std::uint32_t activation_bits = 12;
  std::uint32_t activation_group = 32;
};

/// The numbers every backend and every row count agrees on for a weight.
///
/// n_rows_total  rows of the weight in the whole model, before any split over devices; gate and up
///               counted together where they are one op
/// numerics_class  the program's class, LUNA_NUMERICS_*
/// Source        the arithmetic contract: K segments, bits and groups of activations
constexpr LinearNumerics linear_numerics(const luna_weight_desc& weight,
                                         std::uint64_t n_rows_total,
                                         std::uint32_t numerics_class = LUNA_NUMERICS_I12) {
  const bool dense = weight.klass == LUNA_WEIGHT_DENSE;
  const std::uint64_t group = dense ? 0 : weight.group;
  const std::uint64_t super_block = dense ? 0 : weight.super;
  const std::uint64_t quantum = std::max<std::uint64_t>(64, std::max(group, super_block));
  std::uint64_t n_segments = 1;
  while (n_segments < 16 && (n_rows_total + 63) / 64 * n_segments < 1024)
    n_segments *= 2;
  while (n_segments > 1 && weight.n_cols / n_segments < 256)
    n_segments /= 2;
  const std::uint64_t unit = n_segments * quantum;
  LinearNumerics numerics;
  numerics.segment = static_cast<std::uint32_t>((weight.n_cols + unit - 1) / unit * quantum);
  if (weight.klass == LUNA_WEIGHT_AFFINE && weight.bits == 5) numerics.activation_bits = 11;
  if (weight.klass == LUNA_WEIGHT_AFFINE && (weight.bits == 6 || weight.bits == 7))
    numerics.activation_bits = 10;
  if (numerics_class == LUNA_NUMERICS_I8) numerics.activation_bits = 8;
  if (numerics_class == LUNA_NUMERICS_BF16) numerics.activation_bits = 16;
  numerics.activation_group = static_cast<std::uint32_t>(
      super_block != 0 ? super_block : std::clamp<std::uint64_t>(group, 32, 128));
  return numerics;
}

/// A view of a program under construction. Only the builder that made it understands it.
struct ViewId {
  std::uint32_t index = 0;
};

/// A finished, verified program that owns all it points to. A resource: moved, not copied.
class Program {
 public:
  Program() = default;
  Program(Program&&) noexcept = default;
  Program& operator=(Program&&) noexcept = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() = default;

  /// A copy of a program that came over the border and passed verify().
  static Program copy_of(const luna_program& p) {
    Program copy;
    copy.limits_ = {p.numerics,
                    p.n_rows_max,
                    p.n_seqs_max,
                    p.n_out_rows_max,
                    p.n_blocks_per_seq_max,
                    p.n_positions_max,
                    p.kv};
    copy.ops_.assign(p.ops, p.ops + p.n_ops);
    copy.views_.assign(p.views, p.views + p.n_views);
    copy.slots_.assign(p.slots, p.slots + p.n_slots);
    copy.args_.assign(p.args, p.args + p.n_args);
    copy.attrs_.assign(p.attrs, p.attrs + p.n_attrs);
    copy.hash_ = p.hash;
    for (luna_slot& slot : copy.slots_)
      if (slot.kind == LUNA_SLOT_CONSTANT) slot.data = copy.keep_constant(slot.data, slot.bytes);
    return copy;
  }

  /// The program as the ABI has it; valid as long as this object lives unmoved.
  [[nodiscard]] luna_program abi() const {
    luna_program p{};
    p.struct_size = sizeof(p);
    p.numerics = limits_.numerics;
    p.n_ops = static_cast<std::uint32_t>(ops_.size());
    p.n_views = static_cast<std::uint32_t>(views_.size());
    p.n_slots = static_cast<std::uint32_t>(slots_.size());
    p.n_args = static_cast<std::uint32_t>(args_.size());
    p.n_attrs = static_cast<std::uint32_t>(attrs_.size());
    p.n_rows_max = limits_.n_rows_max;
    p.n_seqs_max = limits_.n_seqs_max;
    p.n_out_rows_max = limits_.n_out_rows_max;
    p.n_blocks_per_seq_max = limits_.n_blocks_per_seq_max;
    p.n_positions_max = limits_.n_positions_max;
    p.ops = ops_.data();
    p.views = views_.data();
    p.slots = slots_.data();
    p.args = args_.data();
    p.attrs = attrs_.data();
    p.kv = limits_.kv;
    p.hash = hash_;
    return p;
  }
  /// The slot of a kind that is bound at submit (KV, LOGITS, CANDIDATES, COMM), if there is one.
  [[nodiscard]] std::optional<std::uint32_t> bound_slot(std::uint32_t kind) const {
    for (std::uint32_t i = 0; i < slots_.size(); ++i)
      if (slots_[i].kind == kind && kind >= LUNA_SLOT_KV) return i;
    return std::nullopt;
  }

 private:
  friend class ProgramBuilder;
  const std::byte* keep_constant(const void* data, std::uint64_t bytes) {
    auto copy = std::make_unique<std::byte[]>(bytes);
    if (bytes != 0) std::memcpy(copy.get(), data, bytes);
    constants_.push_back(std::move(copy));
    return constants_.back().get();
  }
  ProgramLimits limits_;
  std::vector<luna_op> ops_;
  std::vector<luna_view> views_;
  std::vector<luna_slot> slots_;
  std::vector<std::uint32_t> args_;
  std::vector<std::uint32_t> attrs_;
  std::vector<std::unique_ptr<std::byte[]>> constants_;  // what CONSTANT slots point to
  std::uint64_t hash_ = 0;
};

/// Appends ops in execution order. Every call that makes a tensor returns its view; nothing fails
/// before finish(), which verifies the whole. [any]
class ProgramBuilder {
 public:
  struct RopeOptions {
    std::uint32_t n_heads = 0;
    std::uint32_t head_dim = 0;
    std::uint32_t n_rot = 0;
    std::uint32_t style = LUNA_ROPE_INTERLEAVED;
    float magnitude = 1.0F;
  };
  struct AttendOptions {
    std::uint32_t layer = 0;
    std::uint32_t n_heads = 0;
    float scale = 1.0F;
    std::uint32_t window = 0;
    float softcap = 0.0F;
  };

  struct PruneOptions {
    std::uint32_t layer = 0;
    std::uint32_t n_heads = 0;
    float scale = 1.0F;
    float softcap = 0.0F;
    std::uint32_t group_first = 0;
    std::uint32_t group_last = 0;
  };

  explicit ProgramBuilder(const ProgramLimits& limits) { program_.limits_ = limits; }

  // ---- Tensors

  /// Weight `index` of compile()'s list as a matrix [n_rows, n_cols] or, with n_cols 0, a vector.
  /// Ops see its values as F32, however it is stored.
  ViewId weight(std::uint32_t index, std::uint32_t n_rows, std::uint32_t n_cols = 0) {
    const std::uint32_t slot = add_slot(LUNA_SLOT_WEIGHT, index, 0);
    return add_view(slot, LUNA_DTYPE_F32, n_rows, n_cols);
  }
  /// A constant vector, copied into the program.
  ViewId constant(std::span<const double> values) {
    const std::uint32_t slot = add_slot(LUNA_SLOT_CONSTANT, 0, values.size_bytes());
    program_.slots_[slot].data = program_.keep_constant(values.data(), values.size_bytes());
    return add_view(slot, LUNA_DTYPE_F64, static_cast<std::uint32_t>(values.size()), 0);
  }
  /// A new activation [rows, width]; `rows` is LUNA_DIM_ROWS or LUNA_DIM_OUT_ROWS.
  ViewId activation(std::uint32_t rows, std::uint32_t width, std::uint32_t dtype = LUNA_DTYPE_F32) {
    const std::uint32_t slot = add_slot(LUNA_SLOT_SCRATCH, 0, width * dtype_bytes(dtype));
    return add_view(slot, dtype, rows, width);
  }
  /// Columns [first, first + n) of an activation.
  ViewId columns(ViewId x, std::uint32_t first, std::uint32_t n) {
    luna_view v = program_.views_[x.index];
    const std::uint64_t element = dtype_bytes(v.dtype);
    v.row_stride = static_cast<std::uint32_t>(program_.slots_[v.slot].bytes / element);
    v.offset += first * element;
    v.dims[1] = n;
    program_.views_.push_back(v);
    return {static_cast<std::uint32_t>(program_.views_.size() - 1)};
  }
  [[nodiscard]] const luna_view& view(ViewId x) const { return program_.views_[x.index]; }

  // ---- Ops that compute. Outputs are new activations unless `y` or `_in_place` says otherwise.

  ViewId embed(ViewId weight_matrix) {
    const ViewId y = activation(LUNA_DIM_ROWS, view(weight_matrix).dims[1]);
    add_op(LUNA_OP_EMBED, {weight_matrix}, {y}, {});
    return y;
  }
  ViewId rms_norm(ViewId x, ViewId w, float eps) {
    const ViewId y = same_as(x);
    add_op(LUNA_OP_RMS_NORM, {x, w}, {y}, {bits(eps)});
    return y;
  }
  /// Norms each head of x on its own; w has the width of one.
  void head_norm_in_place(ViewId x, ViewId w, float eps) {
    add_op(LUNA_OP_HEAD_NORM, {x, w}, {x}, {bits(eps)});
  }
  ViewId layer_norm(ViewId x, ViewId w, ViewId b, float eps) {
    const ViewId y = same_as(x);
    add_op(LUNA_OP_LAYER_NORM, {x, w, b}, {y}, {bits(eps)});
    return y;
  }
  ViewId linear(ViewId x,
                ViewId w,
                const LinearNumerics& numerics,
                std::optional<ViewId> bias = std::nullopt) {
    const ViewId y = activation(view(x).dims[0], view(w).dims[0]);
    linear_into(x, w, numerics, bias, y);
    return y;
  }
  /// As linear(), into columns of an activation that exists.
  void linear_into(
      ViewId x, ViewId w, const LinearNumerics& numerics, std::optional<ViewId> bias, ViewId y) {
    const auto attrs = {numerics.segment, numerics.activation_bits, numerics.activation_group};
    if (bias) {
      add_op(LUNA_OP_LINEAR, {x, w, *bias}, {y}, attrs);
    } else {
      add_op(LUNA_OP_LINEAR, {x, w}, {y}, attrs);
    }
    const std::uint64_t k = view(w).dims[1];
    program_.ops_.back().flops_per_row = 2 * k * view(w).dims[0];
  }
  /// [n, k * n_expert_rows]; numerics are those of one expert's rows.
  ViewId grouped_linear(
      ViewId x, ViewId routes, ViewId w, std::uint32_t k, const LinearNumerics& numerics) {
    const std::uint32_t n_rows = view(w).dims[0] / view(routes).dims[1];
    const ViewId y = activation(view(x).dims[0], k * n_rows);
    add_op(LUNA_OP_GROUPED_LINEAR,
           {x, routes, w},
           {y},
           {numerics.segment, numerics.activation_bits, numerics.activation_group});
    program_.ops_.back().flops_per_row = std::uint64_t{2} * k * n_rows * view(w).dims[1];
    return y;
  }
  ViewId moe_route(ViewId scores, std::uint32_t k, bool normalizes) {
    const ViewId y = same_as(scores);
    add_op(LUNA_OP_MOE_ROUTE, {scores}, {y}, {k, normalizes ? 1U : 0U});
    return y;
  }
  /// [n, width of a slot]
  ViewId moe_sum(ViewId x, ViewId routes, std::uint32_t k) {
    const ViewId y = activation(view(x).dims[0], view(x).dims[1] / k);
    add_op(LUNA_OP_MOE_SUM, {x, routes}, {y}, {});
    return y;
  }
  void rope_in_place(ViewId x, ViewId frequencies, const RopeOptions& o) {
    add_op(LUNA_OP_ROPE,
           {x, frequencies},
           {x},
           {o.n_heads, o.head_dim, o.n_rot, o.style, bits(o.magnitude)});
  }
  void kv_write(ViewId k, ViewId v, std::uint32_t layer) {
    need_slot(LUNA_SLOT_KV);
    add_op(LUNA_OP_KV_WRITE, {k, v}, {}, {layer});
  }
  ViewId attend(ViewId q, const AttendOptions& o) {
    need_slot(LUNA_SLOT_KV);
    const ViewId y = same_as(q);
    add_op(
        LUNA_OP_ATTEND, {q}, {y}, {o.layer, o.n_heads, bits(o.scale), o.window, bits(o.softcap)});
    return y;
  }
  /// After attend() of the layer, with its q and options; limits.kv.flags has LUNA_KV_OBSERVED.
  void kv_prune(ViewId q, const PruneOptions& o) {
    need_slot(LUNA_SLOT_KV);
    add_op(LUNA_OP_KV_PRUNE,
           {q},
           {},
           {o.layer, o.n_heads, bits(o.scale), bits(o.softcap), o.group_first, o.group_last});
  }
  ViewId act_mul(ViewId gate, ViewId up, std::uint32_t kind) {
    const ViewId y = same_as(gate);
    add_op(LUNA_OP_ACT_MUL, {gate, up}, {y}, {kind});
    return y;
  }
  ViewId add(ViewId a, ViewId b) {
    const ViewId y = same_as(a);
    add_op(LUNA_OP_ADD, {a, b}, {y}, {});
    return y;
  }
  /// a += b: the residual stream.
  void add_in_place(ViewId a, ViewId b) { add_op(LUNA_OP_ADD, {a, b}, {a}, {}); }
  void scale_in_place(ViewId x, float factor) { add_op(LUNA_OP_SCALE, {x}, {x}, {bits(factor)}); }
  void softcap_in_place(ViewId x, float cap) { add_op(LUNA_OP_SOFTCAP, {x}, {x}, {bits(cap)}); }
  ViewId gather_rows(ViewId x) {
    const ViewId y = activation(LUNA_DIM_OUT_ROWS, view(x).dims[1]);
    add_op(LUNA_OP_GATHER_ROWS, {x}, {y}, {});
    return y;
  }
  ViewId copy(ViewId x) {
    const ViewId y = same_as(x);
    add_op(LUNA_OP_COPY, {x}, {y}, {});
    return y;
  }
  ViewId convert(ViewId x, std::uint32_t dtype) {
    const ViewId y = activation(view(x).dims[0], view(x).dims[1], dtype);
    add_op(LUNA_OP_CONVERT, {x}, {y}, {});
    return y;
  }

  // ---- Ops that reach what is bound at submit. Each names its slot on first use.

  void kv_copy() {
    need_slot(LUNA_SLOT_KV);
    add_op(LUNA_OP_KV_COPY, {}, {}, {});
  }
  void logits(ViewId x) {
    const ViewId y =
        add_view(need_slot(LUNA_SLOT_LOGITS), LUNA_DTYPE_F32, LUNA_DIM_OUT_ROWS, view(x).dims[1]);
    add_op(LUNA_OP_LOGITS, {x}, {y}, {});
  }
  void top_candidates(ViewId x, std::uint32_t k) {
    const ViewId y =
        add_view(need_slot(LUNA_SLOT_CANDIDATES), LUNA_DTYPE_U32, LUNA_DIM_OUT_ROWS, 2 * (k + 1));
    add_op(LUNA_OP_TOP_CANDIDATES, {x}, {y}, {k});
  }
  void send(ViewId x, std::uint32_t peer, std::uint32_t tag) {
    need_slot(LUNA_SLOT_COMM);
    add_op(LUNA_OP_SEND, {x}, {}, {peer, tag});
  }
  ViewId recv(std::uint32_t width, std::uint32_t peer, std::uint32_t tag) {
    need_slot(LUNA_SLOT_COMM);
    const ViewId y = activation(LUNA_DIM_ROWS, width);
    add_op(LUNA_OP_RECV, {}, {y}, {peer, tag});
    return y;
  }
  /// As recv(), into columns of an activation that exists.
  void recv_into(ViewId y, std::uint32_t peer, std::uint32_t tag) {
    need_slot(LUNA_SLOT_COMM);
    add_op(LUNA_OP_RECV, {}, {y}, {peer, tag});
  }
  ViewId all_reduce(ViewId x) {
    need_slot(LUNA_SLOT_COMM);
    const ViewId y = same_as(x);
    add_op(LUNA_OP_ALL_REDUCE, {x}, {y}, {});
    return y;
  }
  /// The columns of all ranks, [rows, gather.n_columns]; x has those of gather.rank.
  ViewId all_gather(ViewId x, const ColumnGather& gather) {
    need_slot(LUNA_SLOT_COMM);
    const ViewId y = activation(view(x).dims[0], gather.n_columns);
    add_op(LUNA_OP_ALL_GATHER, {x}, {y}, {gather.unit, gather.rank, gather.n_ranks, gather.tag});
    return y;
  }
  void barrier() {
    need_slot(LUNA_SLOT_COMM);
    add_op(LUNA_OP_BARRIER, {}, {}, {});
  }
  /// Lets steps have slices: partitions of attend() that lie on other devices.
  void allow_slices() { need_slot(LUNA_SLOT_SLICES); }

  /// Sets the bytes of weights the last op reads whatever the row count (for planning).
  void set_last_op_bytes(std::uint64_t bytes_fixed) {
    if (!program_.ops_.empty()) program_.ops_.back().bytes_fixed = bytes_fixed;
  }

  /// Appends any op: the typed calls above are made of it.
  void add_op(std::uint32_t op,
              std::span<const ViewId> in,
              std::span<const ViewId> out,
              std::span<const std::uint32_t> attrs) {
    luna_op o{};
    o.op = static_cast<std::uint16_t>(op);
    o.n_in = static_cast<std::uint16_t>(in.size());
    o.n_out = static_cast<std::uint16_t>(out.size());
    o.n_attrs = static_cast<std::uint16_t>(attrs.size());
    o.first_arg = static_cast<std::uint32_t>(program_.args_.size());
    o.first_attr = static_cast<std::uint32_t>(program_.attrs_.size());
    for (const ViewId id : in)
      program_.args_.push_back(id.index);
    for (const ViewId id : out)
      program_.args_.push_back(id.index);
    program_.attrs_.insert(program_.attrs_.end(), attrs.begin(), attrs.end());
    program_.ops_.push_back(o);
  }
  void add_op(std::uint32_t op,
              std::initializer_list<ViewId> in,
              std::initializer_list<ViewId> out,
              std::initializer_list<std::uint32_t> attrs) {
    add_op(op,
           std::span(in.begin(), in.size()),
           std::span(out.begin(), out.size()),
           std::span(attrs.begin(), attrs.size()));
  }

  /// The program, hashed and verified. The builder is spent.
  ///
  /// Errors  invalid_argument, naming the op and what it should be
  Result<Program> finish() && {
    program_.hash_ = hash_program(program_.abi());
    LUNA_TRY(verify(program_.abi()));
    return std::move(program_);
  }

 private:
  static std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
  ViewId same_as(ViewId x) {
    const luna_view v = view(x);
    return activation(v.dims[0], v.dims[1], v.dtype);
  }
  std::uint32_t add_slot(std::uint32_t kind, std::uint32_t index, std::uint64_t bytes) {
    program_.slots_.push_back({kind, index, bytes, nullptr});
    return static_cast<std::uint32_t>(program_.slots_.size() - 1);
  }
  std::uint32_t need_slot(std::uint32_t kind) {
    const std::optional<std::uint32_t> slot = program_.bound_slot(kind);
    return slot ? *slot : add_slot(kind, 0, 0);
  }
  ViewId add_view(std::uint32_t slot, std::uint32_t dtype, std::uint32_t n0, std::uint32_t n1) {
    luna_view v{};
    v.slot = slot;
    v.dtype = dtype;
    v.rank = n1 == 0 ? 1 : 2;
    v.dims[0] = n0;
    v.dims[1] = n1;
    program_.views_.push_back(v);
    return {static_cast<std::uint32_t>(program_.views_.size() - 1)};
  }

  Program program_;
};

/// `s7+128[n,576]`: what lies behind a tensor (w weight, c constant, s scratch, kv, logits,
/// candidates) and which one, its place in it and its sizes.
inline std::string tensor_text(const luna_program& program, const luna_view& view) {
  static constexpr const char* kKinds[] = {
      "?", "w", "c", "s", "kv", "logits", "candidates", "comm", "slices"};
  const luna_slot& slot = program.slots[view.slot];
  std::string text = kKinds[slot.kind];
  if (slot.kind <= LUNA_SLOT_SCRATCH)
    text += std::to_string(slot.kind == LUNA_SLOT_WEIGHT ? slot.index : view.slot);
  if (view.offset != 0) text += "+" + std::to_string(view.offset);
  for (std::uint32_t d = 0; d < view.rank; ++d)
    text += (d == 0 ? "[" : ",") + dim_text(view.dims[d]);
  return text + "]";
}

/// ` segment=320 activation_bits=12`, or nothing.
inline std::string attrs_text(const OpReader& op) {
  std::string text;
  std::string_view names = kOpRules[op.op().op].attrs;
  for (std::uint32_t a = 0; a < op.op().n_attrs; ++a) {
    std::string name(take_word(&names));
    const bool is_float = !name.empty() && name.back() == ':';
    if (is_float) name.pop_back();
    const std::string value =
        is_float ? std::to_string(op.attr_f32(a)) : std::to_string(op.attr(a));
    text.append(" ").append(name).append("=").append(value);
  }
  return text;
}

/// One line an op: `s7[n,576] = linear(s5[n,576], w3[576,576]) segment=320 activation_bits=12 ...`.
/// The program must have passed verify().
inline std::string to_text(const luna_program& program) {
  std::string text;
  for (std::uint32_t i = 0; i < program.n_ops; ++i) {
    const OpReader r(program, program.ops[i]);
    for (std::uint32_t o = 0; o < r.op().n_out; ++o)
      text += tensor_text(program, r.out(o)) + " = ";
    text += std::string(op_name(r.op().op)) + "(";
    for (std::uint32_t a = 0; a < r.op().n_in; ++a)
      text += (a == 0 ? "" : ", ") + tensor_text(program, r.in(a));
    text += ")" + attrs_text(r) + "\n";
  }
  return text;
}

}  // namespace luna
