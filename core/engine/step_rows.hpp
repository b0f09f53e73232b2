// The rows of a step and of which sequences they are, as the flat arrays that backends read.
#pragma once

#include "core/engine/step_cost.hpp"
#include "core/model/compiled_model.hpp"
#include "core/pipeline/request.hpp"

#include <luna/abi/backend.h>

#include <cstdint>
#include <span>
#include <vector>

namespace luna::engine {

/// Arrays sized once for the largest step; between fill() and the end of the step nothing changes.
/// [engine], owned by what runs steps of a model: StepBatch, DraftModel.
class StepRows {
 public:
  StepRows(const model::StepLimits& limits, std::uint32_t kv_block_tokens);

  void clear();

  /// What a step computes of a sequence.
  struct Share {
    std::span<const std::uint32_t> blocks;  ///< its block table
    std::uint32_t first_position;
    std::uint32_t first_slot;  ///< where the KV of the first of its rows lies
    std::uint32_t n_tokens;    ///< at least one
  };
  /// Adds a sequence's rows. The caller has seen to it that there is room.
  ///
  /// token_of  the token of row i of the share, i in 0..n_tokens - 1
  template <typename TokenOf>
  void add(const Share& share, const TokenOf& token_of) {
    for (std::uint32_t i = 0; i < share.n_tokens; ++i) {
      token_ids_.push_back(token_of(i));
      positions_.push_back(share.first_position + i);
    }
    close_sequence(share);
  }
  /// Blocks [first, ..) of the table of the sequence that was added last; valid until clear().
  [[nodiscard]] const std::uint32_t* last_blocks(std::uint32_t first) const {
    return block_tables_.data() + std::size_t{n_seqs() - 1} * block_table_stride_ + first;
  }
  /// Asks for output of one of the last sequence's rows; `n_behind` rows follow it there.
  void add_output(std::uint32_t n_behind, std::uint32_t flags);
  /// flags  LUNA_OUT_*
  void set_out_flags(std::uint32_t out_row, std::uint32_t flags) { out_flags_[out_row] = flags; }
  /// Points a step at the arrays; what else it holds stays.
  void fill(luna_step& step) const;

  [[nodiscard]] std::uint32_t n_out_rows() const {
    return static_cast<std::uint32_t>(out_rows_.size());
  }
  [[nodiscard]] std::uint32_t out_flags(std::uint32_t out_row) const { return out_flags_[out_row]; }
  /// What the step computes, for the fit of its cost.
  [[nodiscard]] const StepLoad& load() const { return load_; }

 private:
  void close_sequence(const Share& share);
  [[nodiscard]] std::uint32_t n_rows() const {
    return static_cast<std::uint32_t>(token_ids_.size());
  }
  [[nodiscard]] std::uint32_t n_seqs() const {
    return static_cast<std::uint32_t>(seq_first_row_.size() - 1);
  }

  const std::uint32_t block_table_stride_;
  std::vector<std::uint32_t> token_ids_;      // [n_rows_max]
  std::vector<std::uint32_t> positions_;      // [n_rows_max]
  std::vector<std::uint32_t> seq_first_row_;  // [n_seqs_max + 1]
  std::vector<std::uint32_t> block_tables_;   // [n_seqs_max, block_table_stride]
  std::vector<std::uint32_t> out_rows_;       // [n_out_rows_max]
  std::vector<std::uint32_t> out_flags_;      // [n_out_rows_max]
  StepLoad load_;
};

}  // namespace luna::engine
