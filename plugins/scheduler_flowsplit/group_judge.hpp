// Whether a group is short of memory or of time, or has plenty of both, without flapping.
#pragma once

#include "plugins/scheduler_flowsplit/fleet.hpp"

#include <cstdint>

namespace luna::scheduler_flowsplit {

/// The thresholds of the decision tree. Shares are of memory.
struct Thresholds {
  double low = 0.60;
  double high = 0.70;
  double idle = 0.50;
  std::uint32_t n_queued_max = 3;
};

/// A group is pressed from the upper thresholds on, and relaxed below the lower one while nobody
/// waits. The way back begins a margin further off and a while later, so that a load that swings
/// round a threshold changes nothing. A value.
class GroupJudge {
 public:
  /// dwell_ns  how long a group stays what it became
  GroupJudge(const Thresholds& thresholds, std::uint64_t dwell_ns)
      : thresholds_(thresholds), dwell_ns_(dwell_ns) {}

  /// n_queued  rows that wait for it, and its part of those that wait for any
  void judge(const GroupState& group,
             double n_queued,
             std::uint64_t now_ns,
             GroupMemory& memory) const {
    const double share = group.memory_share();
    const bool is_over = share > thresholds_.high || n_queued > thresholds_.n_queued_max;
    const bool is_well_under =
        share < thresholds_.high - kMargin && n_queued <= thresholds_.n_queued_max / 2.0;
    const bool may_change = now_ns - memory.changed_ns >= dwell_ns_ || memory.changed_ns == 0;
    const bool was_pressed = memory.is_pressed;
    const bool was_relaxed = memory.is_relaxed;
    if (is_over) memory.is_pressed = true;
    if (is_well_under && may_change) memory.is_pressed = false;
    if (share >= thresholds_.low || n_queued > 0.0) memory.is_relaxed = false;
    if (share < thresholds_.low - kMargin && n_queued == 0.0 && may_change)
      memory.is_relaxed = true;
    if (memory.is_pressed != was_pressed || memory.is_relaxed != was_relaxed)
      memory.changed_ns = now_ns;
  }

 private:
  // Half of the distance between the thresholds as they are shipped.
  static constexpr double kMargin = 0.05;
  Thresholds thresholds_;
  std::uint64_t dwell_ns_;
};

}  // namespace luna::scheduler_flowsplit
