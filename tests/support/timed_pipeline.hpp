// Fake devices in a row that take their time, in virtual time.
#pragma once

#include "support/engine_fixture.hpp"

#include <functional>
#include <optional>
#include <vector>

namespace luna::test {

/// An engine on devices that compute in parallel: a step begins on a device when it has ended on
/// the one before it and the device is free, and takes busy_ns_fixed and busy_ns_per_row there.
class TimedPipeline {
 public:
  explicit TimedPipeline(const FakeModelOptions& options,
                         std::optional<plugin::Instance<luna_scheduler_if>> policy = std::nullopt)
      : rig(deferred(options), std::move(policy)),
        ends_(options.n_shards),
        busy_(options.n_shards) {}

  /// Lets the next of the devices end its step. False: none works, and the engine has nothing to
  /// do.
  bool step() {
    while (rig.engine->advance()) {}
    begin();
    std::size_t first = ends_.size();
    for (std::size_t d = 0; d < ends_.size(); ++d)
      if (ends_[d] && (first == ends_.size() || *ends_[d] < *ends_[first])) first = d;
    if (first == ends_.size()) return false;
    FakeDevice& device = rig.fake.devices[first];
    busy_[first] += Nanoseconds(device.busy_ns(*device.pending()));
    rig.clock.advance(*ends_[first] - rig.clock.now());
    ends_[first].reset();
    device.complete();
    return true;
  }
  void run() {
    while (step()) {}
    rig.expect_empty();
  }
  void run_until(const std::function<bool()>& condition) {
    while (!condition())
      if (!step()) break;
    EXPECT_TRUE(condition());
  }

  [[nodiscard]] Nanoseconds now() const { return rig.clock.now(); }
  /// Time that a device has worked so far.
  [[nodiscard]] Nanoseconds busy(std::size_t device) const { return busy_[device]; }

  EngineRig rig;

 private:
  static FakeModelOptions deferred(FakeModelOptions options) {
    options.completion = Completion::deferred;
    return options;
  }
  void begin() {
    auto& devices = rig.fake.devices;
    for (std::size_t d = 0; d < ends_.size(); ++d) {
      const luna_step* const next = devices[d].pending();
      if (next == nullptr) ends_[d].reset();  // the test has ended it
      const bool has_input = d == 0 || devices[d - 1].n_ended() > devices[d].n_ended();
      if (ends_[d] || next == nullptr || !has_input) continue;
      ends_[d] = now() + Nanoseconds(devices[d].busy_ns(*next));
    }
  }

  std::vector<std::optional<Nanoseconds>> ends_;  // by device: of what it works on
  std::vector<Nanoseconds> busy_;                 // by device
};

}  // namespace luna::test
