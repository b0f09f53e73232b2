// A second, smaller model that says what a sequence will probably say next.
#pragma once

#include "core/base/clock.hpp"
#include "core/engine/kv_pool.hpp"
#include "core/engine/sequence.hpp"
#include "core/engine/step_cost.hpp"
#include "core/engine/step_rows.hpp"
#include "core/engine/step_runner.hpp"
#include "core/model/compiled_model.hpp"

#include <luna/abi/backend.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace luna::engine {

/// A draft that is worth making.
struct DraftWish {
  std::uint32_t slot = 0;
  std::uint32_t n_draft = 0;  ///< tokens, at least one
};

/// Runs the draft model between two steps of the target, on the engine's thread, in rounds: its
/// first step computes what the draft model has not seen of each sequence and gives each its first
/// token, each further step gives one more token to all that wish it. Tokens are greedy.
///
/// Each sequence that drafts has KV of the draft model, in blocks of a pool of its own. It is
/// computed when a draft is first wished, as many tokens a step as fit, and lives until the
/// sequence ends, waits or finds no block. What was computed of tokens that were then not drawn is
/// forgotten when the next round begins: the text itself says how far it is right. Nothing of it is
/// shared with the target, whose prefix cache does not know of it.
///
/// A step that fails loses all draft KV and no sequence: they go on without drafts. Allocates at
/// construction only. [engine], owned by the engine.
class DraftModel {
 public:
  struct Limits {
    std::uint32_t n_slots = 0;      ///< of the sequence table
    std::uint32_t n_draft_max = 0;  ///< tokens of a draft
  };
  /// model, clock and wake outlive it; wake is set when a step has ended.
  DraftModel(const model::CompiledModel& model,
             const Clock& clock,
             WakeSignal& wake,
             const Limits& limits);

  /// Sequences that one round serves.
  [[nodiscard]] std::uint32_t n_seqs_max() const { return limits_of_step_.n_seqs_max; }
  /// Tokens that a draft of the sequence may have, by the draft model's context and whether it may
  /// look for blocks in this round; 0: none.
  [[nodiscard]] std::uint32_t n_draft_max(std::uint32_t slot, const Sequence& sequence) const;
  /// Tokens of the sequence that a round would have to compute before it drafts.
  [[nodiscard]] std::uint32_t n_missing(std::uint32_t slot, const Sequence& sequence) const;
  /// What its steps cost; all are 0 before the first.
  [[nodiscard]] const StepCosts& costs() const { return cost_fit_.costs(); }
  /// Whether a step ran that only drafted: before it, costs are those of computing texts.
  [[nodiscard]] bool is_measured() const { return is_measured_; }
  /// False once its steps have failed too often: it drafts nothing any more.
  [[nodiscard]] bool is_usable() const;

  /// Begins a round; none is under way. At most n_seqs_max() wishes, each of a decoding sequence.
  ///
  /// n_rows_max  rows of its first step, if the wishes need no more: so long the others wait
  /// Returns     false when no sequence found room: there is no round
  bool begin(const SequenceTable& sequences,
             std::span<const DraftWish> wishes,
             std::uint32_t n_rows_max);
  [[nodiscard]] bool is_running() const { return runner_.is_busy(); }
  /// Whether the step under way has ended on every device.
  [[nodiscard]] bool is_done() { return runner_.is_done(); }

  enum class Progress : std::uint8_t { goes_on, ended, failed };
  /// The step has ended: takes its tokens and starts the next of the round, if there is one. No
  /// sequence has changed since begin().
  Progress go_on(const SequenceTable& sequences);
  /// Takes the step that has ended and starts no other.
  void abandon() { runner_.collect(); }
  /// What go_on() failed with; valid until the next round.
  [[nodiscard]] const StepRunner::Outcome& failure() const { return failure_; }

  /// The draft that the last rounds made for the sequence as it stands; may be empty.
  [[nodiscard]] std::span<const pipeline::TokenId> draft(std::uint32_t slot,
                                                         const Sequence& sequence) const;
  /// Frees what sequences hold that ended or wait. No round is under way.
  void sweep(const SequenceTable& sequences);

  [[nodiscard]] std::uint64_t n_steps() const { return n_steps_; }
  [[nodiscard]] std::uint64_t n_submits() const { return runner_.n_submits(); }
  [[nodiscard]] std::uint32_t n_blocks_used() const { return pool_.n_used(); }
  /// Recounts the blocks; empty when all is well, else static text.
  [[nodiscard]] std::string_view audit() const;

 private:
  /// A sequence as the draft model has it.
  struct State {
    std::uint64_t row_id = 0;  // whose it is; 0: nobody's
    std::uint32_t n_blocks = 0;
    std::uint32_t n_computed = 0;  // tokens whose KV is there, those of the draft included
    std::uint32_t n_base = 0;      // tokens of the sequence when it was drafted for
    std::uint32_t n_draft = 0;     // tokens that were drafted then
    std::uint32_t n_wanted = 0;
    std::uint64_t blocked_until = 0;  // a round: before it, it looks for no blocks
  };
  /// A sequence of the step under way.
  struct Entry {
    std::uint32_t slot = 0;
    std::uint32_t n_tokens = 0;
    std::optional<std::uint32_t> out_row;  // when the step reaches its last token
  };

  [[nodiscard]] pipeline::TokenId* tokens_of(std::uint32_t slot) {
    return drafts_.data() + std::size_t{slot} * limits_.n_draft_max;
  }
  [[nodiscard]] const pipeline::TokenId* tokens_of(std::uint32_t slot) const {
    return drafts_.data() + std::size_t{slot} * limits_.n_draft_max;
  }
  [[nodiscard]] std::uint32_t n_agreed(std::uint32_t slot, const Sequence& sequence) const;
  bool prepare(const DraftWish& wish, const Sequence& sequence);
  bool take_blocks(std::uint32_t slot);
  void release(std::uint32_t slot);
  void release_all();
  void submit(const SequenceTable& sequences);
  void add_rows(std::uint32_t slot, const Sequence& sequence, std::uint32_t n_tokens);
  bool take_token(const Entry& entry);
  Progress fail(const StepRunner::Outcome& outcome);

  const model::CompiledModel& model_;
  const Clock& clock_;
  const Limits limits_;
  const model::StepLimits limits_of_step_;
  const std::uint32_t block_table_stride_;
  KvPool pool_;
  StepRunner runner_;
  StepCostFit cost_fit_;
  std::vector<State> states_;              // by slot
  std::vector<std::uint32_t> blocks_;      // [n_slots, block_table_stride]
  std::vector<pipeline::TokenId> drafts_;  // [n_slots, n_draft_max]
  std::vector<std::uint32_t> holders_;     // slots with a state of somebody's
  std::vector<std::uint32_t> round_;       // slots that the next step of the round serves
  // ---- the step under way
  std::vector<Entry> entries_;  // [n_seqs_max]
  StepRows rows_;
  Nanoseconds submitted_{0};
  std::uint32_t n_rows_max_ = 0;  // of the round's first step
  std::uint64_t n_rounds_ = 0;
  std::uint64_t n_steps_ = 0;
  std::uint32_t n_failures_ = 0;
  bool is_measured_ = false;
  StepRunner::Outcome failure_;
};

}  // namespace luna::engine
