// How sequences use the prefix cache: what one has computed, another does not compute again.
#pragma once

#include "core/engine/kv_pool.hpp"
#include "core/engine/sequence.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace luna::engine {

/// Moves blocks between sequences and the pool's keys. Blocks are shared whole; what lies in a
/// block that is not full is computed by each sequence for itself, and so is a prompt's last token,
/// whose logits are wanted. Without keys in the pool nothing is found and nothing kept. [engine],
/// owned by a group; the pool outlives it.
class PrefixReuse {
 public:
  /// n_slots  of sequences that peek(); 0: none will
  explicit PrefixReuse(KvPool& pool, std::uint32_t n_slots = 0);

  /// Brings up to date which blocks a waiting sequence of the group would start with; they are
  /// named, not held. Cost: nothing while no key changes; then two numbers, or one look-up a block
  /// of what was found.
  void look_up(Sequence& sequence);
  /// The same of a waiting sequence that belongs to no group, or to another.
  PrefixHit peek(const Sequence& sequence);
  /// A waiting sequence that has just come to the group looks up what it would start with.
  void adopt(Sequence& sequence);
  /// Blocks that hold what a sequence of another group has computed: its first ones, n_blocks_max
  /// at most. They are named, not held.
  void find_computed(const Sequence& sequence,
                     std::uint32_t n_blocks_max,
                     std::vector<std::uint32_t>& found);
  /// Blocks of a hit that other sequences hold.
  [[nodiscard]] std::uint32_t n_shared(const PrefixHit& hit) const;
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
  ///
  /// One that lies in other groups too, or is about to, gives none: keys are paths from the first
  /// block on.
  void keep(Sequence& sequence);
  /// Blocks of a sequence lose their keys, from `first` on: they leave the group, or lie behind one
  /// that does. It uses them alone.
  void forget(Sequence& sequence, std::uint32_t first);

 private:
  /// What a sequence of no group would find here.
  struct Peek {
    std::uint64_t row_id = 0;  // whose it is
    std::uint32_t n_prefill = 0;
    PrefixHit hit;
  };

  [[nodiscard]] bool serves(const Sequence& sequence) const;
  void search(const Sequence& sequence, PrefixHit& hit, std::uint32_t* blocks);
  [[nodiscard]] PrefixKey key_of(const Sequence& sequence,
                                 std::uint32_t idx,
                                 std::optional<std::uint32_t> parent);
  [[nodiscard]] PrefixKey next_key_of(const Sequence& sequence, std::uint32_t idx);

  KvPool& pool_;
  const std::uint32_t block_tokens_;          // 0: the pool keeps nothing
  std::vector<pipeline::TokenId> token_ids_;  // [block_tokens], of a block beyond the prompt
  std::vector<Peek> peeks_;                   // by slot
};

}  // namespace luna::engine
