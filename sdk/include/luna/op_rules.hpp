// The rules of every op in one table, and verify(), which holds a program against them. What a
// backend compiles has passed verify(): it may then trust every index, shape and attribute.
#pragma once

#include <luna/abi/op_program.h>
#include <luna/result.hpp>

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna {

/// What one op takes and gives. `in` and `out` list the arguments, one word each: what lies behind
/// it, then a letter a dimension.
///   a  activation, F32 scratch     x  scratch of any float type     w  weight
///   c  constant, F64               l  the LOGITS slot, F32          k  the CANDIDATES slot, U32
///   ?  before the word: the argument may be absent
///   S  LUNA_DIM_ROWS   O  LUNA_DIM_OUT_ROWS   R  either, the same throughout the op
///   other letters stand for one number each throughout the op
/// `attrs` lists the attributes by index; a name that ends in ':' is an F32, all others are U32.
struct OpRule {
  std::string_view name;
  std::string_view in;
  std::string_view out;
  std::string_view attrs;
  std::string_view needs;  ///< slots the op uses besides its arguments: 'K' KV, 'C' COMM
  bool in_place = false;   ///< the output may be one of the inputs
  bool defined = true;     ///< false: the op has a number, its arguments are not fixed yet
};

inline constexpr std::array<OpRule, LUNA_N_OPS> kOpRules = {{
    {.name = "none", .in = "", .out = "", .attrs = "", .needs = "", .defined = false},
    {.name = "embed", .in = "wVD", .out = "aSD", .attrs = "", .needs = ""},
    {"rms_norm", "aRD wD", "aRD", "eps:", "", true},
    {"layer_norm", "aRD wD wD", "aRD", "eps:", "", true},
    {"linear", "aRK wNK ?wN", "aRN", "segment activation_bits activation_group", ""},
    {"rope", "aSD cF", "aSD", "n_heads head_dim n_rot style magnitude:", "", true},
    {"kv_write", "aSD aSD", "", "layer", "K"},
    {"attend", "aSD", "aSD", "layer n_heads scale: window softcap:", "K"},
    {.name = "none", .in = "", .out = "", .attrs = "", .needs = "", .defined = false},
    {.name = "none", .in = "", .out = "", .attrs = "", .needs = "", .defined = false},
    {"act_mul", "aRD aRD", "aRD", "kind", "", true},
    {"add", "aRD aRD", "aRD", "", "", true},
    {"scale", "aRD", "aRD", "factor:", "", true},
    {"softcap", "aRD", "aRD", "cap:", "", true},
    {"gather_rows", "aSD", "aOD", "", ""},
    {"logits", "aOV", "lOV", "", ""},
    {"top_candidates", "aOV", "kOP", "k", ""},
    {"moe_route", "aSE", "aSE", "k normalizes", ""},
    {"grouped_linear", "aSD aSE wWK", "aSF", "segment activation_bits activation_group", ""},
    {"copy", "xRD", "xRD", "", ""},
    {"convert", "xRD", "xRD", "", ""},
    {"kv_copy", "", "", "", "K"},
    {"kv_prune", "aSD", "", "layer n_heads scale: softcap: group_first group_last", "K"},
    {"send", "aRD", "", "peer tag", "C"},
    {"recv", "", "aRD", "peer tag", "C"},
    {"all_reduce", "aRD", "aRD", "", "C"},
    {"barrier", "", "", "", "C"},
    {"all_gather", "aRE", "aRD", "unit rank n_ranks tag", "C"},
    {"head_norm", "aSD wF", "aSD", "eps:", "", true},
    {"moe_sum", "aSD aSE", "aSF", "", ""},
}};

/// The next blank-separated word of a rule's list, removed from it.
constexpr std::string_view take_word(std::string_view* list) {
  const std::size_t end = list->find(' ');
  const std::string_view word = list->substr(0, end);
  list->remove_prefix(end == std::string_view::npos ? list->size() : end + 1);
  return word;
}
constexpr std::uint32_t count_words(std::string_view list) {
  std::uint32_t n = 0;
  while (!list.empty()) {
    take_word(&list);
    ++n;
  }
  return n;
}
constexpr std::string_view op_name(std::uint32_t op) {
  return op < kOpRules.size() ? kOpRules[op].name : std::string_view("unknown");
}
/// Bytes of one element; 0 for types that no tensor of a program has.
constexpr std::uint64_t dtype_bytes(std::uint32_t dtype) {
  switch (dtype) {
    case LUNA_DTYPE_F64:
      return 8;
    case LUNA_DTYPE_F32:
    case LUNA_DTYPE_I32:
    case LUNA_DTYPE_U32:
      return 4;
    case LUNA_DTYPE_F16:
    case LUNA_DTYPE_BF16:
      return 2;
    case LUNA_DTYPE_I8:
    case LUNA_DTYPE_U8:
    case LUNA_DTYPE_F8_E4M3:
    case LUNA_DTYPE_F8_E5M2:
      return 1;
    default:
      return 0;
  }
}
constexpr bool is_symbolic(std::uint32_t dim) {
  return dim == LUNA_DIM_ROWS || dim == LUNA_DIM_OUT_ROWS;
}

/// A stable 64-bit FNV-1a of a program: equal programs have equal hashes on every machine of one
/// byte order. Constants count with their bytes, not their addresses.
class ProgramHash {
 public:
  void add(const void* bytes, std::size_t n) {
    const auto* p = static_cast<const unsigned char*>(bytes);
    for (std::size_t i = 0; i < n; ++i)
      value_ = (value_ ^ p[i]) * 0x100000001B3U;
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325U;
};

inline std::uint64_t hash_program(const luna_program& p) {
  ProgramHash hash;
  const std::uint32_t numbers[] = {p.numerics,
                                   p.n_ops,
                                   p.n_views,
                                   p.n_slots,
                                   p.n_args,
                                   p.n_attrs,
                                   p.n_rows_max,
                                   p.n_seqs_max,
                                   p.n_out_rows_max,
                                   p.n_blocks_per_seq_max,
                                   p.n_positions_max};
  hash.add(numbers, sizeof(numbers));
  hash.add(p.ops, p.n_ops * sizeof(luna_op));
  hash.add(p.views, p.n_views * sizeof(luna_view));
  for (std::uint32_t i = 0; i < p.n_slots; ++i) {
    const luna_slot& slot = p.slots[i];
    hash.add(&slot.kind, sizeof(slot.kind));
    hash.add(&slot.index, sizeof(slot.index));
    hash.add(&slot.bytes, sizeof(slot.bytes));
    if (slot.kind == LUNA_SLOT_CONSTANT && slot.data != nullptr) hash.add(slot.data, slot.bytes);
  }
  hash.add(p.args, p.n_args * sizeof(std::uint32_t));
  hash.add(p.attrs, p.n_attrs * sizeof(std::uint32_t));
  hash.add(&p.kv, sizeof(p.kv));
  return hash.value();
}

/// Reads a verified program: arguments and attributes of an op by position.
class OpReader {
 public:
  OpReader(const luna_program& program, const luna_op& op) : program_(&program), op_(&op) {}
  [[nodiscard]] const luna_op& op() const { return *op_; }
  [[nodiscard]] std::uint32_t in_id(std::uint32_t i) const {
    return program_->args[op_->first_arg + i];
  }
  [[nodiscard]] std::uint32_t out_id(std::uint32_t i) const { return in_id(op_->n_in + i); }
  [[nodiscard]] const luna_view& in(std::uint32_t i) const { return program_->views[in_id(i)]; }
  [[nodiscard]] const luna_view& out(std::uint32_t i) const { return program_->views[out_id(i)]; }
  [[nodiscard]] const luna_slot& slot(const luna_view& view) const {
    return program_->slots[view.slot];
  }
  [[nodiscard]] std::uint32_t attr(std::uint32_t i) const {
    return program_->attrs[op_->first_attr + i];
  }
  [[nodiscard]] float attr_f32(std::uint32_t i) const { return std::bit_cast<float>(attr(i)); }

 private:
  const luna_program* program_;
  const luna_op* op_;
};

/// `n` and `n_out` for the symbolic counts of rows.
inline std::string dim_text(std::uint32_t dim) {
  if (dim == LUNA_DIM_ROWS) return "n";
  if (dim == LUNA_DIM_OUT_ROWS) return "n_out";
  return std::to_string(dim);
}

}  // namespace luna
