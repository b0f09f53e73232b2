// The devices and engines of a model's copies in virtual time.
#pragma once

#include "core/model/virtual_copy.hpp"

#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <vector>

namespace luna::model {

/// Steps of each copy pass its stations, one after the other: each serves one at a time, in the
/// order in which they come. What computes at one time shares the cores evenly.
class VirtualDevices {
 public:
  /// copies     outlive it
  /// n_at_once  stations that compute at full speed at one time
  VirtualDevices(std::span<VirtualCopy> copies, double n_at_once);

  /// Begins steps of a copy as far as it can: it got a request, or a step of it has ended.
  void wake(std::size_t copy);
  [[nodiscard]] double now_ns() const { return now_ns_; }
  /// When the next station has done its part of a step; infinity: none computes.
  [[nodiscard]] double next_end_ns() const;
  /// to_ns  not beyond next_end_ns()
  void advance(double to_ns);
  /// Ends what is due first. Appends the requests that are finished with it.
  void end_next(std::vector<std::uint32_t>& finished);
  /// Time inside ops of steps that began, all devices together.
  [[nodiscard]] double ops_ns() const { return ops_ns_; }

 private:
  struct Station {
    std::deque<std::uint32_t> lanes;  // of the steps that are here; the first is served
    double end_work_ns = 0.0;         // of that: by work_ns_
  };
  struct Line {
    std::vector<Station> stations;
    std::vector<std::vector<double>> times_ns;  // [n_lanes][n_stations]
  };
  struct Place {
    std::size_t copy = 0;
    std::size_t station = 0;
    double end_work_ns = std::numeric_limits<double>::infinity();
  };

  [[nodiscard]] double speed() const;
  [[nodiscard]] Place next_place() const;
  void serve(Line& line, std::size_t station);
  void pass_to(Line& line, std::size_t station, std::uint32_t lane);

  std::span<VirtualCopy> copies_;
  const double n_at_once_;
  std::vector<Line> lines_;  // by copy
  std::size_t n_computing_ = 0;
  double now_ns_ = 0.0;
  double work_ns_ = 0.0;  // what a station that computes all the time would have done
  double ops_ns_ = 0.0;
};

}  // namespace luna::model
