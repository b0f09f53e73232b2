// A step plan as the flat arrays that backends read.
#pragma once

#include "core/engine/sequence.hpp"
#include "core/engine/step_cost.hpp"
#include "core/engine/step_plan.hpp"
#include "core/model/compiled_model.hpp"

#include <luna/abi/backend.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace luna::engine {

/// The arrays of one step, sized once for the largest. Nothing changes between the call of fill()
/// and the end of the step on every device. [engine], owned by the engine.
class StepBatch {
 public:
  /// A sequence of the step, in the order of its rows.
  struct Entry {
    std::uint32_t slot;
    std::uint32_t n_tokens;
    std::uint32_t n_draft;  ///< of these, the last, which may turn out wrong
    bool prunes;            ///< the step ends with its prompt's KV pruned
    /// Where the logits of its last token will be, if it reaches it; behind them those of its
    /// draft.
    std::optional<std::uint32_t> out_row;

    [[nodiscard]] std::uint32_t n_out_rows() const { return out_row ? 1 + n_draft : 0; }
  };

  StepBatch(const model::StepLimits& limits, std::uint32_t kv_block_tokens);

  void clear();
  /// Adds a sequence's next tokens: takes the KV blocks they need, copies a shared last block, lays
  /// out the rows. The gate has seen to it that there is room for all of it. Whoever adds says what
  /// its output rows must have: set_out_flags().
  ///
  /// draft    tokens that follow the sequence's own; the run says how many are taken
  /// Returns  the entry; valid until the next is added
  const Entry& add(const PlannedRun& run,
                   Sequence& sequence,
                   KvPool& pool,
                   std::span<const pipeline::TokenId> draft);
  /// flags  LUNA_OUT_*
  void set_out_flags(std::uint32_t out_row, std::uint32_t flags) { out_flags_[out_row] = flags; }
  /// The step for a backend; binds, done and done_context are the caller's.
  [[nodiscard]] luna_step step() const;

  [[nodiscard]] std::uint32_t out_flags(std::uint32_t out_row) const { return out_flags_[out_row]; }
  [[nodiscard]] std::span<const Entry> entries() const { return entries_; }
  /// What the step computes, for the fit of its cost.
  [[nodiscard]] const StepLoad& load() const { return load_; }
  [[nodiscard]] std::size_t n_out_rows() const { return out_rows_.size(); }
  [[nodiscard]] bool is_empty() const { return entries_.empty(); }

 private:
  void grow(Sequence& sequence, std::uint32_t n_tokens, KvPool& pool);
  [[nodiscard]] static luna_seq_prune prune_of(const Sequence& sequence, std::uint32_t n_tokens);

  const std::uint32_t kv_block_tokens_;
  const std::uint32_t block_table_stride_;
  std::vector<std::uint32_t> token_ids_;      // [n_rows_max]
  std::vector<std::uint32_t> positions_;      // [n_rows_max]
  std::vector<std::uint32_t> seq_first_row_;  // [n_seqs_max + 1]
  std::vector<std::uint32_t> block_tables_;   // [n_seqs_max, block_table_stride]
  std::vector<luna_seq_prune> seq_prunes_;    // [n_seqs_max]
  std::vector<luna_kv_copy> kv_copies_;       // [n_seqs_max]
  std::vector<std::uint32_t> out_rows_;       // [n_out_rows_max]
  std::vector<std::uint32_t> out_flags_;      // [n_out_rows_max]
  std::vector<Entry> entries_;                // [n_seqs_max]
  StepLoad load_;
};

}  // namespace luna::engine
