#include "core/engine/step_rows.hpp"

#include "core/base/assert.hpp"
#include "core/base/units.hpp"

#include <algorithm>

namespace luna::engine {

StepRows::StepRows(const model::StepLimits& limits, std::uint32_t kv_block_tokens)
    : block_table_stride_(div_ceil(limits.n_positions_max, kv_block_tokens)),
      block_tables_(std::size_t{limits.n_seqs_max} * block_table_stride_) {
  token_ids_.reserve(limits.n_rows_max);
  positions_.reserve(limits.n_rows_max);
  seq_first_row_.reserve(std::size_t{limits.n_seqs_max} + 1);
  out_rows_.reserve(limits.n_out_rows_max);
  out_flags_.reserve(limits.n_out_rows_max);
  clear();
}

void StepRows::clear() {
  token_ids_.clear();
  positions_.clear();
  seq_first_row_.assign(1, 0);
  out_rows_.clear();
  out_flags_.clear();
  load_ = {};
}

void StepRows::close_sequence(const Share& share) {
  LUNA_ASSERT(share.n_tokens > 0);
  LUNA_ASSERT(share.blocks.size() <= block_table_stride_);
  const std::size_t first = std::size_t{n_seqs()} * block_table_stride_;
  std::copy(share.blocks.begin(),
            share.blocks.end(),
            block_tables_.begin() + static_cast<std::ptrdiff_t>(first));
  seq_first_row_.push_back(n_rows());
  const std::uint64_t n = share.n_tokens;
  load_.n_rows = n_rows();
  load_.n_kv_tokens += n * share.first_slot + n * (n + 1) / 2;
}

void StepRows::add_output(std::uint32_t n_behind, std::uint32_t flags) {
  LUNA_ASSERT(n_behind < n_rows());
  out_rows_.push_back(n_rows() - 1 - n_behind);
  out_flags_.push_back(flags);
}

void StepRows::fill(luna_step& step) const {
  step.n_rows = n_rows();
  step.n_seqs = n_seqs();
  step.n_out_rows = n_out_rows();
  step.token_ids = token_ids_.data();
  step.positions = positions_.data();
  step.seq_first_row = seq_first_row_.data();
  step.block_tables = block_tables_.data();
  step.block_table_stride = block_table_stride_;
  step.out_rows = out_rows_.data();
  step.out_flags = out_flags_.data();
}

}  // namespace luna::engine
