#include "core/model/virtual_copy.hpp"

#include "core/base/assert.hpp"

#include <algorithm>
#include <utility>

namespace luna::model {
namespace {

// What the shipped policies keep to (plugins/scheduler_rules/group_step.hpp, step_share.hpp).
constexpr double kHeadroom = 0.8;
constexpr double kPrefillOverDecode = 0.25;
constexpr double kSteadyShare = 0.6;
constexpr double kPartSlack = 0.5;
constexpr double kTokensEnough = 128.0;
constexpr std::uint32_t kChunkMin = 8;
constexpr double kPartsPerStep = 4.0;
constexpr double kPartMin = 64.0;
constexpr double kPartMinBesideDecoding = 16.0;

/// What a request computed itself it alone asks for again, after a pre-emption.
BlockCache::Key key_of_request(std::uint32_t request) {
  return BlockCache::Key{1} << 32U | request;
}
BlockCache::Key key_of_session(std::uint32_t session) {
  return session;
}

/// A step's cost as the engine fits it: of rounds of equal steps, with so few and so many rows.
StepCost fit(const CopyCost& cost) {
  constexpr double kFew = 16.0;
  constexpr double kMany = 144.0;
  constexpr double kContext = 1'000.0;
  const double few = cost.round_ns({.n_prompt_rows = kFew});
  const double many = cost.round_ns({.n_prompt_rows = kMany});
  const double deep =
      cost.round_ns({.n_prompt_rows = kMany, .n_prompt_kv_tokens = kMany * kContext});
  StepCost fitted;
  fitted.row_ns = std::max(1.0, (many - few) / (kMany - kFew));
  fitted.kv_ns = (deep - many) / (kMany * kContext);
  fitted.fixed_ns = std::max(0.0, few - kFew * fitted.row_ns);
  return fitted;
}

}  // namespace

VirtualCopy::VirtualCopy(const CopyForecast& forecast, std::vector<VirtualRequest>& requests)
    : forecast_(forecast),
      requests_(requests),
      block_tokens_(forecast.kv_block_tokens),
      n_blocks_(static_cast<std::uint32_t>(forecast.kv_tokens / forecast.kv_block_tokens)),
      fitted_(fit(forecast.cost)),
      steps_(forecast.cost.n_lanes()) {}

std::uint32_t VirtualCopy::blocks_of(std::uint64_t n_tokens) const {
  return static_cast<std::uint32_t>((n_tokens + block_tokens_ - 1) / block_tokens_);
}

/// Full blocks of its history, which other requests of its session may use at the same time.
std::uint32_t VirtualCopy::shared_blocks(const VirtualRequest& request) const {
  return request.n_history / block_tokens_;
}

bool VirtualCopy::has_room_ever(const VirtualRequest& request) const {
  return blocks_of(request.n_tokens()) <= n_blocks_;
}

void VirtualCopy::add(std::uint32_t idx) {
  waiting_.push_back(idx);
  count_waiting(idx);
  n_outstanding_ += requests_[idx].n_prompt + requests_[idx].n_output;
}

void VirtualCopy::count_waiting(std::uint32_t idx) {
  n_waiting_tokens_ += requests_[idx].n_prompt + requests_[idx].n_made;
  n_waiting_context_ += requests_[idx].n_prefill();
}

void VirtualCopy::warm(std::uint32_t session, std::uint32_t n_history) {
  const std::uint32_t n = n_history / block_tokens_;
  if (cache_.n_blocks() + n <= n_blocks_) cache_.put(key_of_session(session), n);
}

std::optional<VirtualCopy::Begun> VirtualCopy::begin_step() {
  const auto lane = std::ranges::find(steps_, false, &Step::is_in_flight);
  if (lane == steps_.end()) return std::nullopt;
  Step& step = *lane;
  step.rows.clear();
  step.work = {};
  has_preempted_ = false;
  const double share = n_decoding_ / static_cast<double>(steps_.size());
  take_decoding(std::max<std::size_t>(1, static_cast<std::size_t>(share + 0.5)), step);
  take_prompts(prompt_budget(step), step);
  // Who has waited longest may wait for blocks of others that are not in a step either.
  if (step.rows.empty() && std::ranges::none_of(steps_, &Step::is_in_flight))
    take_decoding(ready_.size(), step);
  cache_.shrink(n_blocks_ - n_used_);
  if (step.rows.empty()) return std::nullopt;
  step.is_in_flight = true;
  for (const Row& row : step.rows) {
    ++requests_[row.request].n_steps;
    requests_[row.request].n_computed += row.n_tokens;
  }
  std::erase_if(ready_, [&](std::uint32_t idx) { return requests_[idx].n_steps > 0; });
  totals_.n_steps += 1.0;
  totals_.n_step_seqs += static_cast<double>(step.rows.size());
  totals_.n_decoding += n_decoding_;
  return Begun{static_cast<std::uint32_t>(lane - steps_.begin()), step.work};
}

/// So many of those that decode: who has waited longest.
void VirtualCopy::take_decoding(std::size_t n, Step& step) {
  for (std::size_t i = 0; i < std::min(n, ready_.size()); ++i)
    requests_[ready_[i]].is_chosen = true;
  // Blocks are given in the order of arrival.
  for (std::size_t k = 0; k < held_.size(); ++k) {
    VirtualRequest& request = requests_[held_[k]];
    if (!std::exchange(request.is_chosen, false)) continue;
    const std::uint32_t n_context = request.n_computed + 1;
    if (blocks_of(n_context) > request.n_blocks + shared_blocks(request)) {
      if (!make_room(k)) continue;  // it waits for the end of others
      ++request.n_blocks;
      ++n_used_;
    }
    step.rows.push_back({held_[k], 1, true});
    step.work.n_decoding += 1.0;
    step.work.n_kv_tokens += n_context;
  }
}

/// Finds a block for a row at the cost of the latest ones behind it, as far as they are in no step.
bool VirtualCopy::make_room(std::size_t row) {
  while (n_used_ == n_blocks_) {
    const std::uint32_t latest = held_.back();
    if (held_.size() - 1 <= row || requests_[latest].n_steps > 0) return false;
    held_.pop_back();
    std::erase(ready_, latest);
    leave(latest);
    waiting_.push_front(latest);
    count_waiting(latest);
    has_preempted_ = true;
  }
  return true;
}

VirtualCopy::PromptBudget VirtualCopy::prompt_budget(const Step& step) const {
  const auto n_lanes = static_cast<double>(steps_.size());
  const bool delays_tokens = n_decoding_ > 0;
  double n_tokens = static_cast<double>(n_waiting_tokens_);
  double n_context = static_cast<double>(n_waiting_context_);
  double n_queue = static_cast<double>(waiting_.size());
  for (const std::uint32_t idx : held_) {
    if (requests_[idx].is_decoding) continue;
    n_tokens += requests_[idx].n_left();
    n_context += requests_[idx].n_prefill();
    n_queue += 1.0;
  }
  PromptBudget budget;
  const double n_tokens_left = std::max(0.0, forecast_.step_tokens_max - step.work.n_decoding);
  budget.n_tokens = n_tokens_left;
  if (n_lanes > 1.0) {
    const double n_part = n_tokens / (kPartsPerStep * n_lanes) + 1.0;
    const double n_min = delays_tokens ? kPartMinBesideDecoding : kPartMin;
    budget.n_tokens = std::min(budget.n_tokens, std::max(n_part, n_min));
  }
  if (!delays_tokens) {
    budget.ns = 1e18;
    budget.n_tokens_enough = kTokensEnough;
    return budget;
  }
  const double target_ns = kHeadroom * forecast_.step_target_ns;
  const double decode_ns = forecast_.cost.round_ns(step.work);
  const double left_ns = target_ns - decode_ns;
  const double steady_ns = left_ns - n_queue * fitted_.row_ns - n_context * fitted_.kv_ns;
  const double most_ns = std::max(std::min(left_ns, std::max(steady_ns, kSteadyShare * target_ns)),
                                  kPrefillOverDecode * std::max(target_ns, decode_ns));
  budget.ns = std::min(most_ns, budget.n_tokens * fitted_.row_ns);
  const double headroom_ns = forecast_.step_target_ns - target_ns;
  budget.slack_ns = std::clamp(left_ns + headroom_ns - budget.ns, 0.0, headroom_ns);
  if (n_lanes > 1.0) budget.slack_ns = std::min(budget.slack_ns, kPartSlack * budget.ns);
  budget.n_tokens = n_tokens_left;
  budget.n_min = kChunkMin;
  return budget;
}

/// In the order of the queue; nobody is passed over.
void VirtualCopy::take_prompts(PromptBudget budget, Step& step) {
  const std::size_t n_held = held_.size();
  for (std::size_t k = 0; k < n_held; ++k)
    if (!requests_[held_[k]].is_decoding) take_part(held_[k], budget, step);
  // Who was let in after others gave way would be the next to do so.
  const auto is_left = [&] {
    return budget.n_tokens >= 1.0 && (budget.n_min > 0 || budget.ns >= fitted_.row_ns);
  };
  while (!has_preempted_ && is_left() && admit_next())
    take_part(held_.back(), budget, step);
}

void VirtualCopy::take_part(std::uint32_t idx, PromptBudget& budget, Step& step) {
  const VirtualRequest& request = requests_[idx];
  const std::uint32_t n_left = request.n_left();
  if (n_left == 0) return;  // its last part is on its way
  const bool is_timed = budget.ns < 1e18;
  const bool ends =
      !is_timed || fitted_.chunk_ns(request.n_computed, n_left) <= budget.ns + budget.slack_ns;
  std::uint32_t n = ends ? n_left : fitted_.n_tokens_within(budget.ns, request.n_computed, n_left);
  n = std::min(std::max(n, std::exchange(budget.n_min, 0)), n_left);
  n = static_cast<std::uint32_t>(std::min<double>(n, budget.n_tokens));
  if (n == 0) return;
  budget.n_tokens -= n;
  if (is_timed) {
    const double left_ns = budget.ns - fitted_.chunk_ns(request.n_computed, n);
    budget.slack_ns = std::max(0.0, budget.slack_ns + std::min(0.0, left_ns));
    budget.ns = std::max(0.0, left_ns);
  }
  budget.n_tokens_enough -= n;
  if (n == n_left && budget.n_tokens_enough <= 0.0) budget.n_tokens = 0.0;
  const double rows = n;
  step.rows.push_back({idx, n, n == n_left});
  step.work.n_prompt_rows += rows;
  step.work.n_prompt_kv_tokens += rows * request.n_computed + rows * (rows + 1.0) / 2.0;
  if (n == n_left) step.work.n_prompt_ends += 1.0;
}

/// Lets the first that waits in, if there are a place and blocks for its prompt and one more.
bool VirtualCopy::admit_next() {
  if (waiting_.empty() || held_.size() >= forecast_.n_sequences_max) return false;
  const std::uint32_t idx = waiting_.front();
  VirtualRequest& request = requests_[idx];
  const bool is_shared = n_held_by_session_.contains(request.session);
  const std::uint32_t n_growth = std::min(request.n_output - request.n_made, block_tokens_);
  const std::uint32_t n_needed =
      blocks_of(request.n_prefill() + n_growth) - (is_shared ? shared_blocks(request) : 0);
  if (n_needed > n_blocks_ - n_used_) return false;
  n_waiting_tokens_ -= request.n_prompt + request.n_made;
  n_waiting_context_ -= request.n_prefill();
  waiting_.pop_front();
  admit(request, key_of_request(idx));
  held_.push_back(idx);
  return true;
}

void VirtualCopy::admit(VirtualRequest& request, BlockCache::Key own_key) {
  const std::uint32_t n_shared = shared_blocks(request);
  std::uint32_t n_found = n_shared;
  if (n_shared > 0 && n_held_by_session_[request.session]++ == 0) {
    n_found = cache_.take(key_of_session(request.session));
    n_used_ += n_shared;
  }
  const std::uint32_t n_own = cache_.take(own_key);
  if (n_found == n_shared) n_found += n_own;  // keys are paths from the first block
  // The last token is computed in any case: its logits are wanted.
  n_found = std::min(n_found, (request.n_prefill() - 1) / block_tokens_);
  request.n_computed = n_found * block_tokens_;
  request.n_blocks = blocks_of(request.n_prefill()) - n_shared;
  n_used_ += request.n_blocks;
  if (std::exchange(request.was_admitted, true)) {
    totals_.n_recomputed += request.n_left();
    return;
  }
  totals_.n_prompt += request.n_history + request.n_prompt;
  totals_.n_reused += request.n_history;
  totals_.n_found += request.n_computed;
}

void VirtualCopy::end_step(std::uint32_t lane, std::vector<std::uint32_t>& finished) {
  Step& step = steps_[lane];
  LUNA_ASSERT(step.is_in_flight);
  step.is_in_flight = false;
  for (const Row& row : step.rows) {
    VirtualRequest& request = requests_[row.request];
    --request.n_steps;
    if (!row.gives_token) continue;
    ++request.n_made;
    if (!std::exchange(request.is_decoding, true)) ++n_decoding_;
    if (request.n_made < request.n_output) {
      ready_.push_back(row.request);
      continue;
    }
    n_outstanding_ -= std::uint64_t{request.n_prompt} + request.n_output;
    leave(row.request);
    std::erase(held_, row.request);
    finished.push_back(row.request);
  }
}

/// Gives its KV back: what is full stays in the cache while nobody needs the room, and its end goes
/// before its history.
void VirtualCopy::leave(std::uint32_t idx) {
  VirtualRequest& request = requests_[idx];
  const std::uint32_t n_shared = shared_blocks(request);
  const std::uint32_t n_full = request.n_computed / block_tokens_;
  n_used_ -= request.n_blocks;
  request.n_blocks = 0;
  request.is_chosen = false;
  if (std::exchange(request.is_decoding, false)) --n_decoding_;
  cache_.put(key_of_request(idx), n_full - std::min(n_full, n_shared));
  if (n_shared == 0) return;
  const auto held = n_held_by_session_.find(request.session);
  LUNA_ASSERT(held != n_held_by_session_.end());
  if (--held->second > 0) return;
  n_held_by_session_.erase(held);
  n_used_ -= n_shared;
  cache_.put(key_of_session(request.session), std::min(n_full, n_shared));
}

}  // namespace luna::model
