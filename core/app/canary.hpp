// Asks every idle model for one token now and then: whether a request would be answered.
#pragma once

#include "core/app/periodic_thread.hpp"
#include "core/pipeline/pipeline.hpp"
#include "core/telemetry/engine_stats.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace luna::app {

/// A model that is busy is judged by the steps that it ends; one that is idle by a request of one
/// token, whose text must be the one that it was the first time. Owned by App; stopped before the
/// pipeline is drained. [main] unless tagged otherwise.
class Canary {
 public:
  struct Subject {
    std::string model;
    const telemetry::EngineStats* stats = nullptr;
  };

  /// All outlive it. Runs from now on.
  Canary(pipeline::Pipeline& pipeline, const std::vector<Subject>& subjects);
  Canary(const Canary&) = delete;
  Canary& operator=(const Canary&) = delete;
  void stop() { thread_.stop(); }

  /// Whether the last look at every model found it well. [any]
  [[nodiscard]] bool is_well() const { return is_well_.load(std::memory_order_relaxed); }

 private:
  struct State {
    explicit State(Subject subject_of_it) : subject(std::move(subject_of_it)) {}

    Subject subject;
    std::uint64_t n_steps = 0;  // as seen last
    std::chrono::steady_clock::time_point quiet_since = std::chrono::steady_clock::now();
    std::optional<std::string> expected;  // its first answer
    bool is_well = true;
  };

  void look_at_all();
  void look_at(State& state);
  [[nodiscard]] bool answers_as_before(State& state);

  pipeline::Pipeline& pipeline_;
  std::vector<State> states_;  // of the thread
  std::atomic<bool> is_well_{true};
  PeriodicThread thread_;  // last: it uses the others
};

}  // namespace luna::app
