#include "core/engine/kv_pool.hpp"

#include "core/base/assert.hpp"

namespace luna::engine {

KvPool::KvPool(std::uint32_t n_blocks) : references_(n_blocks, 0) {
  free_.reserve(n_blocks);
  for (std::uint32_t block = n_blocks; block-- > 0;)
    free_.push_back(block);
}

std::optional<std::uint32_t> KvPool::allocate() {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t block = free_.back();
  free_.pop_back();
  LUNA_ASSERT(references_[block] == 0);
  references_[block] = 1;
  return block;
}

void KvPool::share(std::uint32_t block) {
  LUNA_ASSERT(references_[block] > 0);
  ++references_[block];
}

void KvPool::release(std::uint32_t block) {
  LUNA_VERIFY(references_[block] > 0);
  if (--references_[block] == 0) free_.push_back(block);
}

}  // namespace luna::engine
