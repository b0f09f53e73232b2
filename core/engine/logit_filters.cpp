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

double sum_of(std::span<const float> values) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] += values[i + lane];
  for (std::size_t lane = 0; i + lane < values.size(); ++lane)
    sums[lane] += values[i + lane];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
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

float TopPThreshold::find(std::span<const float> weights, float p, double total) {
  sums_.fill(0.0);
  for (const float w : weights)
    sums_[std::min<std::size_t>(std::bit_cast<std::uint32_t>(w) >> kShift, kBuckets - 1)] += w;
  const double wanted = double{p} * total;
  std::size_t bucket = kBuckets - 1;
  for (double sum = sums_[bucket]; sum < wanted && bucket > 0;)
    sum += sums_[--bucket];
  // One more, since the sums of buckets round otherwise than the sum in falling order.
  if (bucket > 0) --bucket;
  return std::bit_cast<float>(static_cast<std::uint32_t>(bucket << kShift));
}

std::size_t keep_typical(WeightedList list,
                         float p,
                         std::span<std::uint32_t> order,
                         std::span<double> distances) {
  const std::size_t n = list.weights.size();
  if (n == 0) return 0;
  const double total = sum_of(list.weights);
  double entropy = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    const double share = list.weights[i] / total;
    distances[i] = -std::log(share);  // surprise; infinite for a weight of 0
    if (share > 0.0) entropy += share * distances[i];
  }
  for (std::size_t i = 0; i < n; ++i)
    distances[i] = std::abs(distances[i] - entropy);
  order = order.first(n);
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return distances[a] < distances[b] || (distances[a] == distances[b] && a < b);
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
