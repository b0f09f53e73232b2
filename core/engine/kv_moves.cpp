#include "core/engine/kv_moves.hpp"

#include "core/base/assert.hpp"
#include "core/base/units.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

namespace luna::engine {

using telemetry::bump;

KvMoves::KvMoves(const Options& options,
                 const Clock& clock,
                 WakeSignal& wake,
                 telemetry::EngineStats& stats)
    : options_(options),
      clock_(clock),
      stats_(stats),
      copier_(clock, wake, kMax, options.is_on && options.has_thread) {
  if (!options.is_on) return;
  to_recompute_.reserve(kMax);
  for (Move& move : moves_) {
    move.target.reserve(options.n_blocks_per_seq);
    move.source.reserve(options.n_blocks_per_seq);
    move.copy.from_blocks.reserve(options.n_blocks_per_seq);
    move.copy.to_blocks.reserve(options.n_blocks_per_seq);
  }
}

bool KvMoves::can_move(const Sequence& sequence, const Group& to) {
  return sequence.group != &to && can_copy_kv(sequence.group->model, to.model);
}

bool KvMoves::can_begin(const Sequence& sequence) const {
  const bool is_free =
      std::ranges::any_of(moves_, [](const Move& move) { return move.phase == Phase::none; });
  // A step that prunes writes blocks that were finished; and while choices of a prompt come, their
  // blocks change hands.
  const bool is_whole = sequence.request->forked || sequence.request->choices.size() == 1;
  return options_.is_on && is_free && is_whole && sequence.phase != engine::Phase::waiting &&
         sequence.n_away == 0 && sequence.n_moving == 0 && sequence.moving_to == nullptr &&
         !sequence.is_ending && !sequence.is_prune_due() && !sequence.request->is_replay;
}

void KvMoves::begin(Sequence& sequence, Group& to, std::uint32_t step_tokens_max) {
  Move& move = *std::ranges::find(moves_, Phase::none, &Move::phase);
  move.slot = sequence.slot;
  move.from = sequence.group;
  move.to = &to;
  move.n_rounds = 0;
  sequence.moving_to = &to;
  const std::uint32_t n_full = (sequence.n_finished() - sequence.n_pruned) / options_.block_tokens;
  to.prefixes.find_computed(sequence, n_full, move.target);
  move.n_found = move.n_copied = static_cast<std::uint32_t>(move.target.size());
  for (std::uint32_t b = 0; b < move.n_found; ++b) {
    to.pool.share(move.target[b], holder_of(move));
    // From the first on: who holds a block with a key holds those before it.
    hold_source(move, sequence.blocks[b]);
  }
  move.recomputes = is_copy_slower(sequence, to, move.n_found, step_tokens_max);
  if (move.recomputes) {
    pause(move, sequence);
    return;
  }
  move.phase = Phase::copying;
  if (!take_blocks(move, sequence.n_blocks)) {
    give_up(move, sequence);
    return;
  }
  copy_to(move, sequence, n_full);
}

// What of it is not in the other group's prefix cache, copied or computed.
bool KvMoves::is_copy_slower(const Sequence& sequence,
                             const Group& to,
                             std::uint32_t n_found,
                             std::uint32_t step_tokens_max) const {
  const double first = double{1} * n_found * options_.block_tokens;
  const double n = sequence.n_finished() - sequence.n_pruned - first;
  const StepCosts& costs = to.cost_fit.costs();
  const double n_steps = std::ceil(n / step_tokens_max);
  const double compute_ns = costs.fixed_ns * n_steps + costs.per_row_ns * n +
                            costs.per_kv_token_ns * (n * first + n * (n + 1.0) / 2.0);
  const double n_bytes = n / options_.block_tokens * static_cast<double>(to.model.kv_block_bytes);
  // Without either number it is copied: the copy is what does not take time from others' steps.
  return compute_ns > 0.0 && n_bytes * copier_.ns_per_byte() > compute_ns;
}

// A block that is free may still be read by steps in flight there, also as what they copy first: a
// later step writes it behind them, but a copy of ours has no place in the order of steps.
bool KvMoves::take_blocks(Move& move, std::uint32_t n_blocks) const {
  if (move.target.size() < n_blocks) move.barrier = move.to->n_steps;
  while (move.target.size() < n_blocks) {
    const std::optional<std::uint32_t> block = move.to->pool.allocate(holder_of(move));
    if (!block) return false;
    move.target.push_back(*block);
  }
  return true;
}

void KvMoves::hold_source(Move& move, std::uint32_t block) {
  move.from->pool.share(block, holder_of(move));
  move.source.push_back(block);
}

// Starts the copy of those that are not there yet.
void KvMoves::copy_to(Move& move, const Sequence& sequence, std::uint32_t n_blocks) {
  KvCopy& copy = move.copy;
  copy.from = &move.from->model;
  copy.to = &move.to->model;
  copy.from_blocks.clear();
  copy.to_blocks.clear();
  for (std::uint32_t b = move.n_copied; b < n_blocks; ++b) {
    hold_source(move, sequence.blocks[b]);
    copy.from_blocks.push_back(sequence.blocks[b]);
    copy.to_blocks.push_back(move.target[b]);
  }
  copy.is_urgent = move.phase == Phase::last;
  move.n_copied = std::max(move.n_copied, n_blocks);
  ++move.n_rounds;
  bump(stats_.n_moved_blocks, copy.from_blocks.size());
  move.starts = true;
  start(move);
}

// Starts the copy, unless it has to wait for steps. Returns whether it began.
bool KvMoves::start(Move& move) {
  const std::uint64_t n_ended = move.to->n_steps - move.to->lanes.n_in_flight();
  if (n_ended < move.barrier) return false;
  move.starts = false;
  copier_.start(move.copy);
  return true;
}

bool KvMoves::go_on(SequenceTable& sequences) {
  to_recompute_.clear();
  bool any = false;
  for (Move& move : moves_) {
    if (move.phase == Phase::none || !move.copy.has_ended()) continue;
    if (move.starts) {
      any |= start(move);
      continue;
    }
    const Phase before = move.phase;
    go_on(move, sequences);
    any |= move.phase != before || move.phase == Phase::copying;
  }
  return any;
}

void KvMoves::go_on(Move& move, SequenceTable& sequences) {
  if (move.phase == Phase::ending) {
    release(move);
    return;
  }
  Sequence& sequence = sequences[move.slot];
  if (move.copy.state.load(std::memory_order_acquire) == KvCopy::State::failed) {
    bump(stats_.n_moves_failed, 1);
    move.from->gives_no_kv |= move.copy.failed_at == KvCopy::Side::from;
    move.to->takes_no_kv |= move.copy.failed_at == KvCopy::Side::to;
    give_up(move, sequence);
    return;
  }
  if (move.phase == Phase::copying) {
    const std::uint32_t n_full =
        (sequence.n_finished() - sequence.n_pruned) / options_.block_tokens;
    // One block more will be there anyhow when the sequence stands still.
    const bool runs_on = n_full > move.n_copied + 1 && move.n_rounds < kRoundsMax;
    if (!runs_on) {
      pause(move, sequence);
    } else if (take_blocks(move, n_full)) {
      copy_to(move, sequence, n_full);
    } else {
      give_up(move, sequence);
    }
    return;
  }
  if (move.phase == Phase::last) {
    arrive(move, sequence);
  } else if (!sequence.in_step()) {
    copy_rest(move, sequence);
  }
}

void KvMoves::pause(Move& move, Sequence& sequence) {
  sequence.is_paused = true;
  move.phase = Phase::pausing;
  move.paused_at = clock_.now();
}

// The sequence stands still: what is left is its last blocks.
void KvMoves::copy_rest(Move& move, Sequence& sequence) {
  if (move.recomputes) {
    to_recompute_.push_back(move.slot);
    return;
  }
  const std::uint32_t n_blocks = div_ceil(sequence.next_slot(), options_.block_tokens);
  if (!take_blocks(move, n_blocks)) {
    give_up(move, sequence);
    return;
  }
  move.phase = Phase::last;
  copy_to(move, sequence, n_blocks);
}

// All is there: the sequence is the other group's from now on.
void KvMoves::arrive(Move& move, Sequence& sequence) {
  LUNA_ASSERT(!sequence.in_step());
  const std::uint32_t n_blocks = div_ceil(sequence.next_slot(), options_.block_tokens);
  for (std::uint32_t b = sequence.n_blocks; b-- > 0;)
    move.from->pool.release(sequence.blocks[b], move.slot);
  for (std::uint32_t b = 0; b < n_blocks; ++b) {
    sequence.blocks[b] = move.target[b];
    move.to->pool.share(move.target[b], move.slot);
  }
  sequence.n_blocks = n_blocks;
  sequence.n_keyed = move.n_found;
  sequence.n_draft = 0;
  sequence.hit = {};
  sequence.group = move.to;
  sequence.note(Disturbance::moved);
  sequence.moving_to = nullptr;
  sequence.is_paused = false;
  release(move);
  sequence.group->prefixes.keep(sequence);
  bump(stats_.n_moves, 1);
  stats_.move_pause_seconds.observe(telemetry::seconds(clock_.now() - move.paused_at));
}

void KvMoves::give_up(Move& move, Sequence& sequence) {
  sequence.moving_to = nullptr;
  sequence.is_paused = false;
  release(move);
}

void KvMoves::withdraw(Sequence& sequence) {
  if (sequence.moving_to == nullptr) return;
  const auto found = std::ranges::find_if(moves_, [&](const Move& move) {
    return move.phase != Phase::none && move.phase != Phase::ending && move.slot == sequence.slot;
  });
  LUNA_VERIFY(found != moves_.end());
  sequence.moving_to = nullptr;
  sequence.is_paused = false;
  found->phase = Phase::ending;
  found->copy.is_cancelled.store(true, std::memory_order_relaxed);
  if (found->copy.has_ended()) release(*found);
}

// Gives the blocks back on both sides, last to first.
void KvMoves::release(Move& move) {
  const std::uint32_t holder = holder_of(move);
  for (; !move.target.empty(); move.target.pop_back())
    move.to->pool.release(move.target.back(), holder);
  for (; !move.source.empty(); move.source.pop_back())
    move.from->pool.release(move.source.back(), holder);
  move.copy.state.store(KvCopy::State::idle, std::memory_order_relaxed);
  move.starts = false;
  move.barrier = 0;
  move.phase = Phase::none;
}

bool KvMoves::uses(const Group& group) const {
  return std::ranges::any_of(moves_, [&group](const Move& move) {
    return move.phase != Phase::none && (move.from == &group || move.to == &group);
  });
}

void KvMoves::count_references(const Group& group, std::span<std::uint32_t> counts) const {
  for (const Move& move : moves_) {
    if (move.phase == Phase::none) continue;
    if (move.from == &group)
      for (const std::uint32_t block : move.source)
        ++counts[block];
    if (move.to == &group)
      for (const std::uint32_t block : move.target)
        ++counts[block];
  }
}

}  // namespace luna::engine
