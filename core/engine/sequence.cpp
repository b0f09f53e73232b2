#include "core/engine/sequence.hpp"

#include "core/base/assert.hpp"
#include "core/base/units.hpp"
#include "core/engine/group.hpp"

#include <algorithm>
#include <utility>

namespace luna::engine {

SequenceTable::SequenceTable(std::uint32_t n_slots, std::uint32_t n_blocks_per_seq, bool has_guests)
    : n_blocks_per_seq_(n_blocks_per_seq),
      sequences_(n_slots),
      block_tables_(std::size_t{n_slots} * n_blocks_per_seq),
      guests_(has_guests ? block_tables_.size() : 0),
      masses_(guests_.size()) {
  free_slots_.reserve(n_slots);
  order_.reserve(n_slots);
  for (std::uint32_t slot = n_slots; slot-- > 0;)
    free_slots_.push_back(slot);
}

std::uint32_t SequenceTable::take_slot() {
  LUNA_VERIFY(!free_slots_.empty());
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  sequences_[slot] = Sequence{};
  sequences_[slot].slot = slot;
  const std::size_t first = std::size_t{slot} * n_blocks_per_seq_;
  sequences_[slot].blocks = block_tables_.data() + first;
  if (!guests_.empty()) {
    sequences_[slot].guests = guests_.data() + first;
    sequences_[slot].masses = masses_.data() + first;
  }
  return slot;
}

Sequence& SequenceTable::add(LiveRequest& request, std::uint32_t n_prune) {
  const std::uint32_t slot = take_slot();
  Sequence& sequence = sequences_[slot];
  sequence.row_id = next_row_id_;
  // The other choices will stand behind the first, as if they had arrived with it.
  next_row_id_ += request.choices.size();
  sequence.request = &request;
  sequence.n_prune = n_prune;
  sequence.n_prefill = sequence.prefill_end();
  order_.push_back(slot);
  return sequence;
}

std::span<const std::uint32_t> SequenceTable::fork(std::uint32_t first_slot) {
  const Sequence& first = sequences_[first_slot];
  LUNA_ASSERT(first.choice_idx == 0);
  auto place = std::find(order_.begin(), order_.end(), first_slot) + 1;
  const std::ptrdiff_t first_place = place - order_.begin();
  for (std::uint32_t c = 1; c < first.request->choices.size(); ++c) {
    const std::uint32_t slot = take_slot();
    Sequence& twin = sequences_[slot];
    std::uint32_t* const blocks = twin.blocks;
    Group** const guests = twin.guests;
    float* const masses = twin.masses;
    twin = first;
    twin.blocks = blocks;
    twin.guests = guests;
    twin.masses = masses;
    twin.n_moving = 0;  // what is being copied is the first one's
    if (first.n_away > 0) {
      std::copy_n(first.guests, first.n_blocks, guests);
      std::copy_n(first.masses, first.n_blocks, masses);
    }
    twin.slot = slot;
    LUNA_ASSERT(twin.moving_to == nullptr);
    twin.row_id = first.row_id + c;
    twin.choice_idx = c;
    for (std::uint32_t b = 0; b < first.n_blocks; ++b) {
      blocks[b] = first.blocks[b];
      first.holder_of(b)->pool.share(blocks[b], slot);
    }
    place = order_.insert(place, slot) + 1;  // within the reserved capacity
  }
  return std::span(order_).subspan(static_cast<std::size_t>(first_place),
                                   first.request->choices.size() - 1);
}

void SequenceTable::release_blocks(Sequence& sequence) {
  LUNA_ASSERT(!sequence.in_step() && sequence.moving_to == nullptr);
  LUNA_ASSERT(sequence.group != nullptr || sequence.n_blocks == 0);
  LUNA_ASSERT(sequence.n_moving == 0);
  for (std::uint32_t b = sequence.n_blocks; b-- > 0;)
    sequence.holder_of(b)->pool.release(sequence.blocks[b], sequence.slot);
  if (std::exchange(sequence.n_away, 0) > 0) {
    std::fill_n(sequence.guests, sequence.n_blocks, nullptr);
    std::fill_n(sequence.masses, sequence.n_blocks, 0.0F);
  }
  sequence.n_blocks = 0;
  sequence.n_keyed = 0;
  sequence.n_computed = 0;
  sequence.n_pruned = 0;
  sequence.n_cached = 0;
  sequence.hit = {};
  sequence.n_draft = 0;
}

void SequenceTable::prune(std::uint32_t slot, std::uint32_t block_tokens) {
  Sequence& sequence = sequences_[slot];
  LUNA_ASSERT(sequence.n_computed == sequence.prefill_end());
  LUNA_ASSERT(sequence.n_keyed == 0);
  sequence.n_pruned = sequence.n_prune;
  const std::uint32_t n_blocks = div_ceil(sequence.next_slot(), block_tokens);
  while (sequence.n_blocks > n_blocks)
    sequence.group->pool.release(sequence.blocks[--sequence.n_blocks], slot);
  sequence.n_prefill = sequence.prefill_end();
}

void SequenceTable::preempt(std::uint32_t slot) {
  Sequence& sequence = sequences_[slot];
  release_blocks(sequence);
  sequence.group = nullptr;
  sequence.is_ending = false;
  sequence.is_lost = false;
  sequence.phase = Phase::waiting;
  sequence.n_prefill = sequence.prefill_end();
  ++sequence.n_preempted;
}

void SequenceTable::assign(std::uint32_t slot, Group* group) {
  Sequence& sequence = sequences_[slot];
  LUNA_ASSERT(sequence.phase == Phase::waiting);
  sequence.group = group;
  sequence.hit = {};
  sequence.n_computed = 0;
}

void SequenceTable::remove(std::uint32_t slot) {
  Sequence& sequence = sequences_[slot];
  LUNA_ASSERT(is_live(slot));
  release_blocks(sequence);
  sequence.request = nullptr;
}

void SequenceTable::drop_removed() {
  const auto end = std::remove_if(order_.begin(), order_.end(), [this](std::uint32_t slot) {
    if (is_live(slot)) return false;
    free_slots_.push_back(slot);
    return true;
  });
  order_.erase(end, order_.end());
}

}  // namespace luna::engine
