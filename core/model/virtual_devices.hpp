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
/// order in which they come. A device's station computes on the cores that its threads are bound
/// to, an engine's on the one that has least to do as it begins; what computes on one core at a
/// time shares it evenly.
class VirtualDevices {
 public:
  /// copies   outlive it
  /// n_cores  of the machine; 0: nothing shares any
  VirtualDevices(std::span<VirtualCopy> copies, std::uint32_t n_cores);

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
    std::vector<std::uint32_t> cores;  // of a device; an engine's: the one it is on
    bool is_bound = true;              // false: an engine's
    std::deque<std::uint32_t> lanes;   // of the steps that are here; the first is served
    double left_ns = 0.0;              // of that, on cores of its own
  };
  struct Line {
    std::vector<Station> stations;
    std::vector<std::vector<double>> times_ns;  // [n_lanes][n_stations]
  };
  struct Place {
    std::size_t copy = 0;
    std::size_t station = 0;
    double end_ns = std::numeric_limits<double>::infinity();
  };

  void add_line(const CopyCost& cost);
  /// Of a station that computes: a part of 1.
  [[nodiscard]] double speed(const Station& station) const;
  [[nodiscard]] Place next_place() const;
  void serve(Line& line, std::size_t station);
  void pass_to(Line& line, std::size_t station, std::uint32_t lane);

  std::span<VirtualCopy> copies_;
  std::vector<Line> lines_;               // by copy
  std::vector<std::uint32_t> core_load_;  // [n_cores] stations that compute there
  double now_ns_ = 0.0;
  double ops_ns_ = 0.0;
};

}  // namespace luna::model
