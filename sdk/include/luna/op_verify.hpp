// verify(): holds a program against the rules of its ops. Programs come from core, but a backend
// checks them all the same: a plugin trusts no pointer arithmetic it did not check.
#pragma once

#include <luna/column_share.hpp>
#include <luna/op_rules.hpp>

#include <cmath>

namespace luna {

/// Bounds beyond which a program is refused; they keep every later product within 64 bits.
inline constexpr std::uint32_t kProgramRowsMax = 1U << 20;
inline constexpr std::uint32_t kProgramListMax = 1U << 22;  ///< ops, views, slots, args, attrs
inline constexpr std::uint64_t kProgramRowBytesMax = std::uint64_t{1} << 32;
inline constexpr std::uint32_t kCandidatesPerRowMax = 256;
inline constexpr std::uint32_t kGatherRanksMax = 1024;

/// What an all_gather of a verified program brings together in a step of so many rows.
inline ColumnGather column_gather(const OpReader& op, std::uint32_t n_rows) {
  return {.n_rows = n_rows,
          .n_columns = op.out(0).dims[1],
          .unit = op.attr(LUNA_ALL_GATHER_UNIT),
          .rank = op.attr(LUNA_ALL_GATHER_RANK),
          .n_ranks = op.attr(LUNA_ALL_GATHER_N_RANKS),
          .tag = op.attr(LUNA_ALL_GATHER_TAG)};
}

/// Holds an op's attributes against its tensors, whose ranks and shapes fit it. Made by
/// ProgramVerifier alone.
class AttrChecker {
 public:
  AttrChecker(const std::string& where, const luna_program& program, const luna_op& op)
      : where_(where), kv_(program.kv), r_(program, op) {}

  Result<void> run() const {
    std::string_view names = kOpRules[r_.op().op].attrs;
    for (std::uint32_t i = 0; i < r_.op().n_attrs; ++i) {
      const std::string_view name = take_word(&names);
      if (name.back() == ':') LUNA_TRY(need(std::isfinite(r_.attr_f32(i)), name));
    }
    switch (r_.op().op) {
      case LUNA_OP_RMS_NORM:
      case LUNA_OP_LAYER_NORM:
        return need(r_.attr_f32(0) >= 0.0F, "eps");
      case LUNA_OP_HEAD_NORM:
        LUNA_TRY(need(r_.attr_f32(LUNA_HEAD_NORM_EPS) >= 0.0F, "eps"));
        return need_that(r_.in(0).dims[1] % r_.in(1).dims[0] == 0,
                         "its width is not a multiple of a head's");
      case LUNA_OP_LINEAR:
        return need(r_.attr(LUNA_LINEAR_SEGMENT) != 0, "segment");
      case LUNA_OP_MOE_ROUTE:
        LUNA_TRY(need(r_.attr(LUNA_MOE_ROUTE_K) != 0, "k"));
        LUNA_TRY(need(r_.attr(LUNA_MOE_ROUTE_K) <= r_.in(0).dims[1], "k"));
        return need(r_.attr(LUNA_MOE_ROUTE_NORMALIZES) <= 1, "normalizes");
      case LUNA_OP_GROUPED_LINEAR:
        return check_grouped_linear();
      case LUNA_OP_MOE_SUM:
        return need_slots(r_.in(0).dims[1], r_.out(0).dims[1], r_.in(1).dims[1]);
      case LUNA_OP_ROPE:
        return check_rope();
      case LUNA_OP_KV_WRITE:
        LUNA_TRY(need(r_.attr(LUNA_KV_WRITE_LAYER) < kv_.n_layers, "layer"));
        return need_that(r_.in(0).dims[1] == kv_.n_kv_heads * kv_.head_dim,
                         "its width is not n_kv_heads * head_dim");
      case LUNA_OP_ATTEND:
        LUNA_TRY(need(r_.attr(LUNA_ATTEND_LAYER) < kv_.n_layers, "layer"));
        LUNA_TRY(need_query_heads(r_.attr(LUNA_ATTEND_N_HEADS)));
        return need(r_.attr_f32(LUNA_ATTEND_SOFTCAP) >= 0.0F, "softcap");
      case LUNA_OP_KV_PRUNE:
        return check_kv_prune();
      case LUNA_OP_ACT_MUL:
        return need(r_.attr(LUNA_ACT_MUL_KIND) <= LUNA_ACT_GELU_TANH, "kind");
      case LUNA_OP_SOFTCAP:
        return need(r_.attr_f32(LUNA_SOFTCAP_CAP) > 0.0F, "cap");
      case LUNA_OP_TOP_CANDIDATES:
        return check_top_candidates();
      case LUNA_OP_ALL_GATHER:
        return check_all_gather();
      case LUNA_OP_COPY:
        return need_that(r_.in(0).dtype == r_.out(0).dtype, "copy keeps the type");
      default:
        return {};
    }
  }

