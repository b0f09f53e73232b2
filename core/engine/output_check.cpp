#include "core/engine/output_check.hpp"

#include "core/base/assert.hpp"
#include "core/base/log.hpp"

#include <algorithm>
#include <utility>

namespace luna::engine {
namespace {

using pipeline::TokenId;
using telemetry::bump;
using telemetry::CheckSkip;

// Groups fail and policies pre-empt; what ends so this often will not come to its end.
constexpr std::uint32_t kFailuresMax = 3;
// A request that comes waits for the step that is in flight: it shall be a short one.
constexpr std::uint32_t kReplayChunkTokens = 64;
// Of an answer's own fields, list nodes and small texts.
constexpr std::size_t kKeptBytes = 1024;

bool is_disturbed(const Choice& choice) {
  return choice.disturbances != 0 && !choice.generated.empty();
}

/// What keeping the answers of a request takes.
std::size_t kept_bytes(const SequenceRequest& asked, const Choice& choice) {
  std::size_t n = kKeptBytes + (asked.prompt.size() + choice.generated.size()) * sizeof(TokenId);
  n += asked.sampling.logit_bias.size() * sizeof(std::pair<TokenId, float>);
  n += asked.sampling.allowed_tokens.size() * sizeof(TokenId);
  n += asked.stop.stop_token_ids.size() * sizeof(TokenId);
  for (const std::string& text : asked.stop.stop_strings)
    n += sizeof(text) + text.size();
  return n + asked.label.size();
}

std::size_t kept_bytes(const LiveRequest& request) {
  std::size_t n = 0;
  for (const Choice& choice : request.choices)
    if (is_disturbed(choice)) n += kept_bytes(*request.asked, choice);
  return n;
}

std::string disturbance_names(std::uint8_t bits) {
  std::string names;
  for (const auto& [bit, name] : {std::pair{Disturbance::sliced, "sliced"},
                                  std::pair{Disturbance::moved, "moved"},
                                  std::pair{Disturbance::recomputed, "recomputed"}})
    if ((bits & static_cast<std::uint8_t>(bit)) != 0)
      names += (names.empty() ? "" : ",") + std::string(name);
  return names;
}

/// A token of an answer, or where it ends.
std::string token_text(const std::vector<TokenId>& tokens, std::size_t position) {
  return position < tokens.size() ? std::to_string(tokens[position]) : "end";
}

}  // namespace

bool is_sampled(std::uint64_t request_id, std::uint32_t percent) {
  std::uint64_t mixed = request_id * 0x9E3779B97F4A7C15U;
  mixed = (mixed ^ (mixed >> 32U)) * 0xD6E8FEB86659FD93U;
  return (mixed >> 32U) % 100 < percent;
}

OutputCheck::~OutputCheck() {
  LiveRequest* ended = ended_.exchange(nullptr);
  while (ended != nullptr) {
    const std::unique_ptr<LiveRequest> owned(ended);
    ended = owned->next;
  }
}

bool OutputCheck::is_wanted(const LiveRequest& request) const {
  return std::ranges::any_of(request.choices, is_disturbed) &&
         is_sampled(request.asked->id, options_.percent);
}

bool OutputCheck::take(LiveRequest& ended) {
  if (!ended.is_replay) {
    if (!is_wanted(ended)) return false;
    // The checker takes bytes away only.
    const std::size_t n = kept_bytes(ended);
    if (n_bytes_.load(std::memory_order_relaxed) + n > options_.bytes_max) {
      bump(stats_.n_skipped_of(CheckSkip::no_room), 1);
      return false;
    }
    n_bytes_.fetch_add(n, std::memory_order_relaxed);
  }
  ended.next = ended_.load(std::memory_order_relaxed);
  while (!ended_.compare_exchange_weak(
      ended.next, &ended, std::memory_order_release, std::memory_order_relaxed)) {}
  return true;
}

void OutputCheck::read_ended() {
  LiveRequest* newest = ended_.exchange(nullptr, std::memory_order_acquire);
  LiveRequest* oldest = nullptr;
  while (newest != nullptr) {
    LiveRequest* const before = std::exchange(newest->next, oldest);
    oldest = std::exchange(newest, before);
  }
  while (oldest != nullptr) {
    const std::unique_ptr<LiveRequest> owned(oldest);
    oldest = owned->next;
    if (owned->is_replay) {
      judge(*owned);
    } else {
      keep(*owned);
    }
  }
  stats_.n_waiting.store(waiting_.size(), std::memory_order_relaxed);
}

void OutputCheck::keep(LiveRequest& ended) {
  const SequenceRequest& asked = *ended.asked;
  for (std::uint32_t c = 0; c < ended.choices.size(); ++c) {
    const Choice& choice = ended.choices[c];
    if (!is_disturbed(choice)) continue;
    Kept& kept = waiting_.emplace_back();
    kept.request_id = asked.id;
    kept.label = asked.label.empty() ? std::to_string(asked.id) : asked.label;
    kept.choice = c;
    kept.disturbances = choice.disturbances;
    kept.prompt = asked.prompt;
    kept.sampling = asked.sampling;
    kept.stop = asked.stop;
    kept.served = choice.generated;
    kept.n_bytes = kept_bytes(asked, choice);
  }
}

std::unique_ptr<SequenceRequest> OutputCheck::make_replay() const {
  const Kept& kept = waiting_.front();
  auto replay = std::make_unique<SequenceRequest>();
  replay->label = kept.label;
  replay->prompt = kept.prompt;
  replay->sampling = kept.sampling;
  replay->stop = kept.stop;
  replay->stop.n_generated_max = static_cast<std::uint32_t>(kept.served.size());
  replay->prompt_chunk_tokens_max = kReplayChunkTokens;
  replay->drafts = Drafts::never;
  return replay;
}

void OutputCheck::judge(const LiveRequest& replay) {
  using telemetry::EndCode;
  LUNA_ASSERT(is_replaying_ && !waiting_.empty());
  is_replaying_ = false;
  const bool has_ended = replay.end_code == EndCode::ok || replay.end_code == EndCode::length;
  if (has_ended) {
    compare(replay.choices.front().generated);
    return;
  }
  const bool made_room =
      replay.end_code == EndCode::cancelled && replay.choices.front().disturbances == 0;
  if (made_room) {
    bump(stats_.n_interrupted, 1);
  } else if (++waiting_.front().n_failures == kFailuresMax) {
    give_up(CheckSkip::failed);
  }
}

void OutputCheck::compare(const std::vector<TokenId>& replayed) {
  Kept& kept = waiting_.front();
  const bool is_second = !kept.replayed.empty();
  if (is_second) {
    const bool accuses = replayed == kept.replayed;
    logger("engine")->error("output check, second replay request={} choice={} result=\"{}\"",
                            kept.label,
                            kept.choice,
                            accuses ? "as the first: the answer was wrong"
                                    : "not as the first: devices differ from time to time");
    conclude();
  } else if (replayed == kept.served) {
    conclude();
  } else {
    report(kept, replayed);
    kept.replayed = replayed;
  }
}

void OutputCheck::report(const Kept& kept, const std::vector<TokenId>& replayed) {
  const auto differs = std::ranges::mismatch(kept.served, replayed);
  const auto position = static_cast<std::size_t>(differs.in1 - kept.served.begin());
  stats_.last.request_id.store(kept.request_id, std::memory_order_relaxed);
  stats_.last.choice.store(kept.choice, std::memory_order_relaxed);
  stats_.last.position.store(position, std::memory_order_relaxed);
  bump(stats_.n_mismatches, 1);
  logger("engine")->error(
      "output check: an answer differs from its replay request={} choice={} position={} served={} "
      "replayed={} after={}",
      kept.label,
      kept.choice,
      position,
      token_text(kept.served, position),
      token_text(replayed, position),
      disturbance_names(kept.disturbances));
}

void OutputCheck::conclude() {
  bump(stats_.n_checked, 1);
  drop_front();
}

void OutputCheck::give_up(CheckSkip why) {
  bump(stats_.n_skipped_of(why), 1);
  drop_front();
}

void OutputCheck::drop_front() {
  n_bytes_.fetch_sub(waiting_.front().n_bytes, std::memory_order_relaxed);
  waiting_.pop_front();
  stats_.n_waiting.store(waiting_.size(), std::memory_order_relaxed);
}

}  // namespace luna::engine
