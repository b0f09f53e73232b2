#include "core/engine/sampler.hpp"

#include "core/base/assert.hpp"

#include <luna/abi/backend.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace luna::engine {
namespace {

using model::Candidate;
using pipeline::SamplingParams;
using pipeline::TokenId;
using pipeline::TokenLogprob;

// Below, one part in e^100 separates logits 0.001 apart: the draw is the largest logit.
constexpr float kGreedyBelow = 1e-5F;
// Log-probabilities are at least this, so that no infinity reaches a client.
constexpr float kLogprobMin = -9999.0F;

bool is_greedy(const SamplingParams& params) {
  return params.temperature < kGreedyBelow || params.top_k == 1 || params.top_p <= 0.0F;
}

bool has_edits(const DrawContext& context) {
  const SamplingParams& params = context.params;
  return params.repetition_penalty != 1.0F || params.presence_penalty != 0.0F ||
         params.frequency_penalty != 0.0F || !params.logit_bias.empty() ||
         !context.allowed.empty() || !context.masked.empty();
}

bool has_filters(const SamplingParams& params) {
  return params.top_k > 0 || params.top_p < 1.0F || params.min_p > 0.0F || params.typical_p < 1.0F;
}

/// Whether a row's candidates usually decide the draw: they stand in falling order, and below
/// temperature 1 what they leave is even less than the log-sum-exp says.
bool is_led_by_candidates(const DrawContext& context) {
  const SamplingParams& params = context.params;
  if (has_edits(context) || is_greedy(params) || params.temperature > 1.0F || params.top_k > 0)
    return false;
  return params.typical_p >= 1.0F || params.top_p < 1.0F || params.min_p > 0.0F;
}

/// Eight at a time: one chain of comparisons would wait for each.
template <typename Logit>
float largest_of(std::size_t n, Logit logit) {
  constexpr std::size_t kLanes = 8;
  std::array<float, kLanes> largest;
  largest.fill(-std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      largest[lane] = std::max(largest[lane], logit(i + lane));
  for (; i < n; ++i)
    largest[0] = std::max(largest[0], logit(i));
  return *std::max_element(largest.begin(), largest.end());
}

float clamp_logprob(float logit, float log_sum_exp) {
  const float logprob = logit - log_sum_exp;
  return logprob > kLogprobMin ? std::min(logprob, 0.0F) : kLogprobMin;
}

/// The row's own log-sum-exp where candidates were not asked for.
float log_sum_exp(const LogitsRow& row) {
  if (!row.candidates.empty()) return row.log_sum_exp;
  float largest = -std::numeric_limits<float>::infinity();
  for (const float logit : row.logits)
    largest = std::max(largest, logit);
  double total = 0.0;
  for (const float logit : row.logits)
    total += exp_of_negative(logit - largest);
  return largest + static_cast<float>(std::log(total));
}

}  // namespace

Sampler::Sampler(std::uint32_t vocab_size, std::uint32_t n_candidates)
    : vocab_size_(vocab_size),
      n_candidates_(n_candidates),
      edited_(vocab_size),
      entries_(vocab_size),
      weights_(vocab_size),
      order_(vocab_size),
      distances_(vocab_size),
      chunk_sums_(vocab_size / kChunk + 1),
      top_(vocab_size),
      counts_(vocab_size) {}

bool Sampler::is_served_by_candidates(const DrawContext& context) const {
  if (has_edits(context)) return false;
  return is_greedy(context.params) ||
         (context.params.top_k > 0 && context.params.top_k <= n_candidates_);
}

std::uint32_t Sampler::output_flags(const DrawContext& context,
                                    const pipeline::LogprobParams& logprobs) const {
  std::uint32_t flags = is_served_by_candidates(context) ? LUNA_OUT_CANDIDATES : LUNA_OUT_LOGITS;
  if (is_led_by_candidates(context)) flags |= LUNA_OUT_CANDIDATES;
  if (logprobs.enabled) {
    flags |= LUNA_OUT_CANDIDATES;
    if (logprobs.n_top > n_candidates_) flags |= LUNA_OUT_LOGITS;
  }
  return flags;
}

Draw Sampler::draw(const LogitsRow& row, const DrawContext& context) {
  survivors_ = {};
  const UniformPair uniform =
      uniform01(context.params.seed, context.choice_idx, context.output.size());
  if (is_served_by_candidates(context)) {
    if (const DrawOutcome outcome = take_candidates(row); outcome != DrawOutcome::drawn)
      return {.outcome = outcome};
  } else {
    LUNA_ASSERT(row.logits.size() == vocab_size_);
    const bool is_led = is_led_by_candidates(context);
    if (is_led) {
      if (const auto draw = draw_from_head(row, context.params, uniform)) return *draw;
    }
    if (!is_drawable(row.logits)) return {.outcome = DrawOutcome::not_finite};
    std::span<const float> logits = row.logits;
    if (has_edits(context)) {
      std::copy(row.logits.begin(), row.logits.end(), edited_.begin());
      edit(edited_, context);
      logits = edited_;
    }
    const bool all = context.allowed.empty();
    if (all && !has_filters(context.params) && !is_greedy(context.params)) {
      return is_led ? draw_around_head(row, context.params, uniform)
                    : draw_from_all(logits, context.params.temperature, uniform.first);
    }
    list(logits, context.allowed);
    if (survivors_.empty()) return {.outcome = DrawOutcome::nothing_allowed};
  }
  narrow(context.params);
  if (survivors_.size() == 1) return {.token_id = survivors_[0].token_id};
  return {.token_id = survivors_[pick(survivors_.size(), uniform.first)].token_id};
}

// The weight of all that are not candidates is at most this; survivors_ and weights_ are those of
// the candidates. What weighs w at temperature 1 weighs w^(1/t) = w * w^(1/t - 1) at t <= 1, and
// beyond the candidates w is at most the last one's.
double Sampler::rest_bound(float log_sum_exp, float temperature) const {
  const double largest = largest_;
  const double all = std::exp(log_sum_exp - largest);
  double candidates = 0.0;
  for (const Candidate& candidate : survivors_)
    candidates += std::exp(candidate.logit - largest);
  // The log-sum-exp is a float: a few units of its last place, as a share of the sum.
  const double slack = (std::abs(double{log_sum_exp}) + 32.0) * 0x1p-21;
  const double rest = std::max(all - candidates, 0.0) + slack * all;
  const double last = std::exp(survivors_.back().logit - largest);
  return rest * std::pow(last, 1.0 / double{temperature} - 1.0) + slack * total_;
}

// A draw that is the same whatever the tokens beyond the candidates weigh, if there is one. Without
// filters the first number decides between the candidates and the rest, the second among them.
std::optional<Draw> Sampler::draw_from_head(const LogitsRow& row,
                                            const SamplingParams& params,
                                            const UniformPair& uniform) {
  constexpr double kRounding = 1e-6;  // of weights that should be in order, and of their sums
  if (const DrawOutcome outcome = take_candidates(row); outcome != DrawOutcome::drawn)
    return Draw{.outcome = outcome};
  weigh(params.temperature);
  const std::span<const float> weights = std::span(weights_).first(survivors_.size());
  const double most = total_ + rest_bound(row.log_sum_exp, params.temperature);
  if (!has_filters(params)) {
    if (!(uniform.first * most < total_)) return std::nullopt;
    const TokenId id = survivors_[pick(survivors_.size(), uniform.second)].token_id;
    survivors_ = {};  // all might have come
    return Draw{.token_id = id};
  }
  if (params.top_p < 1.0F) {
    const std::size_t n = head_by_top_p(weights, params.top_p, most);
    const double least = total_ * (1.0 - kRounding);
    if (n == weights.size() || n != head_by_top_p(weights, params.top_p, least))
      return std::nullopt;
  } else if (weights.back() >= (1.0 - kRounding) * params.min_p * weights[0]) {
    return std::nullopt;  // some beyond the candidates may be as likely
  }
  narrow_sorted(params);
  return Draw{.token_id = survivors_[pick(survivors_.size(), uniform.first)].token_id};
}

// The draw without filters where the candidates did not decide it: the rest is weighed too.
Draw Sampler::draw_around_head(const LogitsRow& row,
                               const SamplingParams& params,
                               const UniformPair& uniform) {
  (void)take_candidates(row);
  weigh(params.temperature);
  const std::span<Candidate> head = std::exchange(survivors_, {});
  const double head_total = total_;
  for (std::size_t i = 0; i < vocab_size_; ++i)
    weights_[i] = exp_of_negative((row.logits[i] - largest_) * factor_);
  for (const Candidate& candidate : head)
    weights_[candidate.token_id] = 0.0F;
  double rest = 0.0;
  for (std::size_t first = 0; first < vocab_size_; first += kChunk)
    rest += sum_of(std::span(weights_).subspan(first, std::min(kChunk, vocab_size_ - first)));
  if (rest > 0.0 && uniform.first * (head_total + rest) >= head_total)
    return {.token_id = static_cast<TokenId>(pick(vocab_size_, uniform.second))};
  weigh_list(head);
  return {.token_id = head[pick(head.size(), uniform.second)].token_id};
}

DrawOutcome Sampler::take_candidates(const LogitsRow& row) {
  LUNA_ASSERT(!row.candidates.empty());
  if (!std::isfinite(row.log_sum_exp) || !std::isfinite(row.candidates[0].logit))
    return DrawOutcome::not_finite;
  const std::size_t n = std::min<std::size_t>(row.candidates.size(), vocab_size_);
  std::copy_n(row.candidates.begin(), n, entries_.begin());
  survivors_ = std::span(entries_).first(n);
  return DrawOutcome::drawn;
}

// Every token that may be drawn, in order of ids.
void Sampler::list(std::span<const float> logits, std::span<const TokenId> allowed) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  std::size_t n = 0;
  if (allowed.empty()) {
    for (TokenId id = 0; id < vocab_size_; ++id)
      if (logits[id] > kNever) entries_[n++] = {logits[id], id};
  } else {
    for (const TokenId id : allowed)
      if (logits[id] > kNever) entries_[n++] = {logits[id], id};
  }
  survivors_ = std::span(entries_).first(n);
}

