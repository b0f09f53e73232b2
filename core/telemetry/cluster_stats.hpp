// What a controller counts of its workers.
#pragma once

#include <atomic>
#include <cstdint>

namespace luna::telemetry {

/// Written by the cluster's I/O thread and by placements, read by whoever scrapes. [any]
struct ClusterStats {
  using Counter = std::atomic<std::uint64_t>;

  Counter n_workers{0};    ///< joined now
  Counter n_devices{0};    ///< of these
  Counter n_joined{0};     ///< workers, ever
  Counter n_lost{0};       ///< workers, ever
  Counter n_drained{0};    ///< workers that left in order, ever
  Counter n_refused{0};    ///< connections, ever
  Counter n_placed{0};     ///< groups of devices that models were placed on while serving, ever
  Counter n_degraded{0};   ///< devices fewer than models once had
  Counter n_relieved{0};   ///< times that the memory alarm had a worker relieved, ever
  Counter n_restarted{0};  ///< workers that it had started again, ever
  Counter n_alarmed{0};    ///< workers above their memory alarm now
};

}  // namespace luna::telemetry
