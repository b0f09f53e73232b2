// Watches how much memory workers take, and carries out what the alarm orders.
#pragma once

#include "core/app/cluster_host.hpp"
#include "core/app/periodic_thread.hpp"
#include "core/base/clock.hpp"
#include "core/cluster/memory_alarm.hpp"

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace luna::app {

/// A thread of its own that looks a few times a second. Owned by App; stopped before placements
/// are.
class MemoryWatch {
 public:
  /// What it has others do. [any]
  struct Hands {
    std::function<void()> drop_prefix_caches;
    /// What runs on these devices goes to others; false: there are none that could take it.
    std::function<bool(const std::vector<std::string>& devices)> move_sequences;
  };

  /// cluster  outlives it
  MemoryWatch(ClusterHost& cluster, const cluster::MemoryAlarm::Options& alarm, Hands hands);
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;
  void stop() { thread_.stop(); }

 private:
  void look();
  void note_workers(Nanoseconds now);
  void note_drain(Nanoseconds now);
  void obey(const cluster::ReliefOrder& order, Nanoseconds now);
  [[nodiscard]] bool move_sequences(const std::string& worker) const;

  ClusterHost& cluster_;
  const Hands hands_;
  const RealClock clock_;

  cluster::MemoryAlarm alarm_;     // of the thread
  std::set<std::string> workers_;  // as seen last

  PeriodicThread thread_;  // goes first
};

}  // namespace luna::app
