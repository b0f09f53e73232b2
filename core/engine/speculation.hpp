// Speculation: what a sequence will probably say next, and how much of it is worth verifying.
#pragma once

#include "core/engine/draft_lengths.hpp"
#include "core/engine/draft_model.hpp"
#include "core/engine/kv_pool.hpp"
#include "core/engine/ngram_index.hpp"
#include "core/engine/sequence.hpp"
#include "core/engine/step_cost.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace luna::engine {

/// How often the drafts of a sequence were right, token by token, by how much text had matched.
/// Older tokens count less. A value.
class DraftRecord {
 public:
  void note(std::uint32_t n_matched, bool was_right);
  /// That the next token of a draft is right, given those before it were.
  [[nodiscard]] double p_right(std::uint32_t n_matched) const;

 private:
  struct Tally {
    double n_tokens = 0.0;
    double n_right = 0.0;
  };
  static constexpr std::size_t kClasses = 5;  // of matches: below 4, 6, 10, 18 tokens, longer
  static std::size_t class_of(std::uint32_t n_matched);

  std::array<Tally, kClasses> tallies_{};
};

/// When drafts are tried again where rows seemed to fill the steps. A group has its own.
struct DraftPause {
  static constexpr std::uint32_t kRetrySteps = 64;
  static constexpr std::uint32_t kRetryStepsMax = 1024;

  std::uint32_t n_blocked = 0;  ///< steps in a row whose rows seemed to fill them
  std::uint32_t n_blocked_max = kRetrySteps;

  [[nodiscard]] bool is_over() const { return n_blocked >= n_blocked_max; }
  /// A step was planned: whether its rows seemed to fill it, and whether drafts were tried though.
  void note(bool is_blocked, bool is_retry);
};

/// How many tokens of a draft to verify.
///
/// A row more makes the step longer by `row_ns`; in that time the steps alone would have brought
/// `row_share` tokens. Its own token counts when it and all before it are right. So the draft ends
/// where p_right^k falls below that share. Drafts end by themselves where rows fill the step: there
/// the share nears 1.
[[nodiscard]] std::uint32_t n_worth_verifying(double p_right,
                                              double row_share,
                                              std::uint32_t n_max);

/// Makes drafts, watches how often they are right, and offers the part of them that pays to the
/// scheduler (Sequence::n_draft). What is drawn does not depend on drafts: each position is drawn
/// by the sampler as ever, and the first token that is not the draft's ends the step's run
/// (Engine::Impl::verify).
///
/// By look-up of what followed the last tokens before, drafts are also made, and compared with what
/// is drawn, where none is offered: that costs a look-up, and shows when they would pay again. Only
/// where not even a certain token would pay, they are left out, and tried again after a while.
///
/// By a draft model, a token costs time before it is offered: so it is decided first who gets how
/// many (choose()), and all that were made are offered. A sequence whose drafts do not pay, and all
/// of them where rows fill the step, are tried again after a while with a short one. Allocates at
/// construction only. [engine], owned by the engine.
class Speculation {
 public:
  /// What a step has room for.
  struct Limits {
    std::uint32_t n_slots = 0;
    std::uint32_t n_rows_max = 0;
    std::uint32_t n_draft_rows_max = 0;  ///< logits rows beyond one a sequence
    std::uint32_t kv_block_tokens = 0;
  };
  Speculation(const SpeculationOptions& options, const Limits& limits);

  [[nodiscard]] bool is_on() const { return options_.n_draft_max > 0; }

  /// What the draft model shall do before the next step.
  struct Round {
    std::span<const DraftWish> wishes;  ///< none: nothing; valid until the next call
    std::uint32_t n_rows_max = 0;       ///< of its first step: no longer than the target's, about
  };
  /// Decides which sequences the draft model drafts for. Before offer(); no step runs.
  Round choose(const SequenceTable& sequences, Group& group, const DraftModel& model);
  /// Sets n_draft of every sequence of the group that is in no step. Before each plan.
  ///
  /// model  none: drafts are looked up
  void offer(SequenceTable& sequences, Group& group, const DraftModel* model);
  /// The draft of a sequence that was offered one.
  [[nodiscard]] std::span<const pipeline::TokenId> draft(std::uint32_t slot) const {
    return {drafts_.data() + std::size_t{slot} * options_.n_draft_max, states_[slot].n_draft};
  }
  /// The next token of the sequence was drawn.
  void note(std::uint32_t slot, pipeline::TokenId drawn);

 private:
  struct State {
    std::uint64_t row_id = 0;  // whose it is
    std::uint32_t n_draft = 0;
    std::uint32_t n_matched = 0;  // tokens
    std::uint32_t n_noted = 0;    // tokens of the draft that were drawn, all of them right
    DraftRecord record{};
    // ---- by a draft model
    std::uint32_t n_idle = 0;  // steps in a row in which others were drafted for
    std::uint32_t n_idle_max = 0;
  };
  /// What the step without drafts takes of its bounds, and what is left.
  struct Room {
    std::uint32_t n_rows = 0;
    std::int64_t n_blocks = 0;
    StepLoad load;
    double step_ns = 0.0;
  };

  [[nodiscard]] Room room_beside(const SequenceTable& sequences, const Group& group) const;
  [[nodiscard]] double row_share(const Sequence& sequence,
                                 const Room& room,
                                 const StepCosts& costs) const;
  void make_draft(std::uint32_t slot, Sequence& sequence);
  void copy_draft(std::uint32_t slot, const Sequence& sequence, const DraftModel& model);
  void add_candidate(std::uint32_t slot,
                     const Sequence& sequence,
                     const Room& room,
                     const StepCosts& costs,
                     const DraftModel& model);
  bool choose_lengths(const Room& room, const DraftModel& model, DraftPause& pause);
  void retry_idle(bool any_drafts);
  [[nodiscard]] static std::uint32_t n_left(const Sequence& sequence);
  State& state_of(std::uint32_t slot, const Sequence& sequence);
  void fit(Sequence& sequence, std::uint32_t n_wanted, Room& room) const;

  const SpeculationOptions options_;
  const Limits limits_;
  std::vector<DraftCandidate> candidates_;  // [n_slots]
  std::vector<DraftWish> wishes_;           // [n_slots]
  std::vector<State> states_;               // by slot
  std::vector<pipeline::TokenId> drafts_;   // [n_slots, n_draft_max]
};

}  // namespace luna::engine
