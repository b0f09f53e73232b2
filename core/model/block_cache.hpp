// KV blocks of a copy in virtual time that nobody uses at the moment.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>

namespace luna::model {

/// Blocks under who may ask for them again. The least recently used go first, each path from its
/// end. Moved, not copied.
class BlockCache {
 public:
  using Key = std::uint64_t;

  BlockCache() = default;
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;
  BlockCache(BlockCache&&) = default;
  BlockCache& operator=(BlockCache&&) = default;
  ~BlockCache() = default;

  [[nodiscard]] std::uint32_t n_blocks() const { return n_blocks_; }
  /// Takes what is left under a key.
  std::uint32_t take(Key key);
  /// There is nothing under the key.
  void put(Key key, std::uint32_t n_blocks);
  void shrink(std::uint32_t n_blocks_max);

 private:
  struct Kept {
    Key key = 0;
    std::uint32_t n_blocks = 0;
  };
  std::list<Kept> kept_;  // the latest first
  std::unordered_map<Key, std::list<Kept>::iterator> by_key_;
  std::uint32_t n_blocks_ = 0;
};

}  // namespace luna::model
