#include "core/engine/plan_books.hpp"

#include "core/base/units.hpp"

#include <algorithm>

namespace luna::engine {

void PlanBooks::begin() {
  n_tokens = 0;
  n_runs = 0;
  n_left_ = pool_.n_available();
  // Most plans change none: a pool of a million blocks costs them nothing.
  if (!has_changes_) return;
  std::fill(changes_.begin(), changes_.end(), 0);
  has_changes_ = false;
}

// As the plan leaves them, so far.
std::int64_t PlanBooks::references(std::uint32_t block) const {
  return std::int64_t{pool_.n_references(block)} + changes_[block];
}

void PlanBooks::change(std::uint32_t block, std::int32_t by) {
  changes_[block] += by;
  has_changes_ = true;
}

void PlanBooks::withdraw(const Sequence& sequence, const Group* own) {
  for (std::uint32_t b = 0; b < sequence.n_blocks; ++b) {
    if (sequence.holder_of(b) != own) continue;
    change(sequence.blocks[b], -1);
    if (references(sequence.blocks[b]) == 0) ++n_left_;
  }
}

void PlanBooks::lend(const PrefixHit& hit) {
  std::uint32_t block = hit.last;
  for (std::uint32_t b = hit.n_blocks; b > 0; --b) {
    if (references(block) == 0) --n_left_;
    change(block, 1);
    block = pool_.tree()->parent(block).value_or(block);
  }
}

bool PlanBooks::take(const Sequence& sequence,
                     std::uint32_t n_found,
                     std::uint32_t n_run_tokens,
                     std::uint32_t n_reserve) {
  const bool is_start = sequence.phase == Phase::waiting;
  const std::uint32_t first_slot = is_start ? n_found * block_tokens_ : sequence.next_slot();
  const std::uint32_t n_blocks = div_ceil(first_slot + n_run_tokens, block_tokens_);
  // A draft that was rejected may have left more than the tokens need.
  const std::uint32_t n_had = sequence.n_blocks + n_found;
  std::uint32_t n_needed = n_blocks > n_had ? n_blocks - n_had : 0;
  const std::uint32_t tail = first_slot / block_tokens_;
  if (tail < sequence.n_blocks && references(sequence.blocks[tail]) > 1) {
    ++n_needed;  // copied before it is written
    change(sequence.blocks[tail], -1);
  }
  return take(n_needed, n_reserve);
}

bool PlanBooks::take(std::uint32_t n_blocks, std::uint32_t n_reserve) {
  if (n_blocks + n_reserve > n_left_) return false;
  n_left_ -= n_blocks;
  return true;
}

}  // namespace luna::engine
