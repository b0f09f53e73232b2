// What a plan takes of a group, counted before any of it is carried out.
#pragma once

#include "core/engine/kv_pool.hpp"
#include "core/engine/sequence.hpp"

#include <cstdint>
#include <vector>

namespace luna::engine {

/// The KV blocks, tokens and rows of one group that are left beside what the plan took so far.
/// Allocates at construction only. [engine], owned by the group, kept by the SchedulerGate.
class PlanBooks {
 public:
  /// The pool outlives it.
  PlanBooks(const KvPool& pool, std::uint32_t block_tokens)
      : pool_(pool), block_tokens_(block_tokens), changes_(pool.n_blocks()) {}

  /// Begins a plan.
  void begin();
  /// A row of the plan gives its references to this group's blocks back.
  void withdraw(const Sequence& sequence, const Group* own);
  /// A waiting row of the plan takes what it would find in the prefix cache.
  void lend(const PrefixHit& hit);
  /// Takes the blocks that a run of so many tokens writes. All withdraw() and lend() come before
  /// the first.
  ///
  /// n_found    waiting: blocks that it was lent
  /// n_reserve  blocks that must stay free
  /// Returns    false when there are too few
  bool take(const Sequence& sequence,
            std::uint32_t n_found,
            std::uint32_t n_run_tokens,
            std::uint32_t n_reserve);

  /// Takes blocks for a sequence that comes with its KV; likewise behind all withdraw() and lend().
  bool take(std::uint32_t n_blocks, std::uint32_t n_reserve);

  std::uint32_t n_tokens = 0;  ///< of the group's step
  std::uint32_t n_runs = 0;    ///< of the group's step

 private:
  [[nodiscard]] std::int64_t references(std::uint32_t block) const;
  void change(std::uint32_t block, std::int32_t by);

  const KvPool& pool_;
  const std::uint32_t block_tokens_;
  std::uint32_t n_left_ = 0;           // blocks
  bool has_changes_ = false;           // any but 0 below
  std::vector<std::int32_t> changes_;  // by block: references the plan adds
};

}  // namespace luna::engine