// Temperature alone: no list is needed, the weights stand in order of ids.
Draw Sampler::draw_from_all(std::span<const float> logits, float temperature, double uniform) {
  const float largest = largest_of(logits.size(), [&](std::size_t i) { return logits[i]; });
  if (largest == -std::numeric_limits<float>::infinity())
    return {.outcome = DrawOutcome::nothing_allowed};
  const float factor = 1.0F / temperature;
  float* const weights = weights_.data();
  for (std::size_t i = 0; i < logits.size(); ++i)
    weights[i] = exp_of_negative((logits[i] - largest) * factor);
  return {.token_id = static_cast<TokenId>(pick(logits.size(), uniform))};
}

// The index where the sum of the weights up to it passes the share `uniform` of the whole.
std::size_t Sampler::pick(std::size_t n, double uniform) {
  const std::span<const float> weights = std::span(weights_).first(n);
  double total = 0.0;
  for (std::size_t c = 0; c * kChunk < n; ++c) {
    chunk_sums_[c] = sum_of(weights.subspan(c * kChunk, std::min(kChunk, n - c * kChunk)));
    total += chunk_sums_[c];
  }
  double rest = total * uniform;
  std::size_t chunk = 0;
  while ((chunk + 1) * kChunk < n && rest >= chunk_sums_[chunk])
    rest -= chunk_sums_[chunk++];
  std::size_t last = 0;  // rounding may leave the sum below the target: the last possible one
  for (std::size_t i = chunk * kChunk; i < std::min(n, (chunk + 1) * kChunk); ++i) {
    if (weights[i] <= 0.0F) continue;
    last = i;
    rest -= weights[i];
    if (rest < 0.0) return i;
  }
  if (weights[last] > 0.0F) return last;
  while (weights[last = --n] <= 0.0F) {  // the largest weight is 1, so there is one
  }
  return last;
}

