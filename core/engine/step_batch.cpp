#include "core/engine/step_batch.hpp"

#include "core/base/assert.hpp"
#include "core/base/units.hpp"
#include "core/engine/group.hpp"

#include <algorithm>

namespace luna::engine {

StepBatch::StepBatch(const model::StepLimits& limits,
                     std::uint32_t kv_block_tokens,
                     bool has_slices)
    : kv_block_tokens_(kv_block_tokens), rows_(limits, kv_block_tokens) {
  kv_copies_.reserve(limits.n_seqs_max);
  seq_prunes_.reserve(limits.n_seqs_max);
  entries_.reserve(limits.n_seqs_max);
  if (!has_slices) return;
  const std::size_t n_slices_max =
      std::size_t{limits.n_seqs_max} * div_ceil(limits.n_positions_max, LUNA_PARTITION_TOKENS);
  slices_.reserve(n_slices_max);
  masses_.reserve(n_slices_max);
}

void StepBatch::clear() {
  rows_.clear();
  kv_copies_.clear();
  seq_prunes_.clear();
  slices_.clear();
  masses_.clear();
  entries_.clear();
}

void StepBatch::grow(Sequence& sequence, std::uint32_t n_tokens, KvPool& pool) {
  const std::uint32_t tail = sequence.next_slot() / kv_block_tokens_;
  if (tail < sequence.n_blocks && pool.n_references(sequence.blocks[tail]) > 1) {
    const std::optional<std::uint32_t> own = pool.allocate(sequence.slot);
    LUNA_VERIFY(own.has_value());
    kv_copies_.push_back({sequence.blocks[tail], *own});
    pool.release(sequence.blocks[tail], sequence.slot);
    sequence.blocks[tail] = *own;
  }
  const std::uint32_t n_blocks = div_ceil(sequence.next_slot() + n_tokens, kv_block_tokens_);
  while (sequence.n_blocks < n_blocks) {
    const std::optional<std::uint32_t> block = pool.allocate(sequence.slot);
    LUNA_VERIFY(block.has_value());
    sequence.blocks[sequence.n_blocks++] = *block;
  }
}

const StepBatch::Entry& StepBatch::add(const PlannedRun& run,
                                       Sequence& sequence,
                                       KvPool& pool,
                                       std::span<const pipeline::TokenId> draft) {
  grow(sequence, run.n_tokens, pool);
  const std::uint32_t n_own = std::min(run.n_tokens, sequence.n_tokens() - sequence.n_computed);
  Entry entry{.slot = run.slot,
              .n_tokens = run.n_tokens,
              .n_draft = run.n_tokens - n_own,
              .prunes = false,
              .out_row = std::nullopt};
  LUNA_VERIFY(entry.n_draft <= draft.size());
  rows_.add({.blocks = {sequence.blocks, sequence.n_blocks},
             .first_position = sequence.n_computed,
             .first_slot = sequence.next_slot(),
             .n_tokens = run.n_tokens},
            [&](std::uint32_t i) {
              return i < n_own ? sequence.token(sequence.n_computed + i) : draft[i - n_own];
            });
  if (sequence.n_away > 0) add_slices(sequence);
  seq_prunes_.push_back(prune_of(sequence, run.n_tokens));
  entry.prunes = seq_prunes_.back().n_keep != 0;
  if (sequence.n_computed + n_own == sequence.n_tokens()) entry.out_row = rows_.n_out_rows();
  for (std::uint32_t left = entry.n_out_rows(); left > 0; --left)
    rows_.add_output(left - 1, 0);
  return entries_.emplace_back(entry);
}

/// Neighbours in one group are one slice. Their blocks stand in the step's own block table, which
/// nothing changes before the step has ended.
void StepBatch::add_slices(const Sequence& sequence) {
  const std::uint32_t n_partition = LUNA_PARTITION_TOKENS / kv_block_tokens_;
  const auto seq = static_cast<std::uint32_t>(entries_.size());
  std::uint32_t n_left = sequence.n_away;
  const Group* last = nullptr;
  for (std::uint32_t first = 0; n_left > 0; first += n_partition) {
    const Group* const holder = sequence.holder_of(first);
    const bool goes_on = holder == last;
    last = holder;
    if (holder == sequence.group) continue;
    n_left -= n_partition;
    if (goes_on) {
      ++slices_.back().n_partitions;
    } else {
      slices_.push_back(
          {seq, holder->model.slice_place, first / n_partition, 1, rows_.last_blocks(first)});
    }
  }
}

/// The attention of the prompt's last rows says what to keep, however they are cut into steps.
luna_seq_prune StepBatch::prune_of(const Sequence& sequence, std::uint32_t n_tokens) {
  luna_seq_prune prune{};
  prune.n_pruned = sequence.n_pruned;
  if (!sequence.is_prune_due()) return prune;
  const std::uint32_t n_prompt = sequence.prefill_end();
  const std::uint32_t end = sequence.n_computed + n_tokens;
  const std::uint32_t first = n_prompt - LUNA_PRUNE_RECENT;
  if (end > first) prune.n_observed = std::min(n_tokens, end - first);
  if (end == n_prompt) prune.n_keep = n_prompt - sequence.n_prune;
  return prune;
}

luna_step StepBatch::step() {
  luna_step step{};
  step.struct_size = sizeof(step);
  rows_.fill(step);
  step.n_kv_copies = static_cast<std::uint32_t>(kv_copies_.size());
  step.kv_copies = kv_copies_.data();
  step.seq_prunes = seq_prunes_.data();
  step.n_slices = static_cast<std::uint32_t>(slices_.size());
  step.slices = slices_.data();
  masses_.assign(slices_.size(), 0);
  step.slice_masses = masses_.empty() ? nullptr : masses_.data();
  return step;
}

}  // namespace luna::engine
