// A request inside the engine: what was asked, with everything its steps will need, made before it
// enters so that no step allocates.
#pragma once

#include "core/engine/engine.hpp"
#include "core/engine/prefix_tree.hpp"
#include "core/text/detokenizer.hpp"
#include "core/text/stop_matcher.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace luna::engine {

/// What may happen to a sequence while it runs, and must not change its answer.
enum class Disturbance : std::uint8_t {
  sliced = 1,      ///< a part of its KV went to another group of devices, or came back
  moved = 2,       ///< it went to another group itself
  recomputed = 4,  ///< it began anew when what held it failed or left
};

/// One of the n answers of a request: its tokens, and how they become text. Made on the submitting
/// thread; from then on [engine].
class Choice {
 public:
  Choice(const SequenceRequest& asked,
         std::size_t idx,
         const text::Tokenizer& tokenizer,
         const NgramLengths& ngrams);

  /// Takes the next token: text, stop strings, stream. Not visible before publish().
  ///
  /// ends      the token ends the sequence; its text is not sent
  /// Returns   why the sequence ends with it, if it does
  std::optional<pipeline::FinishReason> accept(pipeline::TokenId token_id,
                                               bool ends,
                                               float logprob,
                                               std::span<const pipeline::TokenLogprob> top);
  void finish(const pipeline::StreamEnd& end);
  /// Shows what was accepted, except tokens after a stop string that is still being decided.
  /// Returns how many tokens became visible.
  std::uint32_t publish();
  /// Where the end of the text stood before. `prompt` has the places of the prompt.
  [[nodiscard]] std::optional<NgramMatch> look_up(const SplitText& text,
                                                  const NgramLengths& lengths,
                                                  const NgramIndex& prompt);

  std::vector<pipeline::TokenId> generated;  ///< capacity n_generated_max
  std::uint8_t disturbances = 0;             ///< Disturbance, a bit each

 private:
  bool flush_text();

  std::uint32_t n_generated_max_;
  std::uint32_t n_published_ = 0;
  bool finished_ = false;
  NgramIndex ngrams_;        // of the places past the prompt
  std::uint32_t n_indexed_;  // places that have been added, the prompt's included
  text::Detokenizer detokenizer_;
  text::StopMatcher matcher_;
  std::shared_ptr<pipeline::TokenStream> stream_;  // shared with its reader, who may leave first
};

/// What a request must keep to; fixed for an engine.
struct RequestLimits {
  std::uint32_t vocab_size = 0;
  std::uint32_t n_positions_max = 0;
  std::uint32_t kv_block_tokens = 0;
  std::uint32_t n_kv_blocks = 0;
  std::uint32_t n_choices_max = 0;
  bool prefix_per_tenant = false;
  NgramLengths ngrams{};  ///< that drafts are looked up by
};

/// The answer of Engine::can_fit.
Result<void> check_fit(const RequestLimits& limits,
                       std::uint32_t n_prompt,
                       std::uint32_t n_generated_max,
                       std::uint32_t n_choices);

struct LiveRequest {
  /// Checks every value of the request and allocates its choices. [any]
  ///
  /// Errors  invalid_argument, with the value and what is allowed
  static Result<std::unique_ptr<LiveRequest>> make(std::unique_ptr<SequenceRequest> request,
                                                   const RequestLimits& limits,
                                                   const text::Tokenizer& tokenizer);

  [[nodiscard]] bool ends_with(pipeline::TokenId id) const;
  /// Of the sequence of a choice; of all choices, while one sequence stands for them.
  void note(Disturbance disturbance, std::uint32_t choice_idx);
  /// While nothing may end the sequence, its end tokens cannot be drawn.
  [[nodiscard]] std::span<const pipeline::TokenId> masked_ids(std::uint32_t n_generated) const {
    return n_generated < asked->stop.n_generated_min ? std::span(end_ids)
                                                     : std::span<const pipeline::TokenId>{};
  }

  std::unique_ptr<SequenceRequest> asked;
  std::vector<Choice> choices;
  std::vector<pipeline::TokenId> end_ids;      ///< ascending
  std::vector<pipeline::TokenId> allowed_ids;  ///< ascending; empty: all
  PrefixScope scope;                           ///< its salt lies in `asked`
  NgramIndex prompt_ngrams;                    ///< of the prompt, for all choices
  /// Computed for OutputCheck alone: from nothing, in one group of devices, while nobody waits.
  bool is_replay = false;
  std::uint32_t first_choice = 0;  ///< the first of `choices` is this one of its request

  // ---- [engine]
  std::uint32_t n_open = 0;    ///< choices that have not ended
  bool forked = false;         ///< the other choices have sequences of their own
  bool started = false;        ///< has been in a step
  bool cancelled = false;      ///< by its client, to be carried out at the step border
  std::uint32_t n_cached = 0;  ///< tokens of the prompt that it had not to compute
  telemetry::EndCode end_code = telemetry::EndCode::ok;
  LiveRequest* next = nullptr;  ///< in the list of the finished
};

}  // namespace luna::engine