void Sampler::edit(std::span<float> logits, const DrawContext& context) {
  apply_penalties(logits, context.params, context.prompt, context.output, counts_);
  apply_bias(logits, context.params);
  for (const TokenId id : context.masked)
    logits[id] = -std::numeric_limits<float>::infinity();
}

// Leaves in survivors_ what temperature and filters keep, with its weights. Lists that a filter
// has touched stand in falling order, whatever they were made of, so that the draw is the same
// from candidates and from a full row.
void Sampler::narrow(const SamplingParams& params) {
  if (is_greedy(params)) {
    const auto first = std::min_element(survivors_.begin(), survivors_.end(), stands_before);
    std::swap(survivors_[0], *first);
    survivors_ = survivors_.first(1);
    return;
  }
  if (params.top_k > 0) survivors_ = survivors_.first(sort_head(params.top_k));
  weigh(params.temperature);
  if (!has_filters(params)) return;
  if (params.top_k == 0) narrow_unsorted(params);
  narrow_sorted(params);
}

void Sampler::narrow_sorted(const SamplingParams& params) {
  const auto weights = [this] { return std::span(weights_).first(survivors_.size()); };
  if (params.top_p < 1.0F)
    survivors_ = survivors_.first(head_by_top_p(weights(), params.top_p, total_));
  if (params.min_p > 0.0F) survivors_ = survivors_.first(head_by_min_p(weights(), params.min_p));
  if (params.typical_p < 1.0F) {
    const std::size_t n =
        keep_typical({survivors_, weights()}, params.typical_p, order_, distances_);
    survivors_ = survivors_.first(n);
  }
}

