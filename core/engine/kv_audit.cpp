#include "core/engine/kv_audit.hpp"

#include "core/engine/kv_moves.hpp"
#include "core/engine/kv_slices.hpp"

#include <algorithm>

namespace luna::engine {

namespace {

// A sequence's first blocks have keys, each under the one before it.
bool is_path(const Sequence& sequence, const PrefixTree& tree) {
  std::optional<std::uint32_t> parent;
  for (std::uint32_t b = 0; b < sequence.n_keyed; ++b) {
    const std::uint32_t block = sequence.blocks[b];
    if (!tree.has_key(block) || tree.parent(block) != parent) return false;
    parent = block;
  }
  return true;
}

}  // namespace

std::string_view KvAudit::count_references(const KvPool& pool,
                                           const SequenceTable& sequences,
                                           const Group* group) {
  std::fill(counts_.begin(), counts_.end(), 0U);
  for (std::uint32_t slot = 0; slot < sequences.n_slots(); ++slot) {
    if (!sequences.is_live(slot)) continue;
    const Sequence& sequence = sequences[slot];
    if (sequence.group != group && sequence.n_away == 0) continue;
    std::uint32_t n_exclusive = 0;
    std::uint32_t n_away = 0;
    for (std::uint32_t b = 0; b < sequence.n_blocks; ++b) {
      if (sequence.holder_of(b) != sequence.group) ++n_away;
      if (sequence.holder_of(b) != group) continue;
      if (sequence.blocks[b] >= counts_.size())
        return "a block table names a block beyond the pool";
      ++counts_[sequence.blocks[b]];
      if (pool.n_references(sequence.blocks[b]) == 1) ++n_exclusive;
    }
    if (n_exclusive != pool.n_exclusive(slot))
      return "the blocks of a sequence alone are miscounted";
    if (n_away != sequence.n_away) return "the blocks of a sequence in other groups are miscounted";
    if (sequence.group != group) continue;
    if (sequence.phase == Phase::waiting && sequence.n_blocks != 0)
      return "a waiting sequence holds blocks";
    if (sequence.n_keyed > sequence.n_blocks || (pool.tree() == nullptr && sequence.n_keyed != 0))
      return "more keys than blocks";
    if (pool.tree() != nullptr && !is_path(sequence, *pool.tree()))
      return "a sequence's keys are no path of the prefix tree";
  }
  return {};
}

// Cached blocks: each once, unused, with a key, children before parents.
std::string_view KvAudit::check_cached(const KvPool& pool) {
  std::uint32_t n_cached = 0;
  for (auto block = pool.first_cached(); block; block = pool.next_cached(*block)) {
    if (counts_[*block] != 0) return "a block is cached twice, or cached and in use";
    if (!pool.tree()->has_key(*block)) return "a cached block has no key";
    const std::optional<std::uint32_t> parent = pool.tree()->parent(*block);
    if (parent && pool.n_references(*parent) == 0 && counts_[*parent] != 0)
      return "a cached block stands behind its parent";
    counts_[*block] = 1;
    if (++n_cached > pool.n_cached()) break;
  }
  return n_cached == pool.n_cached() ? std::string_view{} : "the cached blocks are miscounted";
}

std::string_view KvAudit::run(const KvPool& pool,
                              const SequenceTable& sequences,
                              const Group* group,
                              const KvMoves* moves,
                              const KvSlices* slices) {
  const std::string_view fault_of_tables = count_references(pool, sequences, group);
  if (!fault_of_tables.empty()) return fault_of_tables;
  if (moves != nullptr && group != nullptr) moves->count_references(*group, counts_);
  if (slices != nullptr && group != nullptr) slices->count_references(*group, counts_);
  std::uint32_t n_used = 0;
  for (std::uint32_t block = 0; block < pool.n_blocks(); ++block) {
    if (counts_[block] != pool.n_references(block))
      return "a block's references are not those of the block tables";
    if (counts_[block] > 0) ++n_used;
  }
  if (const std::string_view fault = check_cached(pool); !fault.empty()) return fault;
  for (const std::uint32_t block : pool.free_blocks()) {
    if (counts_[block] != 0) return "a block is free twice, or free and in use or cached";
    if (pool.tree() != nullptr && pool.tree()->has_key(block)) return "a free block has a key";
    counts_[block] = 1;
  }
  if (pool.n_free() + n_used + pool.n_cached() != pool.n_blocks())
    return "free + used + cached is not the total";
  return {};
}

}  // namespace luna::engine