 private:
  Result<void> check_rope() const {
    const std::uint64_t heads = r_.attr(LUNA_ROPE_N_HEADS);
    const std::uint64_t head_dim = r_.attr(LUNA_ROPE_HEAD_DIM);
    const std::uint32_t n_rot = r_.attr(LUNA_ROPE_N_ROT);
    LUNA_TRY(need(heads * head_dim == r_.in(0).dims[1], "n_heads"));
    LUNA_TRY(need(n_rot % 2 == 0 && n_rot <= head_dim && r_.in(1).dims[0] == n_rot / 2, "n_rot"));
    return need(r_.attr(LUNA_ROPE_STYLE) <= LUNA_ROPE_HALVES, "style");
  }

  Result<void> check_grouped_linear() const {
    LUNA_TRY(need(r_.attr(LUNA_LINEAR_SEGMENT) != 0, "segment"));
    const std::uint32_t n_experts = r_.in(1).dims[1];
    const luna_view& weight = r_.in(2);
    LUNA_TRY(need_that(weight.dims[0] % n_experts == 0, "its weight has no rows for each expert"));
    LUNA_TRY(need_slots(r_.out(0).dims[1], weight.dims[0] / n_experts, n_experts));
    const std::uint64_t n_slots = r_.out(0).dims[1] / (weight.dims[0] / n_experts);
    const std::uint64_t width = r_.in(0).dims[1];
    return need_that(width == weight.dims[1] || width == n_slots * weight.dims[1],
                     "its input is neither one slot nor as many as its output has");
  }
  /// `width` is slots of `slot_width`, no more than there are experts.
  Result<void> need_slots(std::uint32_t width,
                          std::uint32_t slot_width,
                          std::uint32_t n_experts) const {
    return need_that(width % slot_width == 0 && width / slot_width <= n_experts,
                     "its slots are no whole number, or more than experts");
  }

  Result<void> check_kv_prune() const {
    const std::uint32_t layer = r_.attr(LUNA_KV_PRUNE_LAYER);
    const std::uint32_t last = r_.attr(LUNA_KV_PRUNE_GROUP_LAST);
    LUNA_TRY(need_that((kv_.flags & LUNA_KV_OBSERVED) != 0, "program.kv.flags has no masses"));
    LUNA_TRY(need(last < kv_.n_layers, "group_last"));
    LUNA_TRY(need(layer <= last, "layer"));
    LUNA_TRY(need(r_.attr(LUNA_KV_PRUNE_GROUP_FIRST) <= layer, "group_first"));
    LUNA_TRY(need_query_heads(r_.attr(LUNA_KV_PRUNE_N_HEADS)));
    return need(r_.attr_f32(LUNA_KV_PRUNE_SOFTCAP) >= 0.0F, "softcap");
  }

  Result<void> check_top_candidates() const {
    const std::uint32_t k = r_.attr(LUNA_TOP_CANDIDATES_K);
    LUNA_TRY(need(k != 0 && k <= kCandidatesPerRowMax && k <= r_.in(0).dims[1], "k"));
    return need_that(r_.out(0).dims[1] == 2 * (k + 1), "its output's width is not 2 * (k + 1)");
  }

  Result<void> check_all_gather() const {
    const std::uint32_t n_ranks = r_.attr(LUNA_ALL_GATHER_N_RANKS);
    LUNA_TRY(need(n_ranks != 0 && n_ranks <= kGatherRanksMax, "n_ranks"));
    LUNA_TRY(need(r_.attr(LUNA_ALL_GATHER_RANK) < n_ranks, "rank"));
    LUNA_TRY(need(r_.attr(LUNA_ALL_GATHER_UNIT) != 0, "unit"));
    const ColumnGather gather = column_gather(r_, 0);
    for (std::uint32_t rank = 0; rank < n_ranks; ++rank)
      LUNA_TRY(need(gather.share(rank).count != 0, "unit"));
    return need_that(r_.in(0).dims[1] == gather.share(gather.rank).count,
                     "its input's width is not the rank's share of its output's");
  }

