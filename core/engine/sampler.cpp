#include "core/engine/sampler.hpp"

#include "core/base/assert.hpp"
#include "core/base/counter_rng.hpp"

#include <luna/abi/backend.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace luna::engine {
namespace {

using model::Candidate;
using pipeline::SamplingParams;
using pipeline::TokenId;
using pipeline::TokenLogprob;

// Below, one part in e^100 separates logits 0.001 apart: the draw is the largest logit.
constexpr float kGreedyBelow = 1e-5F;
// First length of the sorted head for top-p; most rows end within it.
constexpr std::size_t kHeadFirst = 256;
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
  if (logprobs.enabled) {
    flags |= LUNA_OUT_CANDIDATES;
    if (logprobs.n_top > n_candidates_) flags |= LUNA_OUT_LOGITS;
  }
  return flags;
}

Draw Sampler::draw(const LogitsRow& row, const DrawContext& context) {
  survivors_ = {};
  if (const DrawOutcome outcome = collect(row, context); outcome != DrawOutcome::drawn)
    return {.outcome = outcome};
  narrow(context.params);
  if (survivors_.size() == 1) return {.token_id = survivors_[0].token_id};

  double total = 0.0;
  for (std::size_t i = 0; i < survivors_.size(); ++i)
    total += weights_[i];
  const double target =
      total * uniform01(context.params.seed, context.choice_idx, context.output.size());
  double sum = 0.0;
  std::size_t last = 0;  // rounding may leave the sum below the target: the last possible one
  for (std::size_t i = 0; i < survivors_.size(); ++i) {
    if (weights_[i] <= 0.0F) continue;
    last = i;
    sum += weights_[i];
    if (sum > target) break;
  }
  return {.token_id = survivors_[last].token_id};
}

// Fills survivors_ with every token that may be drawn.
DrawOutcome Sampler::collect(const LogitsRow& row, const DrawContext& context) {
  if (is_served_by_candidates(context)) {
    LUNA_ASSERT(!row.candidates.empty());
    if (!std::isfinite(row.log_sum_exp) || !std::isfinite(row.candidates[0].logit))
      return DrawOutcome::not_finite;
    const std::size_t n = std::min<std::size_t>(row.candidates.size(), vocab_size_);
    std::copy_n(row.candidates.begin(), n, entries_.begin());
    survivors_ = std::span(entries_).first(n);
    return DrawOutcome::drawn;
  }
  LUNA_ASSERT(row.logits.size() == vocab_size_);
  if (!is_drawable(row.logits)) return DrawOutcome::not_finite;
  std::span<const float> logits = row.logits;
  if (has_edits(context)) {
    std::copy(row.logits.begin(), row.logits.end(), edited_.begin());
    edit(edited_, context);
    logits = edited_;
  }
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  std::size_t n = 0;
  if (context.allowed.empty()) {
    for (TokenId id = 0; id < vocab_size_; ++id)
      if (logits[id] > kNever) entries_[n++] = {logits[id], id};
  } else {
    for (const TokenId id : context.allowed)
      if (logits[id] > kNever) entries_[n++] = {logits[id], id};
  }
  survivors_ = std::span(entries_).first(n);
  return n > 0 ? DrawOutcome::drawn : DrawOutcome::nothing_allowed;
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
  if (!has_filters(params)) {
    weigh(params.temperature);
    return;
  }
  std::size_t n_sorted = 0;
  if (params.top_k > 0) {
    n_sorted = sort_head(params.top_k);
    survivors_ = survivors_.first(n_sorted);
  }
  weigh(params.temperature);
  if (params.top_p < 1.0F) {
    n_sorted = narrow_by_top_p(params.top_p, n_sorted);
    survivors_ = survivors_.first(n_sorted);
  }
  if (n_sorted < survivors_.size()) {  // min-p or typical alone
    if (params.min_p > 0.0F) {
      std::size_t n = 0;
      for (std::size_t i = 0; i < survivors_.size(); ++i)
        if (weights_[i] >= params.min_p) survivors_[n++] = survivors_[i];
      survivors_ = survivors_.first(n);
    }
    sort_head(survivors_.size());
    weigh_again(survivors_.size());
  }
  if (params.min_p > 0.0F) {
    const std::span<const float> weights = std::span(weights_).first(survivors_.size());
    survivors_ = survivors_.first(head_by_min_p(weights, params.min_p));
  }
  if (params.typical_p < 1.0F) {
    const std::span<float> weights = std::span(weights_).first(survivors_.size());
    const std::size_t n = keep_typical({survivors_, weights}, params.typical_p, order_);
    survivors_ = survivors_.first(n);
  }
}

// weights_[i] = exp((logit - largest) / temperature); the largest is 1.
void Sampler::weigh(float temperature) {
  largest_ = -std::numeric_limits<float>::infinity();
  for (const Candidate& entry : survivors_)
    largest_ = std::max(largest_, entry.logit);
  factor_ = 1.0F / temperature;  // at most 1 / kGreedyBelow
  weigh_again(survivors_.size());
}

// The weights of the first n, after they were sorted or thinned out.
void Sampler::weigh_again(std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    weights_[i] = exp_of_negative((survivors_[i].logit - largest_) * factor_);
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

// Sorts as much of the list as top-p needs: the sum over all is taken first, in the order of ids.
std::size_t Sampler::narrow_by_top_p(float p, std::size_t n_sorted) {
  double total = 0.0;
  for (std::size_t i = 0; i < survivors_.size(); ++i)
    total += weights_[i];
  const bool sorted = n_sorted == survivors_.size();
  for (std::size_t n = sorted ? n_sorted : kHeadFirst;; n *= 8) {
    const std::size_t n_head = sorted ? n_sorted : sort_head(n);
    if (!sorted) weigh_again(n_head);
    const std::span<const float> head = std::span(weights_).first(n_head);
    const std::size_t n_kept = head_by_top_p(head, p, total);
    if (n_kept < n_head || n_head == survivors_.size()) return n_kept;
  }
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
