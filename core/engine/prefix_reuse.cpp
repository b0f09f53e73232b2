#include "core/engine/prefix_reuse.hpp"

#include "core/base/assert.hpp"

#include <algorithm>
#include <utility>

namespace luna::engine {

PrefixReuse::PrefixReuse(KvPool& pool, std::uint32_t n_slots)
    : pool_(pool),
      block_tokens_(pool.tree() != nullptr ? pool.tree()->block_tokens() : 0),
      token_ids_(block_tokens_),
      peeks_(block_tokens_ != 0 ? n_slots : 0) {}

// What is computed once more takes nothing that was computed before, and leaves nothing.
bool PrefixReuse::serves(const Sequence& sequence) const {
  return block_tokens_ != 0 && !sequence.request->is_replay;
}

void PrefixReuse::look_up(Sequence& sequence) {
  if (!serves(sequence)) return;
  LUNA_ASSERT(sequence.phase == Phase::waiting);
  search(sequence, sequence.hit, sequence.blocks);
  sequence.n_computed = sequence.hit.n_blocks * block_tokens_;
}

PrefixHit PrefixReuse::peek(const Sequence& sequence) {
  if (!serves(sequence)) return {};
  LUNA_ASSERT(sequence.phase == Phase::waiting);
  Peek& peek = peeks_[sequence.slot];
  if (peek.row_id != sequence.row_id || peek.n_prefill != sequence.n_prefill)
    peek = {.row_id = sequence.row_id, .n_prefill = sequence.n_prefill, .hit = {}};
  search(sequence, peek.hit, nullptr);
  return peek.hit;
}

void PrefixReuse::adopt(Sequence& sequence) {
  if (!serves(sequence)) return;
  sequence.hit = peek(sequence);
  std::uint32_t block = sequence.hit.last;
  for (std::uint32_t b = sequence.hit.n_blocks; b-- > 0;) {
    sequence.blocks[b] = block;
    block = pool_.tree()->parent(block).value_or(block);
  }
  sequence.n_computed = sequence.hit.n_blocks * block_tokens_;
}

void PrefixReuse::find_computed(const Sequence& sequence,
                                std::uint32_t n_blocks_max,
                                std::vector<std::uint32_t>& found) {
  if (block_tokens_ == 0) return;
  std::optional<std::uint32_t> last;
  for (std::uint32_t b = 0; b < n_blocks_max; ++b) {
    last = pool_.tree()->find(key_of(sequence, b, last));
    if (!last) return;
    found.push_back(*last);
  }
}

std::uint32_t PrefixReuse::n_shared(const PrefixHit& hit) const {
  // Whoever uses a block with a key uses those before it.
  std::uint32_t block = hit.last;
  std::uint32_t n = hit.n_blocks;
  while (n > 0 && pool_.n_references(block) == 0) {
    block = pool_.tree()->parent(block).value_or(block);
    --n;
  }
  return n;
}

// Brings a hit up to date, and writes the blocks that are new in it where there is a place for
// them.
void PrefixReuse::search(const Sequence& sequence, PrefixHit& hit, std::uint32_t* blocks) {
  const PrefixTree& tree = *pool_.tree();
  const bool is_first = hit.version == 0;
  if (std::exchange(hit.version, tree.version()) == tree.version()) return;
  std::optional<std::uint32_t> last;
  if (hit.n_blocks > 0) last = hit.last;
  // While the last block keeps its key, those before it do.
  const bool is_lost = last && tree.stamp(*last) != hit.stamp;
  if (is_lost) {
    hit.n_blocks = 0;
    last.reset();
  }
  if (!is_first && !is_lost && tree.n_given(last) == hit.n_given) return;
  // A sequence larger than the pool needs a block to go on with, before any of it can leave.
  const std::uint32_t n_blocks_max =
      std::min((sequence.n_prefill - 1) / block_tokens_, pool_.n_blocks() - 1);
  while (hit.n_blocks < n_blocks_max) {
    const std::optional<std::uint32_t> block = tree.find(key_of(sequence, hit.n_blocks, last));
    if (!block) break;
    if (blocks != nullptr) blocks[hit.n_blocks] = *block;
    ++hit.n_blocks;
    last = block;
  }
  hit.n_given = tree.n_given(last);
  if (!last) return;
  hit.last = *last;
  hit.stamp = tree.stamp(*last);
}

std::uint32_t PrefixReuse::take(Sequence& sequence) {
  LUNA_ASSERT(sequence.n_blocks == 0);
  const PrefixHit hit = std::exchange(sequence.hit, {});
  for (std::uint32_t b = 0; b < hit.n_blocks; ++b)
    pool_.share(sequence.blocks[b], sequence.slot);
  sequence.n_blocks = hit.n_blocks;
  sequence.n_keyed = hit.n_blocks;
  LUNA_ASSERT(sequence.n_computed == hit.n_blocks * block_tokens_);
  return sequence.n_computed;
}

std::uint32_t PrefixReuse::skip(Sequence& sequence) {
  if (!serves(sequence)) return 0;
  LUNA_ASSERT(sequence.phase == Phase::prefill);
  const PrefixTree& tree = *pool_.tree();
  if (std::exchange(sequence.hit.version, tree.version()) == tree.version()) return 0;
  std::uint32_t n_skipped = 0;
  while (sequence.n_keyed == sequence.n_blocks &&
         sequence.n_keyed * block_tokens_ == sequence.n_computed &&
         sequence.n_computed + block_tokens_ < sequence.n_prefill) {
    const std::optional<std::uint32_t> block = tree.find(next_key_of(sequence, sequence.n_keyed));
    if (!block) break;
    pool_.share(*block, sequence.slot);
    sequence.blocks[sequence.n_blocks++] = *block;
    ++sequence.n_keyed;
    sequence.n_computed += block_tokens_;
    n_skipped += block_tokens_;
  }
  return n_skipped;
}

void PrefixReuse::keep(Sequence& sequence) {
  if (!serves(sequence) || sequence.phase == Phase::waiting) return;
  // What is being copied stays in the blocks that it is read from.
  if (sequence.moving_to != nullptr) return;
  if (sequence.n_away > 0 || sequence.n_moving > 0) return;
  const std::uint32_t n_full = sequence.n_finished() / block_tokens_;
  for (std::uint32_t& b = sequence.n_keyed; b < n_full; ++b) {
    const PrefixKey key = next_key_of(sequence, b);
    std::uint32_t& block = sequence.blocks[b];
    const std::optional<std::uint32_t> same = pool_.tree()->find(key);
    if (!same) {
      pool_.give_key(block, key);
    } else if (*same != block) {
      pool_.share(*same, sequence.slot);
      pool_.release(std::exchange(block, *same), sequence.slot);
    }
  }
}

void PrefixReuse::forget(Sequence& sequence, std::uint32_t first) {
  while (sequence.n_keyed > first)
    pool_.take_key(sequence.blocks[--sequence.n_keyed]);
}

PrefixKey PrefixReuse::next_key_of(const Sequence& sequence, std::uint32_t idx) {
  std::optional<std::uint32_t> parent;
  if (idx > 0) parent = sequence.blocks[idx - 1];
  return key_of(sequence, idx, parent);
}

PrefixKey PrefixReuse::key_of(const Sequence& sequence,
                              std::uint32_t idx,
                              std::optional<std::uint32_t> parent) {
  const std::uint32_t first = idx * block_tokens_;
  const auto& prompt = sequence.request->asked->prompt;
  PrefixKey key{.parent = parent, .scope = sequence.request->scope, .token_ids = token_ids_};
  if (first + block_tokens_ <= prompt.size()) {
    key.token_ids = std::span(prompt).subspan(first, block_tokens_);
  } else {
    for (std::uint32_t i = 0; i < block_tokens_; ++i)
      token_ids_[i] = sequence.token(first + i);
  }
  return key;
}

}  // namespace luna::engine
