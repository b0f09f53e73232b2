#include "core/engine/prefix_reuse.hpp"

#include "core/base/assert.hpp"

#include <utility>

namespace luna::engine {

PrefixReuse::PrefixReuse(KvPool& pool)
    : pool_(pool),
      block_tokens_(pool.tree() != nullptr ? pool.tree()->block_tokens() : 0),
      token_ids_(block_tokens_) {}

void PrefixReuse::look_up(Sequence& sequence) {
  if (block_tokens_ == 0) return;
  LUNA_ASSERT(sequence.phase == Phase::waiting);
  const PrefixTree& tree = *pool_.tree();
  PrefixHit& hit = sequence.hit;
  if (std::exchange(hit.version, tree.version()) == tree.version()) return;
  // While the last block keeps its key, those before it do.
  if (hit.n_blocks > 0 && tree.stamp(sequence.blocks[hit.n_blocks - 1]) != hit.stamp)
    hit.n_blocks = 0;
  const std::uint32_t n_blocks_max = (sequence.n_prefill - 1) / block_tokens_;
  while (hit.n_blocks < n_blocks_max) {
    const std::optional<std::uint32_t> block = tree.find(key_of(sequence, hit.n_blocks));
    if (!block) break;
    sequence.blocks[hit.n_blocks++] = *block;
  }
  if (hit.n_blocks > 0) hit.stamp = tree.stamp(sequence.blocks[hit.n_blocks - 1]);
  sequence.n_computed = hit.n_blocks * block_tokens_;
}

std::uint32_t PrefixReuse::take(Sequence& sequence) {
  LUNA_ASSERT(sequence.n_blocks == 0);
  const PrefixHit hit = std::exchange(sequence.hit, {});
  for (std::uint32_t b = 0; b < hit.n_blocks; ++b)
    pool_.share(sequence.blocks[b]);
  sequence.n_blocks = hit.n_blocks;
  sequence.n_keyed = hit.n_blocks;
  LUNA_ASSERT(sequence.n_computed == hit.n_blocks * block_tokens_);
  return sequence.n_computed;
}

std::uint32_t PrefixReuse::skip(Sequence& sequence) {
  if (block_tokens_ == 0) return 0;
  LUNA_ASSERT(sequence.phase == Phase::prefill);
  const PrefixTree& tree = *pool_.tree();
  if (std::exchange(sequence.hit.version, tree.version()) == tree.version()) return 0;
  std::uint32_t n_skipped = 0;
  while (sequence.n_keyed == sequence.n_blocks &&
         sequence.n_keyed * block_tokens_ == sequence.n_computed &&
         sequence.n_computed + block_tokens_ < sequence.n_prefill) {
    const std::optional<std::uint32_t> block = tree.find(key_of(sequence, sequence.n_keyed));
    if (!block) break;
    pool_.share(*block);
    sequence.blocks[sequence.n_blocks++] = *block;
    ++sequence.n_keyed;
    sequence.n_computed += block_tokens_;
    n_skipped += block_tokens_;
  }
  return n_skipped;
}

void PrefixReuse::keep(Sequence& sequence) {
  if (block_tokens_ == 0 || sequence.phase == Phase::waiting) return;
  const std::uint32_t n_full = sequence.n_finished() / block_tokens_;
  for (std::uint32_t& b = sequence.n_keyed; b < n_full; ++b) {
    const PrefixKey key = key_of(sequence, b);
    std::uint32_t& block = sequence.blocks[b];
    const std::optional<std::uint32_t> same = pool_.tree()->find(key);
    if (!same) {
      pool_.give_key(block, key);
    } else if (*same != block) {
      pool_.share(*same);
      pool_.release(std::exchange(block, *same));
    }
  }
}

PrefixKey PrefixReuse::key_of(const Sequence& sequence, std::uint32_t idx) {
  const std::uint32_t first = idx * block_tokens_;
  const auto& prompt = sequence.request->asked->prompt;
  PrefixKey key{.parent = std::nullopt, .scope = sequence.request->scope, .token_ids = token_ids_};
  if (idx > 0) key.parent = sequence.blocks[idx - 1];
  if (first + block_tokens_ <= prompt.size()) {
    key.token_ids = std::span(prompt).subspan(first, block_tokens_);
  } else {
    for (std::uint32_t i = 0; i < block_tokens_; ++i)
      token_ids_[i] = sequence.token(first + i);
  }
  return key;
}

}  // namespace luna::engine
