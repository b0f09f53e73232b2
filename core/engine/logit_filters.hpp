// What changes logits before a token is drawn, and what narrows the choice. Pure functions on
// caller's memory; nothing allocates.
#pragma once

#include "core/model/compiled_model.hpp"
#include "core/pipeline/request.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace luna::engine {

/// Counts tokens of a text. Cleared in the time it was filled in, not in that of the vocabulary.
class TokenCounts {
 public:
  explicit TokenCounts(std::uint32_t vocab_size) : counts_(vocab_size) {
    seen_.reserve(vocab_size);
  }

  void add(std::span<const pipeline::TokenId> ids);
  void clear();
  /// Tokens counted, each once, in the order they first came.
  [[nodiscard]] std::span<const pipeline::TokenId> seen() const { return seen_; }
  [[nodiscard]] std::uint32_t count(pipeline::TokenId id) const { return counts_[id]; }

 private:
  std::vector<std::uint32_t> counts_;  // by token
  std::vector<pipeline::TokenId> seen_;
};

/// Repetition first: each token of prompt and output, once; a positive logit is divided by the
/// penalty, any other multiplied. Then, for the output's tokens alone, presence once and frequency
/// for each time are subtracted.
///
/// Source  Keskar et al. 2019 (CTRL), section 4.1; OpenAI API reference, presence and frequency
void apply_penalties(std::span<float> logits,
                     const pipeline::SamplingParams& params,
                     std::span<const pipeline::TokenId> prompt,
                     std::span<const pipeline::TokenId> output,
                     TokenCounts& scratch);
void apply_bias(std::span<float> logits, const pipeline::SamplingParams& params);

/// Whether a row can be drawn from: no NaN and no +infinity. Minus infinity means "never".
[[nodiscard]] bool is_drawable(std::span<const float> logits);

/// exp(x) for x <= 0, by a polynomial, so that no library decides the bits. 0 below -87.
/// Relative error below 2e-7.
[[nodiscard]] float exp_of_negative(float x);

/// probabilities[i] of logits[i]. A row that is masked everywhere gives zeros. [n], [n]
void softmax(std::span<const float> logits, std::span<float> probabilities);

/// True when a stands before b: the larger logit, of equal ones the lower id.
[[nodiscard]] inline bool stands_before(const model::Candidate& a, const model::Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token_id < b.token_id);
}

/// Candidates with weights: exp((logit - largest) / temperature). [n] each
struct WeightedList {
  std::span<model::Candidate> candidates;
  std::span<float> weights;
};

/// Each of these takes a list in falling order and returns how many of its head stay, at least one
/// of a list that has any.

/// The least head whose share of `total` reaches p. The list may be the head of a longer one: all
/// of it is the answer when it does not reach p.
[[nodiscard]] std::size_t head_by_top_p(std::span<const float> weights, float p, double total);
/// Those with at least min_p of the largest probability. Source  Nguyen et al. 2024
[[nodiscard]] std::size_t head_by_min_p(std::span<const float> weights, float min_p);
/// Moves the locally typical ones to the front, in falling order, and returns how many they are:
/// the least set, by distance of surprise from the entropy, whose share reaches p.
/// scratch: [n] indices. Source  Meister et al. 2022
[[nodiscard]] std::size_t keep_typical(WeightedList list,
                                       float p,
                                       std::span<std::uint32_t> scratch);

}  // namespace luna::engine
