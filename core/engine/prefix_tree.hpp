// The keys of computed KV blocks: which block holds the KV of these tokens after those.
#pragma once

#include "core/base/word_hash.hpp"
#include "core/pipeline/request.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace luna::engine {

/// Who may share blocks: equal scopes. KV does not depend on it, but a client that finds a prefix
/// in the cache learns from the time it saved that somebody sent it before.
struct PrefixScope {
  std::uint32_t tenant = 0;  ///< 0: all tenants together
  std::string_view salt;     ///< the client's own, kCacheSaltBytesMax at most; empty: none

  friend bool operator==(const PrefixScope&, const PrefixScope&) = default;
};

/// What a block's KV depends on: all tokens to its end. Those before it stand for themselves by the
/// block that holds them.
struct PrefixKey {
  std::optional<std::uint32_t> parent;       ///< the block before it; none: the first of a sequence
  PrefixScope scope;                         ///< of a first block; later ones have their parent's
  std::span<const std::uint32_t> token_ids;  ///< [block_tokens]
};

/// A hash of numbers that goes on from `state`. It only spreads: equality is decided by comparing.
using PrefixHash = std::uint64_t (*)(std::uint64_t state, std::span<const std::uint32_t> words);

/// A radix tree whose edges are whole blocks of tokens. A node is known by its block's id, so the
/// arena of nodes is as long as the pool and nothing is allocated after construction. Children are
/// found in a hash table by (parent, tokens), and every word of the key is compared: two keys that
/// differ never share a block, whatever the hash says. [engine], owned by the pool.
class PrefixTree {
 public:
  struct Options {
    std::uint32_t n_blocks = 0;
    std::uint32_t block_tokens = 0;
    /// Not to be known to clients: who can make keys collide can make lookups slow.
    std::uint64_t hash_seed = 0;
    PrefixHash hash = hash_words;
  };
  explicit PrefixTree(const Options& options);

  /// The block with this key. Cost: O(block_tokens) unless hashes collide.
  [[nodiscard]] std::optional<std::uint32_t> find(const PrefixKey& key) const;
  /// Gives a block its key. The block's KV is written and never written again while it has one; no
  /// other block has the key; the parent has one.
  void insert(std::uint32_t block, const PrefixKey& key);
  /// Takes a leaf's key away.
  void erase(std::uint32_t block);

  [[nodiscard]] bool has_key(std::uint32_t block) const { return nodes_[block].has_key; }
  [[nodiscard]] bool is_leaf(std::uint32_t block) const { return nodes_[block].n_children == 0; }
  [[nodiscard]] std::optional<std::uint32_t> parent(std::uint32_t block) const;
  /// Changes when the block is given a key or loses it. While it stays, so do the keys of all
  /// blocks before it.
  [[nodiscard]] std::uint32_t stamp(std::uint32_t block) const { return nodes_[block].stamp; }
  /// Keys that were ever given below the block, or to first blocks. While it stays, a search there
  /// that found nothing would find nothing again.
  [[nodiscard]] std::uint32_t n_given(std::optional<std::uint32_t> parent) const {
    return parent ? nodes_[*parent].n_given : n_first_given_;
  }
  /// Changes with every key; never 0.
  [[nodiscard]] std::uint64_t version() const { return version_; }
  [[nodiscard]] std::uint32_t n_keys() const { return n_keys_; }
  [[nodiscard]] std::uint32_t block_tokens() const { return options_.block_tokens; }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;  // ends a list, inside this class only

  struct Node {
    std::uint64_t hash = 0;        // of the key and all keys before it
    std::uint32_t parent = kNone;  // kNone: a first block
    std::uint32_t next = kNone;    // in its bucket
    std::uint32_t n_children = 0;
    std::uint32_t stamp = 0;
    std::uint32_t n_given = 0;
    bool has_key = false;
  };
  struct Salt {
    std::uint32_t tenant = 0;
    std::uint32_t n_bytes = 0;
    char bytes[pipeline::kCacheSaltBytesMax] = {};
  };

  [[nodiscard]] std::uint64_t hash_of(const PrefixKey& key) const;
  [[nodiscard]] bool holds(std::uint32_t block, const PrefixKey& key) const;
  [[nodiscard]] PrefixScope scope_of(std::uint32_t first_block) const;

  const Options options_;
  std::vector<Node> nodes_;               // by block
  std::vector<std::uint32_t> token_ids_;  // [n_blocks, block_tokens]
  std::vector<Salt> salts_;               // by block; of first blocks
  std::vector<std::uint32_t> buckets_;    // a power of two of them, the first node of each
  std::uint32_t n_keys_ = 0;
  std::uint32_t n_first_given_ = 0;
  std::uint64_t version_ = 1;
};

}  // namespace luna::engine
