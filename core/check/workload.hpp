// Requests for a fleet, drawn from a seed.
#pragma once

#include "core/check/fleet.hpp"

#include <cstdint>
#include <random>

namespace luna::check {

/// Draws machines and what is asked of them: the same for the same seed, on every machine.
class Workload {
 public:
  explicit Workload(std::uint64_t seed) : random_(seed) {}

  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  /// Groups, devices, steps in flight and KV blocks of all sizes; few blocks are common.
  ///
  /// policy_slices  it gets rows too that no group holds alone, where groups share
  FleetOptions draw_fleet(bool policy_slices);
  /// A request that the machine can hold.
  FleetJob draw_job(const FleetOptions& fleet, std::uint64_t now_ns);
  /// Adds jobs in bursts while others run, some of whose clients go away, and turns until nothing
  /// is left. False: the fleet stands still or has breaches.
  bool run(Fleet& fleet, std::uint32_t n_jobs);

 private:
  std::uint32_t draw_wide(const FleetOptions& fleet, std::uint32_t n_otherwise);
  void begin_as_another(Fleet& fleet, FleetJob& job);
  std::mt19937_64 random_;
};

}  // namespace luna::check
