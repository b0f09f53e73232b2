#include "core/engine/kv_pool.hpp"

#include "core/base/assert.hpp"

namespace luna::engine {

KvPool::KvPool(std::uint32_t n_blocks, std::uint32_t n_holders)
    : references_(n_blocks, 0),
      holders_(n_blocks, 0),
      exclusive_(n_holders, 0),
      links_(std::size_t{n_blocks} + 1) {
  free_.reserve(n_blocks);
  for (std::uint32_t block = n_blocks; block-- > 0;)
    free_.push_back(block);
  links_[n_blocks] = {n_blocks, n_blocks};
}

KvPool::KvPool(const PrefixTree::Options& keys, std::uint32_t n_holders)
    : KvPool(keys.n_blocks, n_holders) {
  tree_.emplace(keys);
}

std::optional<std::uint32_t> KvPool::allocate(std::uint32_t holder) {
  std::uint32_t block = 0;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (n_cached_ > 0) {
    block = evict_oldest();
  } else {
    return std::nullopt;
  }
  LUNA_ASSERT(references_[block] == 0);
  references_[block] = 1;
  holders_[block] = holder;
  ++exclusive_[holder];
  return block;
}

void KvPool::share(std::uint32_t block, std::uint32_t holder) {
  if (references_[block] == 0) {
    LUNA_VERIFY(tree_ && tree_->has_key(block));
    unlink_cached(block);
    ++exclusive_[holder];
  } else if (references_[block] == 1) {
    --exclusive_[holders_[block]];
  }
  ++references_[block];
  holders_[block] ^= holder;
}

void KvPool::release(std::uint32_t block, std::uint32_t holder) {
  LUNA_VERIFY(references_[block] > 0);
  holders_[block] ^= holder;
  if (--references_[block] == 1) ++exclusive_[holders_[block]];
  if (references_[block] > 0) return;
  LUNA_ASSERT(holders_[block] == 0);
  --exclusive_[holder];
  if (tree_ && tree_->has_key(block)) {
    append_cached(block);
  } else {
    free_.push_back(block);
  }
}

void KvPool::give_key(std::uint32_t block, const PrefixKey& key) {
  LUNA_VERIFY(references_[block] > 0);
  LUNA_ASSERT(!key.parent || references_[*key.parent] > 0);
  tree_->insert(block, key);
}

void KvPool::take_key(std::uint32_t block) {
  LUNA_VERIFY(references_[block] == 1);
  // Whoever used a block below it would use this one too: what is below is cached.
  while (!tree_->is_leaf(block))
    free_.push_back(evict_oldest());
  tree_->erase(block);
}

void KvPool::drop_cached() {
  while (n_cached_ > 0)
    free_.push_back(evict_oldest());
}

std::uint32_t KvPool::evict_oldest() {
  const std::optional<std::uint32_t> oldest = first_cached();
  LUNA_VERIFY(oldest.has_value());
  unlink_cached(*oldest);
  tree_->erase(*oldest);
  ++n_evicted_;
  return *oldest;
}

std::optional<std::uint32_t> KvPool::first_cached() const {
  return next_cached(n_blocks());
}

std::optional<std::uint32_t> KvPool::next_cached(std::uint32_t block) const {
  if (links_[block].after == n_blocks()) return std::nullopt;
  return links_[block].after;
}

void KvPool::append_cached(std::uint32_t block) {
  Link& end = links_[n_blocks()];
  links_[block] = {end.before, n_blocks()};
  links_[end.before].after = block;
  end.before = block;
  ++n_cached_;
}

void KvPool::unlink_cached(std::uint32_t block) {
  const Link link = links_[block];
  links_[link.before].after = link.after;
  links_[link.after].before = link.before;
  --n_cached_;
}

}  // namespace luna::engine
