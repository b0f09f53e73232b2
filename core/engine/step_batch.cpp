#include "core/engine/step_batch.hpp"

#include "core/base/assert.hpp"
#include "core/base/units.hpp"

#include <algorithm>

namespace luna::engine {

StepBatch::StepBatch(const model::StepLimits& limits, std::uint32_t kv_block_tokens)
    : kv_block_tokens_(kv_block_tokens),
      block_table_stride_(div_ceil(limits.n_positions_max, kv_block_tokens)),
      block_tables_(std::size_t{limits.n_seqs_max} * block_table_stride_) {
  token_ids_.reserve(limits.n_rows_max);
  positions_.reserve(limits.n_rows_max);
  seq_first_row_.reserve(limits.n_seqs_max + 1);
  kv_copies_.reserve(limits.n_seqs_max);
  seq_prunes_.reserve(limits.n_seqs_max);
  out_rows_.reserve(limits.n_out_rows_max);
  out_flags_.reserve(limits.n_out_rows_max);
  entries_.reserve(limits.n_seqs_max);
  clear();
}

void StepBatch::clear() {
  token_ids_.clear();
  positions_.clear();
  seq_first_row_.assign(1, 0);
  kv_copies_.clear();
  seq_prunes_.clear();
  out_rows_.clear();
  out_flags_.clear();
  entries_.clear();
  load_ = {};
}

void StepBatch::grow(Sequence& sequence, std::uint32_t n_tokens, KvPool& pool) {
  const std::uint32_t tail = sequence.next_slot() / kv_block_tokens_;
  if (tail < sequence.n_blocks && pool.n_references(sequence.blocks[tail]) > 1) {
    const std::optional<std::uint32_t> own = pool.allocate();
    LUNA_VERIFY(own.has_value());
    kv_copies_.push_back({sequence.blocks[tail], *own});
    pool.release(sequence.blocks[tail]);
    sequence.blocks[tail] = *own;
  }
  const std::uint32_t n_blocks = div_ceil(sequence.next_slot() + n_tokens, kv_block_tokens_);
  while (sequence.n_blocks < n_blocks) {
    const std::optional<std::uint32_t> block = pool.allocate();
    LUNA_VERIFY(block.has_value());
    sequence.blocks[sequence.n_blocks++] = *block;
  }
}

const StepBatch::Entry& StepBatch::add(const PlannedRun& run,
                                       Sequence& sequence,
                                       KvPool& pool,
                                       std::span<const pipeline::TokenId> draft) {
  grow(sequence, run.n_tokens, pool);
  std::copy_n(
      sequence.blocks,
      sequence.n_blocks,
      block_tables_.begin() + static_cast<std::ptrdiff_t>(entries_.size() * block_table_stride_));
  const std::uint32_t n_own = std::min(run.n_tokens, sequence.n_tokens() - sequence.n_computed);
  Entry entry{.slot = run.slot,
              .n_tokens = run.n_tokens,
              .n_draft = run.n_tokens - n_own,
              .prunes = false,
              .out_row = std::nullopt};
  LUNA_VERIFY(entry.n_draft <= draft.size());
  for (std::uint32_t i = 0; i < run.n_tokens; ++i) {
    token_ids_.push_back(i < n_own ? sequence.token(sequence.n_computed + i) : draft[i - n_own]);
    positions_.push_back(sequence.n_computed + i);
  }
  const auto n_rows = static_cast<std::uint32_t>(token_ids_.size());
  const std::uint64_t n = run.n_tokens;
  load_.n_rows = n_rows;
  load_.n_kv_tokens += n * sequence.next_slot() + n * (n + 1) / 2;
  seq_first_row_.push_back(n_rows);
  seq_prunes_.push_back(prune_of(sequence, run.n_tokens));
  entry.prunes = seq_prunes_.back().n_keep != 0;
  if (sequence.n_computed + n_own == sequence.n_tokens())
    entry.out_row = static_cast<std::uint32_t>(out_rows_.size());
  for (std::uint32_t left = entry.n_out_rows(); left > 0; --left) {
    out_rows_.push_back(n_rows - left);
    out_flags_.push_back(0);
  }
  return entries_.emplace_back(entry);
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

luna_step StepBatch::step() const {
  luna_step step{};
  step.struct_size = sizeof(step);
  step.n_rows = static_cast<std::uint32_t>(token_ids_.size());
  step.n_seqs = static_cast<std::uint32_t>(entries_.size());
  step.n_out_rows = static_cast<std::uint32_t>(out_rows_.size());
  step.token_ids = token_ids_.data();
  step.positions = positions_.data();
  step.seq_first_row = seq_first_row_.data();
  step.block_tables = block_tables_.data();
  step.block_table_stride = block_table_stride_;
  step.n_kv_copies = static_cast<std::uint32_t>(kv_copies_.size());
  step.kv_copies = kv_copies_.data();
  step.seq_prunes = seq_prunes_.data();
  step.out_rows = out_rows_.data();
  step.out_flags = out_flags_.data();
  return step;
}

}  // namespace luna::engine
