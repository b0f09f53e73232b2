// Sequences that change groups with their KV, while they run.
#pragma once

#include "core/base/clock.hpp"
#include "core/engine/group.hpp"
#include "core/engine/kv_copier.hpp"
#include "core/engine/sequence.hpp"
#include "core/telemetry/engine_stats.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace luna::engine {

/// A move copies the blocks that are finished while the sequence runs on, again for those that were
/// finished meanwhile, and holds the sequence still only for the last few: no step writes a block
/// that is being copied. What the other group's prefix cache holds is not copied. Until all is
/// there, the sequence belongs to its old group, and a move that fails leaves it there. The move
/// itself holds the blocks on both sides, as a holder of its own, so that they stay whatever
/// becomes of the sequence. Allocates at construction only. [engine], owned by the engine; groups
/// and sequences outlive it.
class KvMoves {
 public:
  /// At a time. They share one thread: more would only each take longer.
  static constexpr std::uint32_t kMax = 16;

  struct Options {
    std::uint32_t n_slots = 0;           ///< holders of blocks below it are sequences
    std::uint32_t n_blocks_per_seq = 0;  ///< of the longest
    std::uint32_t block_tokens = 0;
    bool is_on = false;      ///< there may be several groups
    bool has_thread = true;  ///< false: copies are made at once, for virtual time
  };
  KvMoves(const Options& options,
          const Clock& clock,
          WakeSignal& wake,
          telemetry::EngineStats& stats);

  /// Moves that could begin now.
  [[nodiscard]] std::uint32_t n_free() const {
    return static_cast<std::uint32_t>(std::ranges::count(moves_, Phase::none, &Move::phase));
  }
  /// Whether one is under way: its end brings the next plan.
  [[nodiscard]] bool is_moving() const {
    return std::ranges::any_of(moves_, [](const Move& move) { return move.phase != Phase::none; });
  }
  /// Whether the KV of a group's sequences can go to another group.
  [[nodiscard]] static bool can_move(const Sequence& sequence, const Group& to);
  /// Whether a sequence that holds KV could go now.
  [[nodiscard]] bool can_begin(const Sequence& sequence) const;
  /// Begins a move that there can be now; the group has as many blocks as the sequence holds. One
  /// whose KV is computed faster than copied stops at its next step border: see go_on().
  ///
  /// step_tokens_max  of a step that would compute it
  void begin(Sequence& sequence, Group& to, std::uint32_t step_tokens_max);
  /// Goes on with every move whose copy has ended. Returns whether any did.
  bool go_on(SequenceTable& sequences);
  /// Sequences that stand still to be computed anew where they go: their `moving_to`. Each is
  /// withdrawn before the next go_on().
  [[nodiscard]] std::span<const std::uint32_t> to_recompute() const { return to_recompute_; }
  /// The sequence does not move any more: it ends, waits, or stays where it is.
  void withdraw(Sequence& sequence);

  /// Whether a move reads or writes the group's blocks.
  [[nodiscard]] bool uses(const Group& group) const;
  /// Adds the references that moves hold in the group's pool.
  void count_references(const Group& group, std::span<std::uint32_t> counts) const;

 private:
  enum class Phase : std::uint8_t {
    none,
    copying,  // the sequence runs
    pausing,  // it shall stand still once its step has ended
    last,     // it stands still while the rest is copied
    ending,   // withdrawn, while a copy is under way
  };
  struct Move {
    Phase phase = Phase::none;
    bool recomputes = false;
    std::uint32_t slot = 0;
    Group* from = nullptr;
    Group* to = nullptr;
    std::uint32_t n_found = 0;   // blocks that were there
    std::uint32_t n_copied = 0;  // blocks, from the first on, that are there or on their way
    std::uint32_t n_rounds = 0;
    bool starts = false;        // the copy, once the steps before the barrier have ended there
    std::uint64_t barrier = 0;  // number of the last of them
    Nanoseconds paused_at{0};
    std::vector<std::uint32_t> target;  // blocks there, held
    std::vector<std::uint32_t> source;  // blocks here, held
    KvCopy copy;
  };
  // Of finished blocks are copied beside steps; then what is left is copied at a stand.
  static constexpr std::uint32_t kRoundsMax = 4;

  [[nodiscard]] std::uint32_t holder_of(const Move& move) const {
    return options_.n_slots + static_cast<std::uint32_t>(&move - moves_.data());
  }
  [[nodiscard]] bool is_copy_slower(const Sequence& sequence,
                                    const Group& to,
                                    std::uint32_t n_found,
                                    std::uint32_t step_tokens_max) const;
  [[nodiscard]] bool take_blocks(Move& move, std::uint32_t n_blocks) const;
  bool start(Move& move);
  void hold_source(Move& move, std::uint32_t block);
  void copy_to(Move& move, const Sequence& sequence, std::uint32_t n_blocks);
  void go_on(Move& move, SequenceTable& sequences);
  void pause(Move& move, Sequence& sequence);
  void copy_rest(Move& move, Sequence& sequence);
  void arrive(Move& move, Sequence& sequence);
  void give_up(Move& move, Sequence& sequence);
  void release(Move& move);

  const Options options_;
  const Clock& clock_;
  telemetry::EngineStats& stats_;
  std::array<Move, kMax> moves_;
  std::vector<std::uint32_t> to_recompute_;  // slots
  KvCopier copier_;                          // last: its thread reads the moves
};

}  // namespace luna::engine
