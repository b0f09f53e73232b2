#include "core/engine/step_lane.hpp"

#include "core/base/assert.hpp"

#include <algorithm>

namespace luna::engine {

Nanoseconds StepLane::busy_max() const {
  std::uint64_t ns = 0;
  for (std::size_t d = 0; d < runner.n_devices(); ++d)
    ns = std::max(ns, runner.busy_ns(d));
  return Nanoseconds(ns);
}

Nanoseconds StepLane::busy_sum() const {
  std::uint64_t ns = 0;
  for (std::size_t d = 0; d < runner.n_devices(); ++d)
    ns += runner.busy_ns(d);
  return Nanoseconds(ns);
}

StepLanes::StepLanes(const model::CompiledModel& model,
                     const model::StepLimits& limits,
                     WakeSignal& wake) {
  for (std::uint32_t lane = 0; lane < model.n_lanes(); ++lane)
    lanes_.emplace_back(model, limits, wake, lane);
}

void StepLanes::note_started() {
  LUNA_ASSERT(!is_full());
  ++n_in_flight_;
}

void StepLanes::note_ended() {
  LUNA_ASSERT(!is_idle());
  oldest().batch.clear();
  oldest().is_spoiled = false;
  oldest_ = (oldest_ + 1) % n_max();
  --n_in_flight_;
}

void StepLanes::spoil_others() {
  for (std::uint32_t i = 1; i < n_in_flight_; ++i)
    in_flight(i).is_spoiled = true;
}

std::uint64_t StepLanes::n_submits() const {
  std::uint64_t n = 0;
  for (const StepLane& lane : lanes_)
    n += lane.runner.n_submits();
  return n;
}

std::string_view StepLanes::audit(const SequenceTable& sequences, const Group& group) const {
  std::size_t n_said = 0;
  for (const std::uint32_t slot : sequences.order())
    if (sequences[slot].group == &group) n_said += sequences[slot].n_steps;
  std::size_t n_entries = 0;
  for (std::uint32_t i = 0; i < n_in_flight_; ++i) {
    for (const StepBatch::Entry& entry : lanes_[(oldest_ + i) % n_max()].batch.entries()) {
      ++n_entries;
      const Sequence& sequence = sequences[entry.slot];
      if (!sequences.is_live(entry.slot) || !sequence.in_step() || sequence.group != &group)
        return "a sequence of a step in flight does not know it";
    }
  }
  return n_said == n_entries ? std::string_view{} : "the sequences in flight are miscounted";
}

Nanoseconds round_time(const StepLane& lane, std::uint32_t n_lanes, Nanoseconds measured) {
  if (n_lanes == 1) return measured;
  return std::max(n_lanes * lane.busy_max(), lane.busy_sum());
}

}  // namespace luna::engine
