// What a step in flight has for itself, and the ring of those that there are.
#pragma once

#include "core/base/clock.hpp"
#include "core/engine/sequence.hpp"
#include "core/engine/step_batch.hpp"
#include "core/engine/step_cost.hpp"
#include "core/engine/step_runner.hpp"
#include "core/model/compiled_model.hpp"
#include "core/telemetry/step_trace.hpp"

#include <cstdint>
#include <deque>
#include <string_view>

namespace luna::engine {

/// A step's arrays, its submits and completions, and where its outputs will lie. A resource, owned
/// by the engine's StepLanes. [engine]
struct StepLane {
  /// model and wake outlive it.
  StepLane(const model::CompiledModel& model,
           const model::StepLimits& limits,
           WakeSignal& wake,
           std::uint32_t lane)
      : outputs(model.outputs[lane]),
        batch(limits, model.kv_block_tokens, model.slice_set != nullptr),
        runner(model, wake, lane) {}

  /// Time of the step inside the ops of its busiest device, and of all together.
  [[nodiscard]] Nanoseconds busy_max() const;
  [[nodiscard]] Nanoseconds busy_sum() const;

  const model::StepOutputs outputs;
  StepBatch batch;
  StepRunner runner;
  telemetry::StepRecord record;
  Nanoseconds started{0};  ///< its plan
  Nanoseconds submitted{0};
  /// A step before it failed while this one was in flight: what it was given by other devices may
  /// be that step's.
  bool is_spoiled = false;
};

/// The lanes of a model, used in turn. Devices run steps in the order of their submission, so steps
/// end in the order in which they began. [engine], owned by the engine.
class StepLanes {
 public:
  StepLanes(const model::CompiledModel& model, const model::StepLimits& limits, WakeSignal& wake);

  [[nodiscard]] std::uint32_t n_max() const { return static_cast<std::uint32_t>(lanes_.size()); }
  [[nodiscard]] std::uint32_t n_in_flight() const { return n_in_flight_; }
  [[nodiscard]] bool is_full() const { return n_in_flight_ == n_max(); }
  [[nodiscard]] bool is_idle() const { return n_in_flight_ == 0; }

  /// The one that the next step takes; not full.
  [[nodiscard]] StepLane& next() { return lanes_[(oldest_ + n_in_flight_) % n_max()]; }
  /// Its batch has been submitted: it is in flight.
  void note_started();
  /// In flight, from the oldest on.
  [[nodiscard]] StepLane& in_flight(std::uint32_t i) { return lanes_[(oldest_ + i) % n_max()]; }
  [[nodiscard]] StepLane& oldest() { return in_flight(0); }
  [[nodiscard]] StepLane& newest() { return in_flight(n_in_flight_ - 1); }
  /// The oldest has ended and was dealt with: its lane is free.
  void note_ended();
  /// The oldest has failed, and with it what its devices tell each other: so will the others.
  void spoil_others();

  /// Submits of all lanes, all devices together.
  [[nodiscard]] std::uint64_t n_submits() const;
  /// Whether each sequence knows in how many steps it is; empty when all is well, else static text.
  ///
  /// group  whose lanes they are
  [[nodiscard]] std::string_view audit(const SequenceTable& sequences, const Group& group) const;

 private:
  std::deque<StepLane> lanes_;
  std::uint32_t oldest_ = 0;
  std::uint32_t n_in_flight_ = 0;
};

/// What a step cost, as policies count it: the time from a plan to its tokens.
///
/// With one lane it was measured. With several, each step passes the devices behind the others, and
/// a row comes round once all of them have passed the slowest device; where they are fewer than
/// devices, once its own step has passed all. It says so of a round of steps like this one, so that
/// a policy may fill each step by its own cost, and the fit does not depend on what else was in
/// flight.
///
/// measured  of this step, with whatever was in flight beside it
[[nodiscard]] Nanoseconds round_time(const StepLane& lane,
                                     std::uint32_t n_lanes,
                                     Nanoseconds measured);

}  // namespace luna::engine
