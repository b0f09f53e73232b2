#include "core/engine/device_turns.hpp"

#include "core/base/assert.hpp"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

namespace luna::engine {
namespace {

constexpr std::uint32_t kWhole = 65'536;

}  // namespace

DeviceTurns::DeviceTurns(std::span<const double> weights)
    : n_members_(static_cast<std::uint32_t>(weights.size())) {
  LUNA_VERIFY(weights.size() <= kMembersMax);
  for (std::uint32_t m = 0; m < n_members_; ++m)
    set_weight(m, weights[m]);
}

void DeviceTurns::enter(std::uint32_t member, WakeSignal& wake) {
  LUNA_VERIFY(member < n_members_);
  members_[member].wake.store(&wake);
}

void DeviceTurns::leave(std::uint32_t member) {
  Member& own = members_[member];
  own.waits.store(false);
  own.has_work.store(false);
  own.wake.store(nullptr);
  while (own.n_waking.load() != 0)
    std::this_thread::yield();
  wake_waiting(member);
}

bool DeviceTurns::may_begin(std::uint32_t member) {
  Member& own = members_[member];
  // Before the others are read: whoever changes them later sees it and wakes us.
  own.waits.store(true);
  std::optional<std::uint64_t> least;
  for (std::uint32_t m = 0; m < n_members_; ++m) {
    if (m == member || !members_[m].has_work.load()) continue;
    const std::uint64_t used = members_[m].used.load();
    least = std::min(used, least.value_or(used));
  }
  // Until now it had no work.
  if (least && !own.has_work.load() && own.used.load() < *least) {
    own.used.store(*least);
    own.last = 0;
  }
  own.has_work.store(true);
  const bool may = !least || own.used.load() - own.last <= *least;
  if (may) own.waits.store(false);
  return may;
}

void DeviceTurns::note_step(std::uint32_t member, std::uint64_t busy_ns) {
  Member& own = members_[member];
  own.last = busy_ns * kWhole / own.weight.load(std::memory_order_relaxed);
  own.used.store(own.used.load() + own.last);
  own.has_changed = true;
}

void DeviceTurns::settle(std::uint32_t member, bool runs, bool waits, Nanoseconds now) {
  Member& own = members_[member];
  const Nanoseconds elapsed = now - std::exchange(own.settled_at, now);
  own.waits.store(waits);
  own.has_work.store(runs || waits);
  const bool had_work = std::exchange(own.had_work, runs || waits);
  if (had_work)
    own.with_work_ns.store(own.with_work_ns.load(std::memory_order_relaxed) + elapsed.count(),
                           std::memory_order_relaxed);
  const bool stops = had_work && !runs && !waits;
  if (std::exchange(own.has_changed, false) || stops) wake_waiting(member);
}

void DeviceTurns::wake_waiting(std::uint32_t but) {
  for (std::uint32_t m = 0; m < n_members_; ++m) {
    Member& other = members_[m];
    if (m == but || !other.waits.load()) continue;
    other.n_waking.fetch_add(1);
    if (WakeSignal* const wake = other.wake.load(); wake != nullptr) wake->set();
    other.n_waking.fetch_sub(1);
  }
}

bool DeviceTurns::have_others_work(std::uint32_t member) const {
  for (std::uint32_t m = 0; m < n_members_; ++m)
    if (m != member && members_[m].has_work.load()) return true;
  return false;
}

void DeviceTurns::set_weight(std::uint32_t member, double weight) {
  const double share = std::clamp(weight, kWeightMin, 1.0);
  members_[member].weight.store(static_cast<std::uint32_t>(share * kWhole),
                                std::memory_order_relaxed);
}

double DeviceTurns::weight(std::uint32_t member) const {
  return static_cast<double>(members_[member].weight.load(std::memory_order_relaxed)) / kWhole;
}

}  // namespace luna::engine
