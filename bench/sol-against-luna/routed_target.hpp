// Sends a load run's requests to the copies of a side, and sees early that a run is lost.
#pragma once

#include "core/bench/target.hpp"
#include "core/pipeline/pipeline.hpp"
#include "router.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

namespace luna::sol_against_luna {

/// Counts measured requests that are late, ended or not. [load]
class LateWatch {
 public:
  LateWatch(Nanoseconds limit, std::size_t n_late_allowed)
      : limit_(limit), n_late_allowed_(n_late_allowed) {}

  /// A request becomes late at `due` + limit, unless it ends before.
  void began(std::size_t request_idx, Nanoseconds due);
  /// failed  it was refused or broke off: late for ever
  void ended(std::size_t request_idx, Nanoseconds now, bool failed);
  /// Whether more are late than may be.
  [[nodiscard]] bool is_lost(Nanoseconds now) const;

 private:
  Nanoseconds limit_;
  std::size_t n_late_allowed_;
  std::size_t n_late_ = 0;                      // of those that ended
  std::map<std::size_t, Nanoseconds> late_at_;  // of those that run
};

struct RoutedTargetParts {
  std::vector<pipeline::Pipeline*> copies;  ///< outlive the target
  Router router;
  /// The session of a request; as the prompt source draws it.
  std::function<std::uint32_t(std::size_t request_idx)> session_of;
  /// Called as each request is sent. May be empty.
  std::function<void(std::size_t request_idx)> on_sent;
  LateWatch* watch = nullptr;        ///< outlives the target; null: nobody watches
  std::function<Nanoseconds()> now;  ///< of whoever asks the watch
};

/// The target of a run whose requests are routed.
bench::TargetFactory routed_target(RoutedTargetParts parts);

}  // namespace luna::sol_against_luna
