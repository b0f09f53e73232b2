// Answers that were computed in pieces, computed once more in one: whether they are the same.
#pragma once

#include "core/engine/engine.hpp"
#include "core/engine/live_request.hpp"
#include "core/telemetry/engine_stats.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace luna::engine {

/// Whether a request is among the `percent` of all that are checked: by its id, so that a run that
/// is repeated checks the same ones.
bool is_sampled(std::uint64_t request_id, std::uint32_t percent);

/// Keeps the answers of requests that were sliced, moved or computed anew, and judges their
/// replays, of which there is one at a time: of one choice, by the request's prompt, sampling and
/// stops, alone, without drafts and without the prefix cache. An answer that was cut off is
/// compared as far as it goes; pruned prompts are replayed like others, since what is pruned
/// depends on the prompt alone. An answer that differs is counted and named in the log, and
/// replayed a second time: two replays that agree accuse the answer, otherwise the devices do not
/// agree with themselves.
///
/// Not replayed, and counted: what is larger than any group of devices alone, what does not fit
/// into bytes_max, and what failed three times over.
///
/// The engine thread links what has ended into a list; all else is done by the checker, whoever
/// calls Engine::check_outputs(). Owned by the engine.
class OutputCheck {
 public:
  OutputCheck(const OutputCheckOptions& options, telemetry::OutputCheckStats& stats)
      : options_(options), stats_(stats) {}
  /// No thread uses it any more.
  ~OutputCheck();
  OutputCheck(const OutputCheck&) = delete;
  OutputCheck& operator=(const OutputCheck&) = delete;

  /// Takes a request that has ended over, if it is a replay or is to be checked. Allocates nothing.
  /// [engine]
  [[nodiscard]] bool take(LiveRequest& ended);

  // ---- [checker]
  /// Reads what has ended: answers join those that wait for their replay, a replay is judged.
  void read_ended();
  [[nodiscard]] bool is_replaying() const { return is_replaying_; }
  [[nodiscard]] bool has_waiting() const { return !waiting_.empty(); }
  /// What computes the oldest answer again, without an id. There is one.
  [[nodiscard]] std::unique_ptr<SequenceRequest> make_replay() const;
  /// The first choice of it.
  [[nodiscard]] std::uint32_t replay_choice() const { return waiting_.front().choice; }
  void note_started() { is_replaying_ = true; }
  /// No group of devices could hold it alone.
  void give_up_too_large() { give_up(telemetry::CheckSkip::too_large); }

 private:
  /// An answer, and what it takes to compute it again.
  struct Kept {
    std::uint64_t request_id = 0;
    std::string label;
    std::uint32_t choice = 0;
    std::uint8_t disturbances = 0;
    std::vector<pipeline::TokenId> prompt;
    pipeline::SamplingParams sampling;
    pipeline::StopCriteria stop;
    std::vector<pipeline::TokenId> served;
    std::vector<pipeline::TokenId> replayed;  // when it was not what was served
    std::size_t n_bytes = 0;
    std::uint32_t n_failures = 0;
  };

  [[nodiscard]] bool is_wanted(const LiveRequest& request) const;
  void keep(LiveRequest& ended);
  void judge(const LiveRequest& replay);
  void compare(const std::vector<pipeline::TokenId>& replayed);
  void report(const Kept& kept, const std::vector<pipeline::TokenId>& replayed);
  void conclude();
  void give_up(telemetry::CheckSkip why);
  void drop_front();

  const OutputCheckOptions options_;
  telemetry::OutputCheckStats& stats_;
  std::atomic<LiveRequest*> ended_{nullptr};  // a stack: engine pushes, checker takes all
  std::atomic<std::size_t> n_bytes_{0};       // of answers in the list and waiting
  std::deque<Kept> waiting_;                  // the first is being replayed, if any is
  bool is_replaying_ = false;
};

}  // namespace luna::engine
