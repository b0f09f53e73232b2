// Steps that fail: what they say of the devices, and how their sequences go on.
#include "core/base/log.hpp"
#include "core/engine/engine_impl.hpp"
#include "core/engine/sequence_ends.hpp"

#include <algorithm>
#include <utility>

namespace luna::engine {
namespace {

// A step may fail once; a device whose steps fail this often in a row will not recover.
constexpr std::uint32_t kGroupFailuresMax = 2;
// More than it takes to lose a group, so that what was there when one was lost goes on in another.
constexpr std::uint32_t kSequenceFailuresMax = 5;

}  // namespace

// What the step wrote cannot be told: its sequences wait again for a group that computes all of
// them anew, or end where there is none to come. Where devices can no longer tell whose message is
// whose, the other steps in flight end with it, and so does the group.
void Engine::Impl::fail_step(Group& group,
                             const StepLane& lane,
                             const StepRunner::Outcome& outcome) {
  if (!std::exchange(step_failure_told, true)) {
    logger("engine")->error("step failed device={} step={} text=\"{}\"",
                            outcome.device,
                            lane.record.step,
                            outcome.message);
  }
  // What was ended stays so: devices tell each other nothing any more.
  const bool has_aborted = lane.runner.has_aborted();
  if (has_aborted) group.lanes.spoil_others();
  const bool is_new = !outcome.ok && !group.is_closing;
  const bool is_own = is_new && !waited_for_guests(group, lane, outcome);
  if (is_own) ++group.n_failures;
  if (is_new && !is_own) close_lost_groups();
  for (const StepBatch::Entry& entry : lane.batch.entries()) {
    // A step of a group that is lost already says nothing more against its sequences.
    if (is_new) ++sequences[entry.slot].n_failures;
    after_failure(group, entry.slot);
  }
  if (has_aborted && !can_lose(group)) parts.stats.is_lost.store(true, std::memory_order_relaxed);
  if (!is_new || !can_lose(group)) return;
  if (!has_aborted && group.n_failures < kGroupFailuresMax) return;
  logger("engine")->error("group lost group={} device={}", group.numbers.place, outcome.device);
  group.failed_device = outcome.shard;
  group.lanes.spoil_others();
  close(group);
}

// Whether a step may have failed because devices of other groups, where sequences of it lie, did
// not answer: that says nothing against its own.
bool Engine::Impl::waited_for_guests(const Group& group,
                                     const StepLane& lane,
                                     const StepRunner::Outcome& outcome) const {
  const bool waited = outcome.status == LUNA_UNAVAILABLE || outcome.status == LUNA_CANCELLED;
  if (!waited || group.model.is_lost()) return false;
  return std::ranges::any_of(lane.batch.entries(), [this](const StepBatch::Entry& entry) {
    return sequences[entry.slot].n_away > 0;
  });
}

// Whose devices are gone for good, whoever else has seen it: nothing goes there any more, and what
// lies there is computed anew before a step asks for it.
void Engine::Impl::close_lost_groups() {
  for (const auto& group : groups.all()) {
    if (group->is_closing || !group->model.is_lost() || !can_lose(*group)) continue;
    logger("engine")->error("group lost group={} reason=\"its devices are gone\"",
                            group->numbers.place);
    close(*group);
  }
}

// One of its steps has failed: when those that are still in flight have ended, it waits again.
void Engine::Impl::after_failure(Group& group, std::uint32_t slot) {
  Sequence& sequence = sequences[slot];
  sequence.is_ending = true;
  sequence.is_lost = true;
  if (sequence.in_step()) return;
  // One that takes every group down with it is not passed on for ever.
  if (can_lose(group) && sequence.n_failures < kSequenceFailuresMax) {
    recompute(slot);
  } else {
    end_sequence(slot, kDeviceFailed);
  }
}

}  // namespace luna::engine