// Drops what top-p or min-p will drop anyway, so that few are left to sort.
void Sampler::narrow_unsorted(const SamplingParams& params) {
  const std::span<const float> weights = std::span(weights_).first(survivors_.size());
  if (params.top_p < 1.0F) {
    narrow_by_weight(threshold_.find(weights, params.top_p, total_));
  } else if (params.min_p > 0.0F) {
    narrow_by_weight(params.min_p);
  }
  sort_head(survivors_.size());
  weigh_list(survivors_);
}

void Sampler::narrow_by_weight(float least) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < survivors_.size(); ++i)
    if (weights_[i] >= least) survivors_[n++] = survivors_[i];
  survivors_ = survivors_.first(n);
}

// weights_[i] = exp((logit - largest) / temperature); the largest is 1.
void Sampler::weigh(float temperature) {
  largest_ = largest_of(survivors_.size(), [this](std::size_t i) { return survivors_[i].logit; });
  factor_ = 1.0F / temperature;  // at most 1 / kGreedyBelow
  weigh_list(survivors_);
  total_ = sum_of(std::span(weights_).first(survivors_.size()));
}

// The weights of a list by the last weighing's largest logit and temperature.
void Sampler::weigh_list(std::span<const Candidate> list) {
  const float largest = largest_;
  const float factor = factor_;
  float* const weights = weights_.data();
  const Candidate* const entries = list.data();
  const std::size_t n = list.size();
  for (std::size_t i = 0; i < n; ++i)
    weights[i] = exp_of_negative((entries[i].logit - largest) * factor);
}

// Brings the n first of the order to the front, sorted.
std::size_t Sampler::sort_head(std::size_t n) {
  n = std::min(n, survivors_.size());
  const auto middle = survivors_.begin() + static_cast<std::ptrdiff_t>(n);
  if (n < survivors_.size()) {
    std::nth_element(survivors_.begin(), middle, survivors_.end(), stands_before);
  }
  std::sort(survivors_.begin(), middle, stands_before);
  return n;
}

float Sampler::logprob(const LogitsRow& row, TokenId token_id) {
  if (!row.logits.empty()) return clamp_logprob(row.logits[token_id], log_sum_exp(row));
  for (const Candidate& candidate : row.candidates)
    if (candidate.token_id == token_id) return clamp_logprob(candidate.logit, row.log_sum_exp);
  return kLogprobMin;
}

std::span<const TokenLogprob> Sampler::top_logprobs(const LogitsRow& row, std::uint32_t n) {
  const float total = log_sum_exp(row);
  if (n <= row.candidates.size()) {
    for (std::uint32_t i = 0; i < n; ++i)
      top_[i] = {row.candidates[i].token_id, clamp_logprob(row.candidates[i].logit, total)};
    return std::span(top_).first(n);
  }
  n = std::min(n, vocab_size_);
  for (TokenId id = 0; id < vocab_size_; ++id)
    entries_[id] = {row.logits[id], id};
  const auto middle = entries_.begin() + static_cast<std::ptrdiff_t>(n);
  std::partial_sort(entries_.begin(), middle, entries_.end(), stands_before);
  for (std::uint32_t i = 0; i < n; ++i)
    top_[i] = {entries_[i].token_id, clamp_logprob(entries_[i].logit, total)};
  return std::span(top_).first(n);
}

}  // namespace luna::engine