  /// Query heads share KV heads evenly and fill the rows of the first input.
  Result<void> need_query_heads(std::uint64_t heads) const {
    return need(
        heads != 0 && heads % kv_.n_kv_heads == 0 && heads * kv_.head_dim == r_.in(0).dims[1],
        "n_heads");
  }
  Result<void> need(bool fits, std::string_view attr) const {
    if (fits) return {};
    return refused("attribute '" + std::string(attr) + "' does not fit its tensors");
  }
  Result<void> need_that(bool holds, const char* otherwise) const {
    if (holds) return {};
    return refused(otherwise);
  }
  Error refused(const std::string& why) const {
    return Error{Code::invalid_argument, where_ + ": " + why};
  }

  const std::string& where_;  // the op's place and name; outlives the checker
  const luna_kv_layout& kv_;  // likewise
  const OpReader r_;
};

/// One pass over a program. Made by verify() alone.
class ProgramVerifier {
 public:
  explicit ProgramVerifier(const luna_program& program) : program_(program) {}

  Result<void> run() {
    LUNA_TRY(check_header());
    LUNA_TRY(check_kv());
    slot_rows_.assign(program_.n_slots, 0);
    written_.assign(program_.n_slots, false);
    for (std::uint32_t i = 0; i < program_.n_slots; ++i)
      LUNA_TRY(check_slot(i));
    for (std::uint32_t i = 0; i < program_.n_views; ++i)
      LUNA_TRY(check_view(i));
    for (std::uint32_t i = 0; i < program_.n_ops; ++i)
      LUNA_TRY(check_op(i));
    if (program_.hash != hash_program(program_))
      return invalid("program.hash = " + std::to_string(program_.hash) +
                     ": does not match the program");
    return {};
  }

 private:
  using Text = std::string;
  static Error invalid(Text message) { return Error{Code::invalid_argument, std::move(message)}; }
  static Error out_of_range(const Text& what, std::uint64_t value, std::uint64_t n_max) {
    return invalid(what + " = " + std::to_string(value) + ": must be in 1.." +
                   std::to_string(n_max));
  }

  Result<void> check_header() const {
    const luna_program& p = program_;
    if (!LUNA_HAS(&p, luna_program, hash))
      return invalid("program.struct_size = " + std::to_string(p.struct_size) + ": too small");
    if (p.numerics > LUNA_NUMERICS_BF16)
      return invalid("program.numerics = " + std::to_string(p.numerics) + ": unknown class");
    struct Bound {
      const char* name;
      std::uint32_t value;
      const void* list;  // nullptr: a plain number
    };
    const Bound lists[] = {{"program.n_ops", p.n_ops, p.ops},
                           {"program.n_views", p.n_views, p.views},
                           {"program.n_slots", p.n_slots, p.slots},
                           {"program.n_args", p.n_args, p.args},
                           {"program.n_attrs", p.n_attrs, p.attrs}};
    for (const Bound& b : lists) {
      if (b.value > kProgramListMax) return out_of_range(b.name, b.value, kProgramListMax);
      if (b.value != 0 && b.list == nullptr)
        return invalid(Text(b.name) + " = " + std::to_string(b.value) + ": its list is null");
    }
    if (p.n_ops == 0) return out_of_range("program.n_ops", 0, kProgramListMax);
    const Bound numbers[] = {{"program.n_rows_max", p.n_rows_max, nullptr},
                             {"program.n_seqs_max", p.n_seqs_max, nullptr},
                             {"program.n_out_rows_max", p.n_out_rows_max, nullptr},
                             {"program.n_blocks_per_seq_max", p.n_blocks_per_seq_max, nullptr},
                             {"program.n_positions_max", p.n_positions_max, nullptr}};
    for (const Bound& b : numbers)
      if (b.value == 0 || b.value > kProgramRowsMax)
        return out_of_range(b.name, b.value, kProgramRowsMax);
    return {};
  }

