#include "core/model/block_cache.hpp"

#include "core/base/assert.hpp"

#include <algorithm>

namespace luna::model {

std::uint32_t BlockCache::take(Key key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return 0;
  const std::uint32_t n = found->second->n_blocks;
  n_blocks_ -= n;
  kept_.erase(found->second);
  by_key_.erase(found);
  return n;
}

void BlockCache::put(Key key, std::uint32_t n_blocks) {
  if (n_blocks == 0) return;
  LUNA_ASSERT(!by_key_.contains(key));
  kept_.push_front({key, n_blocks});
  by_key_[key] = kept_.begin();
  n_blocks_ += n_blocks;
}

void BlockCache::shrink(std::uint32_t n_blocks_max) {
  while (n_blocks_ > n_blocks_max) {
    Kept& oldest = kept_.back();
    const std::uint32_t n = std::min(oldest.n_blocks, n_blocks_ - n_blocks_max);
    oldest.n_blocks -= n;
    n_blocks_ -= n;
    if (oldest.n_blocks > 0) continue;
    by_key_.erase(oldest.key);
    kept_.pop_back();
  }
}

}  // namespace luna::model
