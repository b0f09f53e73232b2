// One copy of a model in virtual time: its queue, its batch and its KV room, step by step.
#pragma once

#include "core/model/load_forecast.hpp"

#include <cstdint>
#include <deque>
#include <list>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

namespace luna::model {

/// A request on its way through a copy.
struct VirtualRequest {
  double arrived_ns = 0.0;
  std::uint32_t session = 0;
  std::uint32_t n_history = 0;
  std::uint32_t n_prompt = 0;
  std::uint32_t n_output = 0;

  std::uint32_t n_made = 0;       // tokens of the answer, up to the last pre-emption
  std::uint64_t n_todo = 0;       // rows before the next token of the answer
  std::uint64_t finish_step = 0;  // of the copy; while it decodes
  std::uint64_t n_admitted = 0;   // how often
  std::uint64_t admitted_as = 0;  // order of admission, over all requests of the copy

  [[nodiscard]] std::uint64_t n_tokens() const {
    return std::uint64_t{n_history} + n_prompt + n_output;
  }
};

/// KV of histories that nobody uses at the moment, the least recently used one first to go, from
/// its end. A value.
class HistoryCache {
 public:
  [[nodiscard]] std::uint64_t n_tokens() const { return n_tokens_; }
  /// Takes what is left of a session's history.
  std::uint64_t take(std::uint32_t session);
  /// n_tail  tokens behind the history, which nobody asks for again
  void put(std::uint32_t session, std::uint64_t n_history, std::uint64_t n_tail);
  void shrink(std::uint64_t n_tokens_max);

 private:
  struct Kept {
    std::uint32_t session = 0;
    bool is_tail = false;
    std::uint64_t n_tokens = 0;
  };
  std::list<Kept> kept_;  // the latest first
  std::unordered_map<std::uint32_t, std::list<Kept>::iterator> by_session_;
  std::uint64_t n_tokens_ = 0;
};

/// Steps of one engine: all that decode, and prompts in their order as far as a step has room. A
/// sequence that finds no KV waits; one that finds none for its next token is computed again later,
/// the youngest first.
class VirtualCopy {
 public:
  /// forecast, requests   outlive it
  VirtualCopy(const CopyForecast& forecast, std::vector<VirtualRequest>& requests);

  [[nodiscard]] bool has_room_ever(const VirtualRequest& request) const;
  void add(std::uint32_t request);
  /// Leaves a session's history in the cache, as if it had been here, while there is room.
  void warm(std::uint32_t session, std::uint64_t n_history);
  [[nodiscard]] bool has_work() const { return n_running() > 0 || !waiting_.empty(); }
  [[nodiscard]] std::uint64_t n_tokens_outstanding() const { return n_outstanding_; }

  /// The time the next step takes. Something is to be done.
  double begin_step();
  /// Appends the requests that it finished.
  void end_step(std::vector<std::uint32_t>& finished);

  struct Totals {
    double n_reused = 0.0;  // tokens asked for
    double n_found = 0.0;
    double n_decoded = 0.0;
    double n_steps = 0.0;
  };
  [[nodiscard]] const Totals& totals() const { return totals_; }

 private:
  [[nodiscard]] std::size_t n_running() const { return prefilling_.size() + n_decoding_; }
  [[nodiscard]] std::uint64_t own_kv(const VirtualRequest& request, std::uint64_t n_made) const;
  [[nodiscard]] std::uint64_t n_made_now(const VirtualRequest& request) const;
  StepWork take_rows(std::uint64_t n_left);
  void admit();
  void admit(VirtualRequest& request);
  void start_decoding(std::uint32_t request);
  void preempt_youngest();
  void leave(VirtualRequest& request, std::uint64_t n_made, bool has_ended);

  const CopyForecast& forecast_;
  std::vector<VirtualRequest>& requests_;
  HistoryCache cache_;
  std::deque<std::uint32_t> waiting_;
  std::deque<std::uint32_t> prefilling_;
  std::vector<std::uint32_t> step_rows_;  // of the first prefilling ones, in this step
  using Finish = std::pair<std::uint64_t, std::pair<std::uint32_t, std::uint64_t>>;
  std::priority_queue<Finish, std::vector<Finish>, std::greater<>> finishes_;  // some are stale
  std::vector<std::uint32_t> decoding_;  // all that may decode; some are stale
  std::unordered_map<std::uint32_t, std::uint32_t> n_running_by_session_;
  std::uint64_t n_decoding_ = 0;
  std::uint64_t n_context_ = 0;  // of those that decode, summed
  std::uint64_t kv_running_ = 0;
  std::uint64_t n_outstanding_ = 0;
  std::uint64_t n_steps_ = 0;
  std::uint64_t n_admissions_ = 0;
  Totals totals_;
};

}  // namespace luna::model