  Result<void> check_kv() const {
    const luna_kv_layout& kv = program_.kv;
    if (kv.n_layers == 0) return {};  // a program without KV
    const std::uint32_t tokens = kv.block_tokens;
    if (!std::has_single_bit(tokens) || tokens < 32 || tokens > 256)
      return invalid("program.kv.block_tokens = " + std::to_string(tokens) +
                     ": must be a power of two in 32..256");
    if (kv.n_layers > 65536) return out_of_range("program.kv.n_layers", kv.n_layers, 65536);
    if (kv.n_kv_heads == 0 || kv.n_kv_heads > 4096)
      return out_of_range("program.kv.n_kv_heads", kv.n_kv_heads, 4096);
    if (kv.head_dim == 0 || kv.head_dim > 4096)
      return out_of_range("program.kv.head_dim", kv.head_dim, 4096);
    if (dtype_bytes(kv.dtype) == 0)
      return invalid("program.kv.dtype = " + std::to_string(kv.dtype) + ": unknown type");
    if (kv.flags > LUNA_KV_OBSERVED)
      return invalid("program.kv.flags = " + std::to_string(kv.flags) + ": unknown flags");
    return {};
  }

  Result<void> check_slot(std::uint32_t i) {
    const luna_slot& slot = program_.slots[i];
    const Text where = "slot " + std::to_string(i);
    switch (slot.kind) {
      case LUNA_SLOT_WEIGHT:
        return {};
      case LUNA_SLOT_CONSTANT:
        if (slot.data == nullptr || slot.bytes == 0 || slot.bytes > kProgramRowBytesMax)
          return invalid(where + ": a constant without data");
        return {};
      case LUNA_SLOT_SCRATCH:
        if (slot.bytes == 0 || slot.bytes > kProgramRowBytesMax)
          return out_of_range(where + ".bytes", slot.bytes, kProgramRowBytesMax);
        return {};
      case LUNA_SLOT_KV:
      case LUNA_SLOT_LOGITS:
      case LUNA_SLOT_CANDIDATES:
      case LUNA_SLOT_COMM:
      case LUNA_SLOT_SLICES:
        if (has_slot(slot.kind))
          return invalid(where + ": a second slot of kind " + std::to_string(slot.kind));
        if (slot.kind == LUNA_SLOT_KV && program_.kv.n_layers == 0)
          return invalid(where + ": a KV slot where program.kv.n_layers = 0");
        bound_kinds_ |= 1U << slot.kind;
        return {};
      default:
        return invalid(where + ".kind = " + std::to_string(slot.kind) + ": unknown");
    }
  }
  [[nodiscard]] bool has_slot(std::uint32_t kind) const {
    return ((bound_kinds_ >> kind) & 1U) != 0;
  }

  Result<void> check_view(std::uint32_t i) {
    const luna_view& view = program_.views[i];
    const Text where = "view " + std::to_string(i);
    if (view.slot >= program_.n_slots)
      return invalid(where + ".slot = " + std::to_string(view.slot) + ": there are " +
                     std::to_string(program_.n_slots));
    if (dtype_bytes(view.dtype) == 0)
      return invalid(where + ".dtype = " + std::to_string(view.dtype) + ": unknown type");
    if (view.rank == 0 || view.rank > 4) return out_of_range(where + ".rank", view.rank, 4);
    std::uint64_t elements = 1;  // of one row
    for (std::uint32_t d = 0; d < view.rank; ++d) {
      const bool leading = d == 0;
      if (view.dims[d] == 0 || (!leading && is_symbolic(view.dims[d])))
        return invalid(where + ".dims[" + std::to_string(d) +
                       "]: must be a number; only dims[0] may be symbolic");
      if (!leading) elements *= view.dims[d];
      if (elements > kProgramRowBytesMax / 8)
        return invalid(where + ": a row of " + std::to_string(elements) + " elements is too long");
    }
    return check_view_bytes(where, view, elements * dtype_bytes(view.dtype));
  }

