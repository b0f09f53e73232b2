// The integrity check of the KV cache: who owns which block, counted again from scratch.
#pragma once

#include "core/engine/kv_pool.hpp"
#include "core/engine/sequence.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace luna::engine {

class KvMoves;
class KvSlices;

/// Recounts references from the sequences' block tables and compares with the pool: each block is
/// free, used or cached, never two of these, and free + used + cached == total; those with keys
/// stand in whole paths. Allocates at construction. [engine]
class KvAudit {
 public:
  explicit KvAudit(std::uint32_t n_blocks) : counts_(n_blocks) {}

  /// group    whose pool it is: that of the sequences that count
  /// moves, slices  that may hold some of its blocks; null: none do
  /// Returns  what does not hold, static text; empty when all is well
  /// Cost     O(blocks of the pool and of all sequences)
  [[nodiscard]] std::string_view run(const KvPool& pool,
                                     const SequenceTable& sequences,
                                     const Group* group = nullptr,
                                     const KvMoves* moves = nullptr,
                                     const KvSlices* slices = nullptr);

 private:
  [[nodiscard]] std::string_view count_references(const KvPool& pool,
                                                  const SequenceTable& sequences,
                                                  const Group* group);
  [[nodiscard]] std::string_view check_cached(const KvPool& pool);

  std::vector<std::uint32_t> counts_;  // by block
};

}  // namespace luna::engine
