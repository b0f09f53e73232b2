#include "core/engine/logit_filters.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace luna::engine {

using pipeline::TokenId;

void TokenCounts::add(std::span<const TokenId> ids) {
  for (const TokenId id : ids)
    if (counts_[id]++ == 0) seen_.push_back(id);
}

void TokenCounts::clear() {
  for (const TokenId id : seen_)
    counts_[id] = 0;
  seen_.clear();
}

void apply_penalties(std::span<float> logits,
                     const pipeline::SamplingParams& params,
                     std::span<const TokenId> prompt,
                     std::span<const TokenId> output,
                     TokenCounts& scratch) {
  if (params.repetition_penalty != 1.0F) {
    scratch.add(prompt);
    scratch.add(output);
    for (const TokenId id : scratch.seen()) {
      float& logit = logits[id];
      logit = logit > 0.0F ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    }
    scratch.clear();
  }
  if (params.presence_penalty != 0.0F || params.frequency_penalty != 0.0F) {
    scratch.add(output);
    for (const TokenId id : scratch.seen()) {
      const auto n = static_cast<float>(scratch.count(id));
      logits[id] -= params.presence_penalty + params.frequency_penalty * n;
    }
    scratch.clear();
  }
}

void apply_bias(std::span<float> logits, const pipeline::SamplingParams& params) {
  for (const auto& [id, bias] : params.logit_bias)
    logits[id] += bias;
}

bool is_drawable(std::span<const float> logits) {
  bool ok = true;
  for (const float logit : logits)
    ok &= logit < std::numeric_limits<float>::infinity();  // false for NaN too
  return ok;
}

float exp_of_negative(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // 355 / 512: n times it is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kLeast = -87.0F;  // below, the result would be subnormal
  const float clamped = x < kLeast ? kLeast : x;
  // Adding 1.5 * 2^23 rounds to the nearest integer.
  const float n = (clamped * kLog2E + 12582912.0F) - 12582912.0F;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  // Taylor coefficients: |r| <= ln 2 / 2, so the seventh term is below 1e-7 of the sum.
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

void softmax(std::span<const float> logits, std::span<float> probabilities) {
  float largest = -std::numeric_limits<float>::infinity();
  for (const float logit : logits)
    largest = std::max(largest, logit);
  if (largest == -std::numeric_limits<float>::infinity()) {
    std::fill(probabilities.begin(), probabilities.end(), 0.0F);
    return;
  }
  double total = 0.0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    probabilities[i] = exp_of_negative(logits[i] - largest);
    total += probabilities[i];
  }
  for (float& p : probabilities)
    p = static_cast<float>(p / total);
}

std::size_t head_by_top_p(std::span<const float> weights, float p, double total) {
  const double wanted = double{p} * total;
  double sum = 0.0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum >= wanted) return i + 1;
  }
  return weights.size();
}

std::size_t head_by_min_p(std::span<const float> weights, float min_p) {
  std::size_t n = 0;
  while (n < weights.size() && weights[n] >= min_p * weights[0])
    ++n;
  return n;
}

std::size_t keep_typical(WeightedList list, float p, std::span<std::uint32_t> scratch) {
  const std::size_t n = list.weights.size();
  if (n == 0) return 0;
  double total = 0.0;
  for (const float w : list.weights)
    total += w;
  double entropy = 0.0;
  for (const float w : list.weights)
    if (w > 0.0F) entropy -= w / total * std::log(w / total);
  const auto distance = [&](std::uint32_t i) {
    const float w = list.weights[i];
    return w > 0.0F ? std::abs(-std::log(w / total) - entropy)
                    : std::numeric_limits<double>::infinity();
  };
  const std::span<std::uint32_t> order = scratch.first(n);
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const double da = distance(a);
    const double db = distance(b);
    return da < db || (da == db && a < b);
  });
  double sum = 0.0;
  std::size_t n_kept = 0;
  while (n_kept < n && (n_kept == 0 || sum < double{p} * total))
    sum += list.weights[order[n_kept++]];
  std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n_kept));
  for (std::size_t i = 0; i < n_kept; ++i) {  // order[i] >= i: nothing is overwritten unread
    list.candidates[i] = list.candidates[order[i]];
    list.weights[i] = list.weights[order[i]];
  }
  return n_kept;
}

}  // namespace luna::engine