  Result<void> check_view_bytes(const Text& where, const luna_view& view, std::uint64_t row_bytes) {
    const luna_slot& slot = program_.slots[view.slot];
    const std::uint32_t rows = view.dims[0];
    if (slot.kind == LUNA_SLOT_SCRATCH) {
      if (!is_symbolic(rows) || view.rank < 2)
        return invalid(where + ": an activation needs a symbolic dims[0] and a width");
      if (view.offset % dtype_bytes(view.dtype) != 0 || view.offset > slot.bytes ||
          row_bytes > slot.bytes - view.offset)
        return invalid(where + ": bytes " + std::to_string(view.offset) + " + " +
                       std::to_string(row_bytes) + " exceed the slot's row of " +
                       std::to_string(slot.bytes));
      const std::uint64_t stride =
          view.row_stride == 0 ? row_bytes : view.row_stride * dtype_bytes(view.dtype);
      if (stride != slot.bytes)
        return invalid(where + ": row stride of " + std::to_string(stride) +
                       " bytes: the slot's rows have " + std::to_string(slot.bytes));
      std::uint32_t& slot_rows = slot_rows_[view.slot];
      if (slot_rows != 0 && slot_rows != rows)
        return invalid(where + ": its slot is used with both row counts");
      slot_rows = rows;
      return {};
    }
    if (view.row_stride != 0 || view.offset != 0)
      return invalid(where + ": only activations have an offset and a row stride");
    const bool bound = slot.kind == LUNA_SLOT_LOGITS || slot.kind == LUNA_SLOT_CANDIDATES;
    if (is_symbolic(rows) != bound)
      return invalid(where + ": dims[0] is symbolic for activations and outputs, for no other");
    if (slot.kind == LUNA_SLOT_CONSTANT && row_bytes > slot.bytes / rows)
      return invalid(where + ": more elements than the constant's " + std::to_string(slot.bytes) +
                     " bytes hold");
    return {};
  }

  Result<void> check_op(std::uint32_t i) {
    const luna_op& op = program_.ops[i];
    const Text where = "op " + std::to_string(i) + " (" + Text(op_name(op.op)) + ")";
    if (op.op == 0 || op.op >= LUNA_N_OPS)
      return invalid(where + ": op number " + std::to_string(op.op) + " is unknown");
    const std::uint64_t n_args = std::uint64_t{op.n_in} + op.n_out;
    if (op.first_arg > program_.n_args || n_args > program_.n_args - op.first_arg)
      return invalid(where + ": arguments beyond the list of " + std::to_string(program_.n_args));
    if (op.first_attr > program_.n_attrs || op.n_attrs > program_.n_attrs - op.first_attr)
      return invalid(where + ": attributes beyond the list of " + std::to_string(program_.n_attrs));
    for (std::uint64_t a = 0; a < n_args; ++a)
      if (program_.args[op.first_arg + a] >= program_.n_views)
        return invalid(where + ": argument " + std::to_string(a) + " is view " +
                       std::to_string(program_.args[op.first_arg + a]) + " of " +
                       std::to_string(program_.n_views));
    const OpRule& rule = kOpRules[op.op];
    if (!rule.defined) return {};  // nobody can run it; supports() says so
    if (op.n_attrs != count_words(rule.attrs))
      return invalid(where + ": " + std::to_string(op.n_attrs) + " attributes, must be " +
                     std::to_string(count_words(rule.attrs)));
    for (const char need : rule.needs)
      if (!has_slot(need == 'K' ? LUNA_SLOT_KV : LUNA_SLOT_COMM))
        return invalid(where + ": the program has no " + (need == 'K' ? "KV" : "COMM") + " slot");
    letters_ = {};
    LUNA_TRY(check_args(where, op, rule));
    LUNA_TRY(check_overlap(where, op, rule));
    LUNA_TRY(AttrChecker(where, program_, op).run());
    const OpReader reader(program_, op);
    for (std::uint32_t o = 0; o < op.n_out; ++o)
      written_[reader.out(o).slot] = true;
    return {};
  }

  Result<void> check_args(const Text& where, const luna_op& op, const OpRule& rule) {
    const OpReader reader(program_, op);
    std::string_view words = rule.in;
    std::uint32_t n = 0;
    while (!words.empty()) {
      const std::string_view word = take_word(&words);
      const bool optional = word.front() == '?';
      if (n == op.n_in && optional) continue;
      if (n == op.n_in) return invalid(where + ": too few inputs");
      LUNA_TRY(check_arg(
          where + " input " + std::to_string(n), reader.in(n), optional ? word.substr(1) : word));
      const luna_view& view = reader.in(n++);
      if (program_.slots[view.slot].kind == LUNA_SLOT_SCRATCH && !written_[view.slot])
        return invalid(where + " input " + std::to_string(n - 1) + ": read before it is written");
    }
    if (n != op.n_in) return invalid(where + ": too many inputs");
    words = rule.out;
    if (op.n_out != count_words(words))
      return invalid(where + ": " + std::to_string(op.n_out) + " outputs, must be " +
                     std::to_string(count_words(words)));
    for (std::uint32_t o = 0; o < op.n_out; ++o)
      LUNA_TRY(check_arg(where + " output " + std::to_string(o), reader.out(o), take_word(&words)));
    return {};
  }

