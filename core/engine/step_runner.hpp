// Runs a step on every device of a model and learns when it is done.
#pragma once

#include "core/base/clock.hpp"
#include "core/model/compiled_model.hpp"

#include <luna/abi/backend.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace luna::engine {

/// One submit a device and step; completions come from any thread and set the wake signal. One step
/// at a time, in a lane of the model; runners of other lanes may have theirs in flight. [engine]
/// unless tagged otherwise; owned by the engine.
class StepRunner {
 public:
  /// model and wake outlive the runner.
  StepRunner(const model::CompiledModel& model, WakeSignal& wake, std::uint32_t lane = 0);
  /// No step is running; waits for completions that have yet to return.
  ~StepRunner();
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  /// Submits the step to every device. Where a device refuses it, the ones behind it are not asked,
  /// and the step ends as failed. `step` is copied for each device. Steps of all models reach the
  /// devices in one order.
  void submit(const luna_step& step);
  /// Whether a step was submitted and not collected.
  [[nodiscard]] bool is_busy() const { return busy_; }
  /// Whether the step has ended on every device. Where one of several failed, all communication is
  /// ended: devices that wait for it are let go, and what was sent for its step is taken for nobody
  /// else's.
  [[nodiscard]] bool is_done();

  /// Whether communication was ended so; the devices can never run a step together again.
  [[nodiscard]] bool has_aborted() const { return aborted_; }

  struct Outcome {
    bool ok = true;
    luna_status status = LUNA_OK;
    std::uint32_t shard = 0;   ///< the first that failed, in order of devices
    std::string_view device;   ///< its name
    std::string_view message;  ///< its words; valid until the next submit
  };
  /// The ended step's outcome. The runner is free for the next.
  Outcome collect();

  /// Submits made so far, all devices together.
  [[nodiscard]] std::uint64_t n_submits() const { return n_submits_; }
  [[nodiscard]] std::size_t n_devices() const { return slots_.size(); }
  /// Time inside ops of the last step on a device.
  [[nodiscard]] std::uint64_t busy_ns(std::size_t shard) const { return slots_[shard].busy_ns; }

 private:
  /// What a device's completion writes. Read after n_pending_ has reached zero.
  struct Slot {
    StepRunner* runner = nullptr;
    luna_status status = LUNA_OK;
    std::uint64_t busy_ns = 0;
    std::array<char, 256> message{};
  };

  /// [any], once a device and step
  static void on_done(void* context, const luna_step_result* result);
  static void note_failure(Slot& slot, luna_status status, std::string_view message);
  void abort();

  const model::CompiledModel& model_;
  WakeSignal& wake_;
  const std::uint32_t lane_;
  std::vector<Slot> slots_;       // by shard
  std::vector<luna_step> steps_;  // by shard: a backend may read its own until done
  std::atomic<std::uint32_t> n_pending_{0};
  std::atomic<std::uint32_t> n_inside_{0};  // completions that have not returned
  std::atomic<bool> failed_{false};         // on one device, after another had begun or could have
  bool busy_ = false;
  bool aborted_ = false;
  std::uint64_t n_submits_ = 0;
};

}  // namespace luna::engine
