// Partitions of sequences on their way to other groups and back.
#pragma once

#include "core/engine/kv_copier.hpp"
#include "core/engine/kv_pool.hpp"
#include "core/engine/sequence.hpp"
#include "core/engine/step_plan.hpp"

#include <luna/abi/scheduler.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace luna::engine {

/// Partitions that are being copied, or whose old blocks steps in flight still read. A holder of
/// its own in the pools: of the new blocks while they are copied, of the old ones to the end.
struct SliceMove {
  enum class State : std::uint8_t { unused, copying, retiring };

  State state = State::unused;
  bool is_abandoned = false;  ///< copying: the sequence has given its KV back
  bool starts = false;        ///< copying: the copy waits for steps of to before it begins
  std::uint32_t holder = 0;   ///< its number in the pools
  std::uint32_t slot = 0;
  std::uint64_t row_id = 0;       ///< of the sequence: others use the slot when it has ended
  std::uint32_t first_block = 0;  ///< of the sequence
  Group* home = nullptr;          ///< the sequence's group
  Group* from = nullptr;
  Group* to = nullptr;
  KvCopy copy;                      ///< the old blocks and the new ones
  std::uint64_t n_steps_to = 0;     ///< of to, that end before the copy begins
  std::uint64_t n_steps_begun = 0;  ///< retiring: of home, when the copy took effect

  [[nodiscard]] std::uint32_t n_blocks() const {
    return static_cast<std::uint32_t>(copy.from_blocks.size());
  }
  /// Whether blocks of the sequence are being copied, or those that they were copied from are still
  /// read.
  [[nodiscard]] bool is_of(const Sequence& sequence) const {
    const bool is_under_way = state == State::copying ? !is_abandoned : state == State::retiring;
    return is_under_way && slot == sequence.slot && row_id == sequence.row_id;
  }
};

/// Carries out what plans SLICE. New blocks are taken at once and filled beside the steps; at the
/// border of steps after that they take the old ones' place, which are given back when no step in
/// flight reads them any more. Allocates when it is made only. [engine], owned by the engine.
class KvSlices {
 public:
  static constexpr std::uint32_t kMovesMax = LUNA_SLICES_COPYING_MAX;

  struct Options {
    std::uint32_t first_holder = 0;  ///< kMovesMax numbers from here on are the moves' in all pools
    std::uint32_t n_blocks_per_seq = 0;
    bool is_on = false;      ///< there may be several groups
    bool has_thread = true;  ///< false: copies are made at once, for virtual time
  };
  /// clock, wake  outlive it
  KvSlices(const Options& options, const Clock& clock, WakeSignal& wake);

  /// Moves that could begin now.
  [[nodiscard]] std::uint32_t n_free() const { return n_free_; }
  /// Whether any is being copied: its end is the next thing to happen.
  [[nodiscard]] bool is_copying() const { return n_copying_ > 0; }
  [[nodiscard]] const std::deque<SliceMove>& moves() const { return moves_; }

  /// The gate has seen to it that all of it is legal.
  void begin(Sequence& sequence, const PlannedSlice& planned);
  /// Copies that are finished take effect, old blocks that nobody reads are given back. Called
  /// between steps. Returns whether anything changed.
  bool settle(SequenceTable& sequences);
  /// The sequence gives its KV back: what is being copied of it is given back when that has ended.
  void abandon(Sequence& sequence);

  /// Whether any of it reads or writes the group's blocks, or waits for its steps.
  [[nodiscard]] bool uses(const Group& group) const;
  /// Adds the references that it holds in the group's pool.
  void count_references(const Group& group, std::span<std::uint32_t> counts) const;

  [[nodiscard]] std::uint64_t n_moved() const { return n_moved_; }
  [[nodiscard]] std::uint64_t n_failed() const { return n_failed_; }

 private:
  bool start(SliceMove& move);
  void take_effect(SliceMove& move, Sequence& sequence);
  void give_new_back(SliceMove& move);
  void give_old_back(SliceMove& move);

  std::deque<SliceMove> moves_;  // [kMovesMax], or none
  std::uint32_t n_free_ = 0;
  std::uint32_t n_copying_ = 0;
  std::uint64_t n_moved_ = 0;
  std::uint64_t n_failed_ = 0;
  KvCopier copier_;  // last: its thread reads the moves
};

/// Whether sequences of one group may lie on devices of the other: these serve it, attend with
/// equal bits, and their blocks are equal.
bool may_slice(const Group& home, const Group& guest);

/// Positions [first, end) of a sequence that a plan may SLICE: whole partitions that are finished
/// and that it alone uses.
struct SliceRange {
  std::uint32_t first = 0;
  std::uint32_t end = 0;
};
SliceRange sliceable(const Sequence& sequence, std::uint32_t block_tokens);

}  // namespace luna::engine
