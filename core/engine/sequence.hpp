// Sequences: how far each has come, which KV blocks it holds, and in what order they arrived.
#pragma once

#include "core/base/clock.hpp"
#include "core/base/units.hpp"
#include "core/engine/kv_pool.hpp"
#include "core/engine/live_request.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace luna::engine {

struct Group;

enum class Phase : std::uint8_t { waiting, prefill, decode };

/// The blocks of the prefix cache that a waiting sequence would start with, as they were found.
struct PrefixHit {
  std::uint32_t n_blocks = 0;
  std::uint32_t last = 0;     ///< of them, if there are any
  std::uint32_t stamp = 0;    ///< of the last
  std::uint32_t n_given = 0;  ///< keys below the last, or of first blocks, when that was looked up
  std::uint64_t version = 0;  ///< of the keys when they were looked up
};

/// One prompt with its generated tokens: a choice of a request, from its first row in the
/// scheduler's table to its end. Lives in a SequenceTable.
struct Sequence {
  std::uint64_t row_id = 0;  ///< stable, increasing with arrival
  std::uint32_t slot = 0;    ///< in the table: the holder of its blocks
  /// Whose devices compute it; none: it waits to be given to one. Outlives its sequences.
  Group* group = nullptr;
  bool is_held = false;  ///< waiting: no group could hold it now, and no plan sees it
  Nanoseconds held_since{0};
  Group* moving_to = nullptr;    ///< that its KV is being copied to; see KvMoves
  bool is_paused = false;        ///< it moves, and computes nothing until it is there
  std::uint32_t n_failures = 0;  ///< steps in a row that computed it and failed
  LiveRequest* request = nullptr;
  std::uint32_t choice_idx = 0;
  Phase phase = Phase::waiting;
  std::uint32_t n_steps = 0;    ///< in flight that compute tokens of it; several: of its prompt
  bool is_ending = false;       ///< its steps in flight are its last
  bool is_lost = false;         ///< and one of them has failed
  std::uint32_t n_prefill = 0;  ///< tokens to compute before it decodes
  /// Tokens whose KV is there, or will be when its steps in flight have ended; waiting: in the
  /// prefix cache.
  std::uint32_t n_computed = 0;
  std::uint32_t n_unfinished = 0;  ///< of these, the last, of steps in flight
  std::uint32_t n_cached = 0;      ///< of these, what others computed
  std::uint32_t n_prune = 0;       ///< positions its prompt loses once it is computed; 0: none
  std::uint32_t n_pruned = 0;      ///< positions without KV any more: n_prune or 0
  std::uint32_t n_preempted = 0;
  std::uint32_t* blocks = nullptr;  ///< [n_blocks] of the table's row; waiting: [hit.n_blocks]
  std::uint32_t n_blocks = 0;       ///< held
  /// By block: the group that holds it; null: its own. Null itself where no other can.
  Group** guests = nullptr;
  /// By block that another group holds: share of the latest row's attention that fell on it, the
  /// mean of what lies together; 0: not known yet. Null as guests.
  float* masses = nullptr;
  std::uint32_t n_away = 0;    ///< blocks that other groups hold
  std::uint32_t n_moving = 0;  ///< copies of its blocks under way
  std::uint32_t n_keyed = 0;   ///< of these, the first, which have keys
  PrefixHit hit;
  std::uint32_t n_draft = 0;  ///< tokens that the next step may verify beside its own; decoding
  pipeline::ComputeTrace trace;
  Nanoseconds last_token_at{0};
  Nanoseconds last_step_at{0};  ///< when its last step ended

