// What an op program computes, in double precision, with a bound on how far a device may be from
// it.
//
// Values follow the formulas of abi/op_program.h. Bounds are running error analysis: each number
// carries its error, each op adds the roundings that its formats and the length of its sums allow
// and passes on what it was given. What formats are allowed where is in docs/plugin-rules.md.
#pragma once

#include "core/check/drawn_weight.hpp"
#include "core/check/number_bounds.hpp"

#include <luna/abi/backend.h>
#include <luna/op_rules.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace luna::check {

/// Numbers of a tensor: a row of a view. A view of the oracle's memory.
using NumberRow = std::span<Bounded>;

/// Activations of one slot. A value.
struct NumberTable {
  std::uint32_t n_rows = 0;
  std::uint32_t width = 0;
  std::vector<Bounded> numbers;  ///< [n_rows, width]
};

/// What the other rank of a communicator of two says and hears. Rank 0 is the program under test.
struct PeerScript {
  /// What the other rank sends: number i of message m with a tag.
  [[nodiscard]] static float number(std::uint32_t tag, std::uint64_t m, std::uint64_t i);
  /// What it adds in an all-reduce. The same each time: a device may make barriers of them.
  [[nodiscard]] static float addend(std::uint64_t i) { return number(0xFFFF, 0, i); }
};

/// The KV cache as the oracle holds it: numbers as the type of the KV may round them.
class KvNumbers {
 public:
  KvNumbers(const luna_kv_layout& layout, std::uint32_t n_blocks);

  enum class Part : std::uint8_t { keys, values };
  struct Place {
    std::uint32_t layer;
    Part part;
    std::uint32_t head;
    std::uint32_t block;
    std::uint32_t token;  ///< of the block
  };
  [[nodiscard]] NumberRow head_of(const Place& place);
  /// What observing has added up.
  [[nodiscard]] Bounded& mass_of(const Place& place);
  void write(const Place& place, std::span<const Bounded> numbers);
  void copy_block(std::uint32_t from, std::uint32_t to);
  [[nodiscard]] const luna_kv_layout& layout() const { return layout_; }

 private:
  [[nodiscard]] std::size_t token_at(const Place& place) const;
  luna_kv_layout layout_;
  std::vector<Bounded> numbers_;  // [n_blocks, n_layers, 2, n_kv_heads, block_tokens, head_dim]
  std::vector<Bounded> masses_;   // [n_blocks, n_layers, 2, n_kv_heads, block_tokens]
};

/// Runs steps of one program one after the other. Used on one thread; program and weights outlive
/// it.
class OpOracle {
 public:
  OpOracle(const luna_program& program,
           std::span<const DrawnWeight> weights,
           std::uint32_t n_kv_blocks);

  void run(const luna_step& step);

  /// [n_out_rows, vocab] of the last step; no rows: the program has no op `logits`.
  [[nodiscard]] const NumberTable& logits() const { return logits_; }
  /// What the last step sent to the other rank, by tag, in order.
  [[nodiscard]] const std::map<std::uint32_t, std::deque<std::vector<Bounded>>>& sent() const {
    return sent_;
  }
  /// Whether what a step did hung on numbers that are closer to each other than their errors: which
  /// slots pruning keeps, which experts a row goes to. Then it says nothing.
  [[nodiscard]] bool is_undecided() const { return is_undecided_; }

 private:
  friend class AttendOracle;
  struct Op;

  [[nodiscard]] NumberRow row(const luna_view& view, std::uint32_t row);
  [[nodiscard]] std::uint32_t n_rows_of(const luna_view& view) const;
  [[nodiscard]] const DrawnWeight& weight(const luna_view& view) const;
  void run_op(const OpReader& op);
  void run_row_op(const OpReader& op);
  void embed(const OpReader& op);
  void linear(const OpReader& op);
  void rope(const OpReader& op);
  void norm(const OpReader& op);
  void convert(const OpReader& op);
  void run_comm(const OpReader& op);
  void all_gather(const OpReader& op);
  [[nodiscard]] std::vector<Bounded> received(std::uint32_t tag, std::uint64_t n);

  const luna_program& program_;
  std::span<const DrawnWeight> weights_;
  const luna_step* step_ = nullptr;  // while it runs
  std::vector<NumberTable> slots_;
  KvNumbers kv_;
  NumberTable logits_;
  std::map<std::uint32_t, std::deque<std::vector<Bounded>>> sent_;
  std::map<std::uint32_t, std::uint64_t> n_received_;
  bool is_undecided_ = false;
};

}  // namespace luna::check