  Result<void> check_arg(const Text& where, const luna_view& view, std::string_view word) {
    LUNA_TRY(check_place(where, view, word.front()));
    word.remove_prefix(1);
    if (view.rank != word.size())
      return invalid(where + ": rank " + std::to_string(view.rank) + ", must be " +
                     std::to_string(word.size()));
    for (std::size_t d = 0; d < word.size(); ++d) {
      const std::uint32_t dim = view.dims[d];
      const char letter = word[d];
      if ((letter == 'S' && dim != LUNA_DIM_ROWS) || (letter == 'O' && dim != LUNA_DIM_OUT_ROWS))
        return invalid(where + ": its rows must be " +
                       (letter == 'S' ? "the step's rows" : "the step's out rows"));
      if (letter == 'S' || letter == 'O') continue;
      std::uint32_t& bound = letters_[static_cast<std::size_t>(letter - 'A')];
      if (bound == 0) bound = dim;
      if (bound != dim)
        return invalid(where + ": dims[" + std::to_string(d) + "] = " + dim_text(dim) +
                       ", the op's other arguments say " + dim_text(bound));
    }
    return {};
  }

  Result<void> check_place(const Text& where, const luna_view& view, char place) const {
    struct Place {
      char letter;
      std::uint32_t kind;
      std::uint32_t dtype;
    };
    static constexpr Place kPlaces[] = {{'a', LUNA_SLOT_SCRATCH, LUNA_DTYPE_F32},
                                        {'x', LUNA_SLOT_SCRATCH, LUNA_DTYPE_F32},
                                        {'w', LUNA_SLOT_WEIGHT, LUNA_DTYPE_F32},
                                        {'c', LUNA_SLOT_CONSTANT, LUNA_DTYPE_F64},
                                        {'l', LUNA_SLOT_LOGITS, LUNA_DTYPE_F32},
                                        {'k', LUNA_SLOT_CANDIDATES, LUNA_DTYPE_U32}};
    for (const Place& p : kPlaces) {
      if (p.letter != place) continue;
      if (program_.slots[view.slot].kind != p.kind)
        return invalid(where + ": lies in a slot of kind " +
                       std::to_string(program_.slots[view.slot].kind) + ", must be " +
                       std::to_string(p.kind));
      const bool other_float =
          place == 'x' && (view.dtype == LUNA_DTYPE_F16 || view.dtype == LUNA_DTYPE_BF16);
      if (view.dtype != p.dtype && !other_float)
        return invalid(where + ": dtype " + std::to_string(view.dtype) + ", must be " +
                       std::to_string(p.dtype));
    }
    return {};
  }

  /// Outputs do not lie over inputs, except exactly over one where the op works in place.
  Result<void> check_overlap(const Text& where, const luna_op& op, const OpRule& rule) const {
    const OpReader reader(program_, op);
    for (std::uint32_t o = 0; o < op.n_out; ++o) {
      const luna_view& out = reader.out(o);
      for (std::uint32_t i = 0; i < op.n_in; ++i) {
        const luna_view& in = reader.in(i);
        if (in.slot != out.slot) continue;
        const std::uint64_t in_end = in.offset + in.dims[1] * dtype_bytes(in.dtype);
        const std::uint64_t out_end = out.offset + out.dims[1] * dtype_bytes(out.dtype);
        const bool same = in.offset == out.offset && in_end == out_end;
        if (in.offset < out_end && out.offset < in_end && !(same && rule.in_place))
          return invalid(where + ": its output overlaps input " + std::to_string(i));
      }
    }
    return {};
  }

  const luna_program& program_;              // outlives the verifier
  std::vector<std::uint32_t> slot_rows_;     // the symbolic row count of each scratch slot
  std::vector<bool> written_;                // scratch slots some earlier op wrote
  std::uint32_t bound_kinds_ = 0;            // bit per kind of slot that may occur once
  std::array<std::uint32_t, 26> letters_{};  // sizes the current op's letters stand for
};

/// Checks every index, count, type, shape and attribute of a program, and its hash. [any]
///
/// Errors  invalid_argument, naming the op (view, slot) and what it should be
/// Cost    O(ops + views + slots + bytes of constants), allocates
inline Result<void> verify(const luna_program& program) {
  return ProgramVerifier(program).run();
}

}  // namespace luna