  /// Whose pool a block of it is in.
  [[nodiscard]] Group* holder_of(std::uint32_t block) const {
    return n_away == 0 || guests[block] == nullptr ? group : guests[block];
  }
  /// Whether another group than its own holds blocks of it, and this is one.
  [[nodiscard]] bool lies_in(const Group* other) const {
    return n_away > 0 && std::find(guests, guests + n_blocks, other) != guests + n_blocks;
  }
  void set_holder(std::uint32_t block, Group* holder) {
    n_away -= guests[block] != nullptr ? 1 : 0;
    guests[block] = holder == group ? nullptr : holder;
    masses[block] = 0.0F;
    n_away += guests[block] != nullptr ? 1 : 0;
  }
  [[nodiscard]] Choice& choice() const { return request->choices[choice_idx]; }
  void note(Disturbance disturbance) const { request->note(disturbance, choice_idx); }
  /// Tokens of one step at most, by its client's wish.
  [[nodiscard]] std::uint32_t n_step_tokens_max() const {
    if (phase == Phase::decode) return UINT32_MAX;
    return request->asked->prompt_chunk_tokens_max.value_or(UINT32_MAX);
  }
  [[nodiscard]] std::uint32_t n_generated() const {
    return static_cast<std::uint32_t>(choice().generated.size());
  }
  [[nodiscard]] std::uint32_t n_tokens() const {
    return static_cast<std::uint32_t>(request->asked->prompt.size()) + n_generated();
  }
  [[nodiscard]] pipeline::TokenId token(std::uint32_t i) const {
    const auto& prompt = request->asked->prompt;
    return i < prompt.size() ? prompt[i] : choice().generated[i - prompt.size()];
  }
  [[nodiscard]] bool in_step() const { return n_steps > 0; }
  [[nodiscard]] std::uint32_t n_finished() const { return n_computed - n_unfinished; }
  /// Where the KV of the next token lies. What is pruned is whole blocks.
  [[nodiscard]] std::uint32_t next_slot() const { return n_computed - n_pruned; }
  [[nodiscard]] bool is_prune_due() const { return n_prune != n_pruned; }
  /// Tokens to compute before it decodes; to the prompt's end first if that is pruned there.
  [[nodiscard]] std::uint32_t prefill_end() const {
    return is_prune_due() ? static_cast<std::uint32_t>(request->asked->prompt.size()) : n_tokens();
  }
  /// Tokens that one more step could compute, at most: when it decodes, one and its draft, and none
  /// before the step that it is in has drawn its next token.
  [[nodiscard]] std::uint32_t n_wanted() const {
    if (is_ending || is_paused) return 0;
    if (phase == Phase::decode) return in_step() ? 0 : 1 + n_draft;
    return n_prefill - n_computed;
  }
  /// Whether a plan may name it.
  [[nodiscard]] bool is_plannable() const {
    return !is_held && !is_paused && (!in_step() || n_wanted() > 0);
  }
  /// KV blocks that it may need, to its end.
  [[nodiscard]] std::uint32_t n_blocks_max(std::uint32_t block_tokens) const {
    const SequenceRequest& asked = *request->asked;
    const auto n_prompt = static_cast<std::uint32_t>(asked.prompt.size());
    return div_ceil(n_prompt + asked.stop.n_generated_max, block_tokens);
  }
};

/// All sequences of an engine in slots made at construction, and their order. [engine]
class SequenceTable {
 public:
  /// n_slots              sequences at most
  /// n_blocks_per_seq     KV blocks that the longest sequence holds
  /// has_guests           whether blocks of a sequence may lie in several groups
  SequenceTable(std::uint32_t n_slots, std::uint32_t n_blocks_per_seq, bool has_guests = false);

  /// Takes a slot for the request's first choice, last in order. There is one: whoever submitted
  /// counted (Engine::submit).
  ///
  /// n_prune  positions that its prompt loses once it is computed
  Sequence& add(LiveRequest& request, std::uint32_t n_prune = 0);
  /// Takes slots for the other choices of a computed prompt, next in order after `first`: they
  /// share its blocks. Returns their slots; valid until the order changes.
  std::span<const std::uint32_t> fork(std::uint32_t first_slot);
  /// The step has pruned the sequence: gives the blocks back that it no longer needs.
  void prune(std::uint32_t slot, std::uint32_t block_tokens);
  /// Gives the sequence's blocks back; it waits for a group and starts again with all its tokens.
  void preempt(std::uint32_t slot);
  /// A waiting sequence goes to the group, or to none: what it found in its old one's prefix cache
  /// does not go along.
  void assign(std::uint32_t slot, Group* group);
  /// Gives blocks and slot back. Call drop_removed() before the order is used again.
  void remove(std::uint32_t slot);
  void drop_removed();

  [[nodiscard]] Sequence& operator[](std::uint32_t slot) { return sequences_[slot]; }
  [[nodiscard]] const Sequence& operator[](std::uint32_t slot) const { return sequences_[slot]; }
  /// Slots in order of arrival.
  [[nodiscard]] std::span<const std::uint32_t> order() const { return order_; }
  [[nodiscard]] bool is_live(std::uint32_t slot) const {
    return sequences_[slot].request != nullptr;
  }
  [[nodiscard]] std::uint32_t n_slots() const {
    return static_cast<std::uint32_t>(sequences_.size());
  }
  [[nodiscard]] std::uint32_t n_blocks_per_seq() const { return n_blocks_per_seq_; }

 private:
  std::uint32_t take_slot();
  static void release_blocks(Sequence& sequence);

  const std::uint32_t n_blocks_per_seq_;
  std::uint64_t next_row_id_ = 1;
  std::vector<Sequence> sequences_;          // by slot
  std::vector<std::uint32_t> block_tables_;  // [n_slots, n_blocks_per_seq]
  std::vector<Group*> guests_;               // the same, or empty
  std::vector<float> masses_;                // as guests_
  std::vector<std::uint32_t> free_slots_;    // a stack
  std::vector<std::uint32_t> order_;
};

}  // namespace luna::engine
