// The server's state as probes see it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace luna::telemetry {

enum class State : std::uint8_t {
  starting,
  waiting,
  loading,
  warming,
  ready,
  draining,
  stopped,
  failed
};

constexpr std::string_view state_name(State state) {
  switch (state) {
    case State::starting:
      return "starting";
    case State::waiting:
      return "waiting";
    case State::loading:
      return "loading";
    case State::warming:
      return "warming";
    case State::ready:
      return "ready";
    case State::draining:
      return "draining";
    case State::stopped:
      return "stopped";
    case State::failed:
      return "failed";
  }
  return "failed";
}

/// Written by the program's start and stop, read by probes. [any]
class Health {
 public:
  /// detail  what is waited for, for people
  void set(State state, std::string detail = {}) {
    const std::lock_guard lock(mutex_);
    detail_ = std::move(detail);
    state_.store(state, std::memory_order_release);
  }
  [[nodiscard]] std::string detail() const {
    const std::lock_guard lock(mutex_);
    return detail_;
  }
  [[nodiscard]] State state() const { return state_.load(std::memory_order_acquire); }
  /// True from the first real token to the start of draining.
  [[nodiscard]] bool is_ready() const { return state() == State::ready; }

 private:
  std::atomic<State> state_{State::starting};
  mutable std::mutex mutex_;  // guards the detail
  std::string detail_;
};

}  // namespace luna::telemetry
