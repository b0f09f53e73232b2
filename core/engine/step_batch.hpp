// A step plan as the flat arrays that backends read.
#pragma once

#include "core/engine/sequence.hpp"
#include "core/engine/step_plan.hpp"
#include "core/engine/step_rows.hpp"
#include "core/model/compiled_model.hpp"

#include <luna/abi/backend.h>

#include <algorithm>
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

  /// has_slices  whether sequences may lie in several groups
  StepBatch(const model::StepLimits& limits,
            std::uint32_t kv_block_tokens,
            bool has_slices = false);

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
  void set_out_flags(std::uint32_t out_row, std::uint32_t flags) {
    rows_.set_out_flags(out_row, flags);
  }
  /// The step for a backend; binds, done and done_context are the caller's. Once a step: devices
  /// write through it.
  [[nodiscard]] luna_step step();

  [[nodiscard]] std::uint32_t out_flags(std::uint32_t out_row) const {
    return rows_.out_flags(out_row);
  }
  [[nodiscard]] std::span<const Entry> entries() const { return entries_; }
  /// Part of an entry's sequence that lay elsewhere, and what the step's last row of it paid it.
  struct SliceMass {
    std::uint32_t first_block;
    std::uint32_t n_blocks;
    double attention;  ///< heads of all layers that looked nowhere else
  };
  /// Calls body(SliceMass) for the slices of an entry. The step has ended well.
  template <typename Body>
  void for_slice_masses(const Entry& entry, Body&& body) const {
    const auto seq = static_cast<std::uint32_t>(&entry - entries_.data());
    const std::uint32_t n_partition = LUNA_PARTITION_TOKENS / kv_block_tokens_;
    const auto first = std::ranges::lower_bound(slices_, seq, {}, &luna_slice::seq);
    for (auto slice = first; slice != slices_.end() && slice->seq == seq; ++slice)
      body(SliceMass{slice->first_partition * n_partition,
                     slice->n_partitions * n_partition,
                     static_cast<double>(masses_[static_cast<std::size_t>(
                         slice - slices_.begin())]) *
                         0x1p-32});
  }
  /// What the step computes, for the fit of its cost.
  [[nodiscard]] const StepLoad& load() const { return rows_.load(); }
  [[nodiscard]] std::size_t n_out_rows() const { return rows_.n_out_rows(); }
  [[nodiscard]] bool is_empty() const { return entries_.empty(); }

 private:
  void grow(Sequence& sequence, std::uint32_t n_tokens, KvPool& pool);
  void add_slices(const Sequence& sequence);
  [[nodiscard]] static luna_seq_prune prune_of(const Sequence& sequence, std::uint32_t n_tokens);

  const std::uint32_t kv_block_tokens_;
  StepRows rows_;
  std::vector<luna_seq_prune> seq_prunes_;  // [n_seqs_max]
  std::vector<luna_kv_copy> kv_copies_;     // [n_seqs_max]
  std::vector<luna_slice> slices_;          // [n_seqs_max * partitions of the longest], or [0]
  std::vector<std::uint64_t> masses_;       // by slice; written by the devices
  std::vector<Entry> entries_;              // [n_seqs_max]
};

}  // namespace luna::engine
