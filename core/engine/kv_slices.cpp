#include "core/engine/kv_slices.hpp"

#include "core/base/assert.hpp"
#include "core/engine/group.hpp"

#include <algorithm>
#include <utility>

namespace luna::engine {

bool may_slice(const Group& home, const Group& guest) {
  return home.model.slice_set != nullptr && home.model.slice_set == guest.model.slice_set &&
         home.attention == guest.attention && has_same_cuts(home.model, guest.model) &&
         can_copy_kv(home.model, guest.model);
}

SliceRange sliceable(const Sequence& sequence, std::uint32_t block_tokens) {
  if (sequence.phase == Phase::waiting || sequence.is_ending || sequence.n_prune != 0 ||
      sequence.moving_to != nullptr || sequence.request->is_replay)
    return {};
  const std::uint32_t n_partition_blocks = LUNA_PARTITION_TOKENS / block_tokens;
  const std::uint32_t end = sequence.n_finished() / LUNA_PARTITION_TOKENS;
  // Whoever shares a block shares those before it; what is being copied has a second holder too.
  std::uint32_t n_shared = 0;
  const std::uint32_t n_blocks = end * n_partition_blocks;
  while (n_shared < n_blocks &&
         sequence.holder_of(n_shared)->pool.n_references(sequence.blocks[n_shared]) > 1)
    n_shared += n_partition_blocks;
  const std::uint32_t first = n_shared / n_partition_blocks;
  if (first >= end) return {};
  return {first * LUNA_PARTITION_TOKENS, end * LUNA_PARTITION_TOKENS};
}

KvSlices::KvSlices(const Options& options, const Clock& clock, WakeSignal& wake)
    : moves_(options.is_on ? kMovesMax : 0),
      n_free_(options.is_on ? kMovesMax : 0),
      copier_(clock, wake, kMovesMax, options.is_on && options.has_thread) {
  std::uint32_t holder = options.first_holder;
  for (SliceMove& move : moves_) {
    move.holder = holder++;
    move.copy.from_blocks.reserve(options.n_blocks_per_seq);
    move.copy.to_blocks.reserve(options.n_blocks_per_seq);
  }
}

void KvSlices::begin(Sequence& sequence, const PlannedSlice& planned) {
  const auto unused = std::ranges::find(moves_, SliceMove::State::unused, &SliceMove::state);
  LUNA_VERIFY(unused != moves_.end());
  SliceMove& move = *unused;
  --n_free_;
  ++n_copying_;
  move.state = SliceMove::State::copying;
  move.is_abandoned = false;
  move.slot = sequence.slot;
  move.row_id = sequence.row_id;
  move.first_block = planned.first_block;
  move.home = sequence.group;
  move.from = sequence.holder_of(planned.first_block);
  move.to = planned.to;
  move.copy.from_blocks.clear();
  move.copy.to_blocks.clear();
  // From here on nobody finds them: the cache keeps paths from the first block on.
  if (move.from == move.home) move.home->prefixes.forget(sequence, planned.first_block);
  for (std::uint32_t b = 0; b < planned.n_blocks; ++b) {
    const std::uint32_t old_block = sequence.blocks[planned.first_block + b];
    const std::optional<std::uint32_t> new_block = move.to->pool.allocate(move.holder);
    LUNA_VERIFY(new_block.has_value());
    move.from->pool.share(old_block, move.holder);
    move.copy.from_blocks.push_back(old_block);
    move.copy.to_blocks.push_back(*new_block);
  }
  ++sequence.n_moving;
  move.copy.from = &move.from->model;
  move.copy.to = &move.to->model;
  // A block that is free may still be read by steps in flight there (as for KvMoves).
  move.n_steps_to = move.to->lanes.n_max() > 1 ? move.to->n_steps : 0;
  move.starts = true;
  start(move);
}

// Starts the copy, unless it has to wait for steps. Returns whether it began.
bool KvSlices::start(SliceMove& move) {
  if (move.to->n_steps_ended() < move.n_steps_to) return false;
  move.starts = false;
  copier_.start(move.copy);
  return true;
}

bool KvSlices::settle(SequenceTable& sequences) {
  bool changed = false;
  for (SliceMove& move : moves_) {
    if (move.state == SliceMove::State::copying) {
      if (move.starts && !move.is_abandoned) {
        changed |= start(move);
        continue;
      }
      if (!move.starts && !move.copy.has_ended()) continue;
      --n_copying_;
      changed = true;
      const bool failed =
          !std::exchange(move.starts, false) && move.copy.state.load() == KvCopy::State::failed;
      if (!move.is_abandoned) --sequences[move.slot].n_moving;
      if (failed) ++n_failed_;
      if (failed || move.is_abandoned) {
        give_new_back(move);
        give_old_back(move);
        continue;
      }
      take_effect(move, sequences[move.slot]);
    }
    if (move.state != SliceMove::State::retiring) continue;
    if (move.home->n_steps_ended() < move.n_steps_begun) continue;
    give_old_back(move);
    changed = true;
  }
  return changed;
}

void KvSlices::take_effect(SliceMove& move, Sequence& sequence) {
  for (std::uint32_t i = 0; i < move.n_blocks(); ++i) {
    const std::uint32_t b = move.first_block + i;
    LUNA_ASSERT(sequence.blocks[b] == move.copy.from_blocks[i]);
    move.to->pool.share(move.copy.to_blocks[i], move.slot);
    move.to->pool.release(move.copy.to_blocks[i], move.holder);
    move.from->pool.release(move.copy.from_blocks[i], move.slot);
    sequence.blocks[b] = move.copy.to_blocks[i];
    sequence.set_holder(b, move.to);
  }
  sequence.note(Disturbance::sliced);
  move.n_steps_begun = move.home->n_steps;
  move.state = SliceMove::State::retiring;
  ++n_moved_;
}

void KvSlices::give_new_back(SliceMove& move) {
  for (const std::uint32_t block : move.copy.to_blocks)
    move.to->pool.release(block, move.holder);
}

void KvSlices::give_old_back(SliceMove& move) {
  for (const std::uint32_t block : move.copy.from_blocks)
    move.from->pool.release(block, move.holder);
  move.state = SliceMove::State::unused;
  ++n_free_;
}

void KvSlices::abandon(Sequence& sequence) {
  if (std::exchange(sequence.n_moving, 0) == 0) return;
  for (SliceMove& move : moves_)
    if (move.state == SliceMove::State::copying && move.slot == sequence.slot)
      move.is_abandoned = true;
}

bool KvSlices::uses(const Group& group) const {
  return std::ranges::any_of(moves_, [&group](const SliceMove& move) {
    return move.state != SliceMove::State::unused &&
           (move.home == &group || move.from == &group || move.to == &group);
  });
}

void KvSlices::count_references(const Group& group, std::span<std::uint32_t> counts) const {
  for (const SliceMove& move : moves_) {
    if (move.state == SliceMove::State::unused) continue;
    if (move.from == &group)
      for (const std::uint32_t block : move.copy.from_blocks)
        ++counts[block];
    if (move.state == SliceMove::State::copying && move.to == &group)
      for (const std::uint32_t block : move.copy.to_blocks)
        ++counts[block];
  }
}

}  // namespace luna::engine
