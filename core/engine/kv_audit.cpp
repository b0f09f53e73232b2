#include "core/engine/kv_audit.hpp"

#include <algorithm>

namespace luna::engine {

std::string_view KvAudit::run(const KvPool& pool, const SequenceTable& sequences) {
  std::fill(counts_.begin(), counts_.end(), 0U);
  for (std::uint32_t slot = 0; slot < sequences.n_slots(); ++slot) {
    if (!sequences.is_live(slot)) continue;
    const Sequence& sequence = sequences[slot];
    for (std::uint32_t b = 0; b < sequence.n_blocks; ++b) {
      if (sequence.blocks[b] >= counts_.size())
        return "a block table names a block beyond the pool";
      ++counts_[sequence.blocks[b]];
    }
    if (sequence.phase == Phase::waiting && sequence.n_blocks != 0)
      return "a waiting sequence holds blocks";
  }
  std::uint32_t n_used = 0;
  for (std::uint32_t block = 0; block < pool.n_blocks(); ++block) {
    if (counts_[block] != pool.n_references(block))
      return "a block's references are not those of the block tables";
    if (counts_[block] > 0) ++n_used;
  }
  for (const std::uint32_t block : pool.free_blocks()) {
    if (counts_[block] != 0) return "a block is free twice, or free and in use";
    counts_[block] = 1;
  }
  if (pool.n_free() + n_used != pool.n_blocks()) return "free + used is not the total";
  return {};
}

}  // namespace luna::engine
