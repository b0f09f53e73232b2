// KV blocks as numbers: which are free, how many sequences share each, and which are kept for
// sequences to come.
#pragma once

#include "core/engine/prefix_tree.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace luna::engine {

/// Counts references to the blocks of a model's KV cache; their memory lies on the devices. A block
/// is free; or used, by one sequence or several; or cached: used by none, kept because it has a key
/// and given away when no free one is left, the one unused for the longest time first.
///
/// A sequence that uses a block with a key uses the blocks before it too, and gives them back last
/// to first. So blocks come to the end of the cached list before their parents do, and its head is
/// always a leaf of the tree.
///
/// Whoever uses blocks is a holder, a number below n_holders; the pool knows how many blocks each
/// holds alone. Allocates at construction only. [engine], owned by a group of devices.
class KvPool {
 public:
  /// A pool that keeps nothing: no block ever has a key.
  explicit KvPool(std::uint32_t n_blocks, std::uint32_t n_holders = 1);
  /// One that keeps blocks under their keys; keys.n_blocks is the pool's.
  explicit KvPool(const PrefixTree::Options& keys, std::uint32_t n_holders = 1);

  /// A block with one reference and no key, or nothing when all are used. The block freed last
  /// comes first; a cached one loses its key.
  [[nodiscard]] std::optional<std::uint32_t> allocate(std::uint32_t holder = 0);
  /// One more sequence uses the block, which is used or cached.
  void share(std::uint32_t block, std::uint32_t holder = 0);
  /// One reference less; at none the block is cached if it has a key, else free.
  void release(std::uint32_t block, std::uint32_t holder = 0);
  /// Gives a used block its key: see PrefixTree::insert.
  void give_key(std::uint32_t block, const PrefixKey& key);
  /// Gives all cached blocks away.
  void drop_cached();
  /// Takes the key of a block that one sequence alone uses; blocks below it that nobody uses, and
  /// cached ones before them, lose theirs and are free. It uses none below it that has one.
  void take_key(std::uint32_t block);

  /// The keys; none when nothing is kept.
  [[nodiscard]] const PrefixTree* tree() const { return tree_ ? &*tree_ : nullptr; }
  [[nodiscard]] std::uint32_t n_references(std::uint32_t block) const { return references_[block]; }
  /// Blocks that the holder uses and nobody else.
  [[nodiscard]] std::uint32_t n_exclusive(std::uint32_t holder) const { return exclusive_[holder]; }
  [[nodiscard]] std::uint32_t n_blocks() const {
    return static_cast<std::uint32_t>(references_.size());
  }
  [[nodiscard]] std::uint32_t n_free() const { return static_cast<std::uint32_t>(free_.size()); }
  [[nodiscard]] std::uint32_t n_cached() const { return n_cached_; }
  [[nodiscard]] std::uint32_t n_used() const { return n_blocks() - n_free() - n_cached_; }
  /// What allocate() can give: free and cached.
  [[nodiscard]] std::uint32_t n_available() const { return n_free() + n_cached_; }
  /// Cached blocks given away so far.
  [[nodiscard]] std::uint64_t n_evicted() const { return n_evicted_; }
  [[nodiscard]] std::span<const std::uint32_t> free_blocks() const { return free_; }
  /// The cached block to be given away first, and the one after a block. For the audit.
  [[nodiscard]] std::optional<std::uint32_t> first_cached() const;
  [[nodiscard]] std::optional<std::uint32_t> next_cached(std::uint32_t block) const;

 private:
  /// A block's neighbours in the list of cached blocks; the list's own end is links_[n_blocks].
  struct Link {
    std::uint32_t before = 0;
    std::uint32_t after = 0;
  };

  [[nodiscard]] std::uint32_t evict_oldest();
  void append_cached(std::uint32_t block);
  void unlink_cached(std::uint32_t block);

  std::vector<std::uint32_t> references_;  // by block
  std::vector<std::uint32_t> holders_;     // by block: all of them, joined by XOR: of one, that one
  std::vector<std::uint32_t> exclusive_;   // by holder
  std::vector<std::uint32_t> free_;        // a stack
  std::vector<Link> links_;                // [n_blocks + 1]
  std::optional<PrefixTree> tree_;
  std::uint32_t n_cached_ = 0;
  std::uint64_t n_evicted_ = 0;
};

}  // namespace luna::engine
