// How sequences use the prefix cache: what one has computed, another does not compute again.
#pragma once

#include "core/engine/kv_pool.hpp"
#include "core/engine/sequence.hpp"

#include <cstdint>
#include <vector>

namespace luna::engine {

/// Moves blocks between sequences and the pool's keys. Blocks are shared whole; what lies in a
/// block that is not full is computed by each sequence for itself, and so is a prompt's last token,
/// whose logits are wanted. Without keys in the pool nothing is found and nothing kept. [engine],
/// owned by the engine; the pool outlives it.
class PrefixReuse {
 public:
  explicit PrefixReuse(KvPool& pool);

  /// Brings up to date which blocks a waiting sequence would start with; they are named, not held.
  /// Cost: nothing while no key changes; then one look-up, or one a block of what was found.
  void look_up(Sequence& sequence);
  /// Starts a waiting sequence with the blocks that look_up() named. No block may have been
  /// allocated since. Returns the tokens it need not compute.
  std::uint32_t take(Sequence& sequence);
  /// Gives a prefilling sequence what others have computed meanwhile of what it would compute next.
  /// Returns the tokens it need not compute.
  std::uint32_t skip(Sequence& sequence);
  /// Gives keys to the blocks that the sequence has filled. Where another sequence filled a block
  /// with the same tokens before, the two hold the same bits: this one takes that block and gives
  /// its own back. A waiting sequence has none. A step in flight that reads it still may: devices
  /// run it before any that was given the block later.
  void keep(Sequence& sequence);

 private:
  [[nodiscard]] PrefixKey key_of(const Sequence& sequence, std::uint32_t idx);

  KvPool& pool_;
  const std::uint32_t block_tokens_;          // 0: the pool keeps nothing
  std::vector<pipeline::TokenId> token_ids_;  // [block_tokens], of a block beyond the prompt
};

}  // namespace luna::engine
