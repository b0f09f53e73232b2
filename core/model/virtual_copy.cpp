#include "core/model/virtual_copy.hpp"

#include "core/base/assert.hpp"

#include <algorithm>
#include <numeric>

namespace luna::model {
namespace {

// Of a prompt in a step, however little time is left: it shall not starve.
constexpr std::uint64_t kPromptRowsMin = 16;

}  // namespace

std::uint64_t HistoryCache::take(std::uint32_t session) {
  const auto found = by_session_.find(session);
  if (found == by_session_.end()) return 0;
  const std::uint64_t n = found->second->n_tokens;
  n_tokens_ -= n;
  kept_.erase(found->second);
  by_session_.erase(found);
  return n;
}

void HistoryCache::put(std::uint32_t session, std::uint64_t n_history, std::uint64_t n_tail) {
  if (n_tail > 0) kept_.push_front({session, true, n_tail});
  kept_.push_front({session, false, n_history});
  by_session_[session] = kept_.begin();
  n_tokens_ += n_history + n_tail;
}

void HistoryCache::shrink(std::uint64_t n_tokens_max) {
  while (n_tokens_ > n_tokens_max) {
    Kept& oldest = kept_.back();
    const std::uint64_t n = std::min(oldest.n_tokens, n_tokens_ - n_tokens_max);
    oldest.n_tokens -= n;
    n_tokens_ -= n;
    if (oldest.n_tokens > 0) continue;
    if (!oldest.is_tail) by_session_.erase(oldest.session);
    kept_.pop_back();
  }
}

VirtualCopy::VirtualCopy(const CopyForecast& forecast, std::vector<VirtualRequest>& requests)
    : forecast_(forecast), requests_(requests) {}

/// What a sequence holds beside its history; half a block is not filled, on the average.
std::uint64_t VirtualCopy::own_kv(const VirtualRequest& request, std::uint64_t n_made) const {
  return request.n_prompt + n_made + forecast_.kv_block_tokens / 2;
}

bool VirtualCopy::has_room_ever(const VirtualRequest& request) const {
  return request.n_tokens() + forecast_.kv_block_tokens <= forecast_.kv_tokens;
}

void VirtualCopy::add(std::uint32_t request) {
  waiting_.push_back(request);
  n_outstanding_ += requests_[request].n_prompt + requests_[request].n_output;
}

void VirtualCopy::warm(std::uint32_t session, std::uint64_t n_history) {
  if (n_history == 0 || cache_.n_tokens() + n_history > forecast_.kv_tokens) return;
  cache_.put(session, n_history, 0);
}

void VirtualCopy::admit() {
  while (!waiting_.empty() && n_running() < forecast_.n_sequences_max) {
    VirtualRequest& request = requests_[waiting_.front()];
    const bool is_shared = n_running_by_session_.contains(request.session);
    const std::uint64_t needed =
        own_kv(request, request.n_made) + (is_shared ? 0 : request.n_history);
    // A token more for each that decodes, or the step after this one would take it away again.
    if (kv_running_ + needed + n_decoding_ > forecast_.kv_tokens && n_running() > 0) return;
    admit(request);
    prefilling_.push_back(waiting_.front());
    waiting_.pop_front();
  }
}

void VirtualCopy::admit(VirtualRequest& request) {
  std::uint64_t n_found = 0;
  if (request.n_history > 0) {
    std::uint32_t& n_beside = n_running_by_session_[request.session];
    if (n_beside == 0) {
      n_found = cache_.take(request.session);
      kv_running_ += request.n_history;
    } else {
      n_found = request.n_history;
    }
    ++n_beside;
    n_found = n_found / forecast_.kv_block_tokens * forecast_.kv_block_tokens;
  }
  if (request.n_admitted == 0) {
    totals_.n_reused += request.n_history;
    totals_.n_found += static_cast<double>(n_found);
  }
  ++request.n_admitted;
  request.admitted_as = ++n_admissions_;
  request.n_todo = request.n_history - n_found + request.n_prompt + request.n_made;
  kv_running_ += own_kv(request, request.n_made);
}

double VirtualCopy::begin_step() {
  admit();
  while (kv_running_ + n_decoding_ > forecast_.kv_tokens && n_decoding_ > 0 && n_running() > 1)
    preempt_youngest();
  kv_running_ += n_decoding_;
  cache_.shrink(forecast_.kv_tokens - std::min(forecast_.kv_tokens, kv_running_));

  const double decoding_ns = n_decoding_ == 0 ? 0.0 : forecast_.cost.round_ns(take_rows(0));
  const std::uint64_t n_lanes = forecast_.cost.side_by_side ? 1 : forecast_.cost.stages.size();
  const std::uint64_t n_rows_max = n_lanes * forecast_.step_tokens_max;
  const std::uint64_t n_rows = n_rows_max - std::min(n_rows_max, n_decoding_);
  double ns = forecast_.cost.round_ns(take_rows(n_rows));
  const double target_ns = forecast_.step_target_ns;
  if (n_decoding_ > 0 && ns > target_ns) {
    // Prompts get what the target leaves: the gaps between tokens of others stay within it.
    const double share = std::max(0.0, target_ns - decoding_ns) / (ns - decoding_ns);
    const auto n_taken = static_cast<double>(
        std::accumulate(step_rows_.begin(), step_rows_.end(), std::uint64_t{0}));
    const auto n_fitting = static_cast<std::uint64_t>(share * n_taken);
    ns = forecast_.cost.round_ns(take_rows(std::max(kPromptRowsMin, n_fitting)));
  }
  totals_.n_decoded += static_cast<double>(n_decoding_);
  totals_.n_steps += 1.0;
  return ns;
}

/// A step of all that decode, and so many rows of prompts at most.
StepWork VirtualCopy::take_rows(std::uint64_t n_left) {
  StepWork work;
  work.n_decoding = static_cast<double>(n_decoding_);
  work.n_kv_tokens = static_cast<double>(n_context_ + n_decoding_);
  step_rows_.clear();
  for (const std::uint32_t idx : prefilling_) {
    if (n_left == 0) break;
    const VirtualRequest& request = requests_[idx];
    const std::uint64_t n = std::min(n_left, request.n_todo);
    const auto rows = static_cast<double>(n);
    const auto before =
        static_cast<double>(request.n_history + request.n_prompt + request.n_made - request.n_todo);
    work.n_prompt_rows += rows;
    work.n_prompt_kv_tokens += rows * before + rows * (rows + 1.0) / 2.0;
    if (n == request.n_todo) work.n_prompt_ends += 1.0;
    step_rows_.push_back(static_cast<std::uint32_t>(n));
    n_left -= n;
  }
  return work;
}

void VirtualCopy::end_step(std::vector<std::uint32_t>& finished) {
  ++n_steps_;
  n_context_ += n_decoding_;
  while (!finishes_.empty() && finishes_.top().first <= n_steps_) {
    const auto [idx, n_admitted] = finishes_.top().second;
    finishes_.pop();
    VirtualRequest& request = requests_[idx];
    if (request.n_admitted != n_admitted) continue;  // it was pre-empted since
    --n_decoding_;
    n_context_ -= request.n_tokens();
    leave(request, request.n_output, true);
    finished.push_back(idx);
  }
  std::size_t n_ended = 0;
  for (std::size_t i = 0; i < step_rows_.size(); ++i) {
    VirtualRequest& request = requests_[prefilling_[i]];
    request.n_todo -= step_rows_[i];
    if (request.n_todo > 0) continue;
    ++n_ended;  // prompts are taken in their order, so they end in it
    if (request.n_made + 1 >= request.n_output) {
      leave(request, request.n_made, true);
      finished.push_back(prefilling_[i]);
    } else {
      start_decoding(prefilling_[i]);
    }
  }
  prefilling_.erase(prefilling_.begin(),
                    prefilling_.begin() + static_cast<std::ptrdiff_t>(n_ended));
}

/// Its first token is there.
void VirtualCopy::start_decoding(std::uint32_t idx) {
  VirtualRequest& request = requests_[idx];
  request.finish_step = n_steps_ + request.n_output - request.n_made - 1;
  finishes_.push({request.finish_step, {idx, request.n_admitted}});
  decoding_.push_back(idx);
  ++n_decoding_;
  ++kv_running_;
  n_context_ += std::uint64_t{request.n_history} + request.n_prompt + request.n_made + 1;
}

std::uint64_t VirtualCopy::n_made_now(const VirtualRequest& request) const {
  return request.n_output - (request.finish_step - n_steps_);
}

void VirtualCopy::preempt_youngest() {
  const auto decodes = [&](std::uint32_t idx) { return requests_[idx].finish_step > n_steps_; };
  std::erase_if(decoding_, [&](std::uint32_t idx) { return !decodes(idx); });
  const auto youngest = std::ranges::max_element(
      decoding_, {}, [&](std::uint32_t idx) { return requests_[idx].admitted_as; });
  LUNA_ASSERT(youngest != decoding_.end());
  const std::uint32_t idx = *youngest;
  decoding_.erase(youngest);
  VirtualRequest& request = requests_[idx];
  const std::uint64_t n_made = n_made_now(request);
  --n_decoding_;
  n_context_ -= std::uint64_t{request.n_history} + request.n_prompt + n_made;
  leave(request, n_made, false);
  request.n_made = static_cast<std::uint32_t>(n_made);
  waiting_.push_front(idx);
}

/// Gives its KV back.
void VirtualCopy::leave(VirtualRequest& request, std::uint64_t n_made, bool has_ended) {
  request.finish_step = 0;
  ++request.n_admitted;  // what waits for its end is stale
  kv_running_ -= own_kv(request, n_made);
  if (has_ended) n_outstanding_ -= std::uint64_t{request.n_prompt} + request.n_output;
  if (request.n_history == 0) return;
  const auto running = n_running_by_session_.find(request.session);
  LUNA_ASSERT(running != n_running_by_session_.end());
  if (--running->second > 0) return;
  n_running_by_session_.erase(running);
  kv_running_ -= request.n_history;
  cache_.put(request.session, request.n_history, has_ended ? request.n_prompt + n_made : 0);
}

}  // namespace luna::model
