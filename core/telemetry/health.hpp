// The server's state as probes see it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace luna::telemetry {

enum class State : std::uint8_t { starting, loading, warming, ready, draining, stopped, failed };

constexpr std::string_view state_name(State state) {
  switch (state) {
    case State::starting:
      return "starting";
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
  void set(State state) { state_.store(state, std::memory_order_release); }
  [[nodiscard]] State state() const { return state_.load(std::memory_order_acquire); }
  /// True from the first real token to the start of draining.
  [[nodiscard]] bool is_ready() const { return state() == State::ready; }

 private:
  std::atomic<State> state_{State::starting};
};

}  // namespace luna::telemetry
