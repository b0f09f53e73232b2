// One logits row to one token.
#pragma once

#include "core/base/counter_rng.hpp"
#include "core/engine/logit_filters.hpp"
#include "core/model/compiled_model.hpp"
#include "core/pipeline/request.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace luna::engine {

/// A row as the step left it. Which parts are filled is what output_flags() asked for.
struct LogitsRow {
  std::span<const float> logits;                 ///< [vocab], or empty
  std::span<const model::Candidate> candidates;  ///< [k], falling, ties to the lowest id; or empty
  float log_sum_exp = 0.0F;                      ///< comes with the candidates
};

/// What a draw depends on besides the row.
struct DrawContext {
  const pipeline::SamplingParams& params;
  std::span<const pipeline::TokenId> prompt;
  std::span<const pipeline::TokenId> output;
  std::span<const pipeline::TokenId> allowed;  ///< ascending; empty: all
  std::span<const pipeline::TokenId> masked;   ///< never drawn
  std::uint32_t choice_idx = 0;
};

enum class DrawOutcome : std::uint8_t {
  drawn,
  not_finite,       // the model's row has a NaN or an infinity
  nothing_allowed,  // bias and masks leave no token
};

struct Draw {
  DrawOutcome outcome = DrawOutcome::drawn;
  pipeline::TokenId token_id = 0;
};

/// Draws tokens. Order of what is applied: repetition, presence and frequency penalties, bias,
/// masks, temperature, top-k, top-p, min-p, typical; each filter sees what the one before left.
/// The draw is a function of the row, the context and (seed, choice, number of the token) alone:
/// candidates or full row, alone or in a batch, the token is the same.
///
/// Most draws never look at the whole row: its candidates hold nearly all of the probability, and
/// what they leave is bounded by the row's log-sum-exp. Only where that bound leaves open what the
/// draw is, the row is read.
///
/// Allocates at construction only. [engine], owned by the engine.
class Sampler {
 public:
  Sampler(std::uint32_t vocab_size, std::uint32_t n_candidates);

  /// LUNA_OUT_* that a row must have for this draw and these log-probabilities.
  [[nodiscard]] std::uint32_t output_flags(const DrawContext& context,
                                           const pipeline::LogprobParams& logprobs) const;

  [[nodiscard]] Draw draw(const LogitsRow& row, const DrawContext& context);

  /// The log-probability of a token in the model's own row, before anything was applied.
  [[nodiscard]] static float logprob(const LogitsRow& row, pipeline::TokenId token_id);
  /// The n most likely tokens, falling. Valid until the next call.
  [[nodiscard]] std::span<const pipeline::TokenLogprob> top_logprobs(const LogitsRow& row,
                                                                     std::uint32_t n);

  /// The tokens that the last draw chose among; empty: all of the row. For tests.
  [[nodiscard]] std::span<const model::Candidate> survivors() const { return survivors_; }

 private:
  [[nodiscard]] bool is_served_by_candidates(const DrawContext& context) const;
  [[nodiscard]] std::optional<Draw> draw_from_head(const LogitsRow& row,
                                                   const pipeline::SamplingParams& params,
                                                   const UniformPair& uniform);
  [[nodiscard]] Draw draw_around_head(const LogitsRow& row,
                                      const pipeline::SamplingParams& params,
                                      const UniformPair& uniform);
  [[nodiscard]] double rest_bound(float log_sum_exp, float temperature) const;
  [[nodiscard]] DrawOutcome take_candidates(const LogitsRow& row);
  void list(std::span<const float> logits, std::span<const pipeline::TokenId> allowed);
  [[nodiscard]] Draw draw_from_all(std::span<const float> logits,
                                   float temperature,
                                   double uniform);
  [[nodiscard]] std::size_t pick(std::size_t n, double uniform);
  void edit(std::span<float> logits, const DrawContext& context);
  void narrow(const pipeline::SamplingParams& params);
  void narrow_sorted(const pipeline::SamplingParams& params);
  void weigh(float temperature);
  void weigh_list(std::span<const model::Candidate> list);
  std::size_t sort_head(std::size_t n);
  void narrow_by_weight(float least);
  void narrow_unsorted(const pipeline::SamplingParams& params);

  // Weights are summed in chunks, so that a draw looks at one chunk only.
  static constexpr std::size_t kChunk = 512;

  const std::uint32_t vocab_size_;
  const std::uint32_t n_candidates_;
  std::vector<float> edited_;              // [vocab]
  std::vector<model::Candidate> entries_;  // [vocab]
  std::vector<float> weights_;             // [vocab]
  std::vector<std::uint32_t> order_;       // [vocab], scratch of typical sampling
  std::vector<double> distances_;          // [vocab], scratch of typical sampling
  std::vector<double> chunk_sums_;         // [ceil(vocab / kChunk)]
  TopPThreshold threshold_;
  std::vector<pipeline::TokenLogprob> top_;  // [vocab]
  TokenCounts counts_;
  std::span<model::Candidate> survivors_;  // in entries_
  float largest_ = 0.0F;                   // of the last weighing: the logit
  double total_ = 0.0;                     // the sum of the weights
  float factor_ = 1.0F;                    // 1 / temperature
};

}  // namespace luna::engine
