// What changes logits before a token is drawn, and what narrows the choice. Pure functions on
// caller's memory; nothing allocates.
#pragma once

#include "core/model/compiled_model.hpp"
#include "core/pipeline/request.hpp"

#include <array>
#include <bit>
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
/// Relative error below 2.5e-7. Inline, so that loops over a vocabulary become vectors.
[[nodiscard]] inline float exp_of_negative(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // 355 / 512: n times it is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kLeast = -87.0F;  // below, the result would be subnormal
  const float clamped = x < kLeast ? kLeast : x;
  // Adding 1.5 * 2^23 rounds to the nearest integer.
  const float n = (clamped * kLog2E + 12582912.0F) - 12582912.0F;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  // Taylor coefficients: |r| <= ln 2 / 2, so the eighth term is below 1e-7 of the sum.
  float y = 1.0F / 5040.0F;
  y = y * r + 1.0F / 720.0F;
  y = y * r + 1.0F / 120.0F;
  y = y * r + 1.0F / 24.0F;
  y = y * r + 1.0F / 6.0F;
  y = y * r + 0.5F;
  y = y * r + 1.0F;
  y = y * r + 1.0F;
  const auto exponent = static_cast<std::uint32_t>(static_cast<std::int32_t>(n) + 127) << 23U;
  return x < kLeast ? 0.0F : y * std::bit_cast<float>(exponent);
}

/// The sum in double precision: eight partial sums by index, added as a tree.
[[nodiscard]] double sum_of(std::span<const float> values);

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
/// Finds the least weight that top-p can keep without sorting: weights are gathered in buckets of
/// nearly equal size, from the largest down. Bounded memory, no allocation. [engine]
class TopPThreshold {
 public:
  /// A weight below which the head of share p does not reach; a little lower than need be.
  /// weights are in 0..1, the largest is 1. Cost  O(n)
  float find(std::span<const float> weights, float p, double total);

 private:
  // Exponent and four bits of mantissa: a bucket is at most 1/16 wide.
  static constexpr unsigned kShift = 19;
  static constexpr std::size_t kBuckets = (std::size_t{127} << 4U) + 1;
  std::array<double, kBuckets> sums_{};
};

/// Moves the locally typical ones to the front, in falling order, and returns how many they are:
/// the least set, by distance of surprise from the entropy, whose share reaches p.
/// order, distances: scratch, [n] each. Source  Meister et al. 2022
[[nodiscard]] std::size_t keep_typical(WeightedList list,
                                       float p,
                                       std::span<std::uint32_t> order,
                                       std::span<double> distances);

}  // namespace luna::engine
