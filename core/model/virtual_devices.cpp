#include "core/model/virtual_devices.hpp"

#include "core/base/assert.hpp"

#include <algorithm>

namespace luna::model {

VirtualDevices::VirtualDevices(std::span<VirtualCopy> copies, std::uint32_t n_cores)
    : copies_(copies), core_load_(n_cores) {
  for (const VirtualCopy& copy : copies)
    add_line(copy.cost());
}

void VirtualDevices::add_line(const CopyCost& cost) {
  Line& line = lines_.emplace_back();
  line.stations.resize(cost.n_stations());
  line.times_ns.assign(cost.n_lanes(), std::vector<double>(cost.n_stations()));
  if (core_load_.empty()) return;
  const bool has_engine_station = cost.n_lanes() > 1;
  if (has_engine_station) line.stations.front().is_bound = false;
  for (std::size_t d = 0; d < cost.stages.size(); ++d) {
    std::vector<std::uint32_t>& cores = line.stations[has_engine_station ? d + 1 : 0].cores;
    for (std::uint32_t i = 0; i < cost.stages[d].n_cores; ++i)
      cores.push_back((cost.stages[d].first_core + i) % core_load_.size());
    std::ranges::sort(cores);
    cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  }
}

void VirtualDevices::wake(std::size_t copy) {
  Line& line = lines_[copy];
  while (line.stations.front().lanes.empty()) {
    const auto begun = copies_[copy].begin_step();
    if (!begun) return;
    const CopyCost& cost = copies_[copy].cost();
    cost.fill_station_ns(begun->work, line.times_ns[begun->lane]);
    ops_ns_ += cost.ops_ns(begun->work);
    pass_to(line, 0, begun->lane);
  }
}

double VirtualDevices::speed(const Station& station) const {
  std::uint32_t n_sharing = 1;
  for (const std::uint32_t core : station.cores)
    n_sharing = std::max(n_sharing, core_load_[core]);
  return 1.0 / n_sharing;
}

double VirtualDevices::next_end_ns() const {
  return next_place().end_ns;
}

void VirtualDevices::advance(double to_ns) {
  for (Line& line : lines_)
    for (Station& station : line.stations)
      if (!station.lanes.empty()) station.left_ns -= (to_ns - now_ns_) * speed(station);
  now_ns_ = to_ns;
}

void VirtualDevices::end_next(std::vector<std::uint32_t>& finished) {
  const Place due = next_place();
  LUNA_ASSERT(due.end_ns < std::numeric_limits<double>::infinity());
  Line& line = lines_[due.copy];
  Station& station = line.stations[due.station];
  const std::uint32_t lane = station.lanes.front();
  station.lanes.pop_front();
  for (const std::uint32_t core : station.cores)
    --core_load_[core];
  if (!station.lanes.empty()) serve(line, due.station);
  if (due.station + 1 < line.stations.size()) {
    pass_to(line, due.station + 1, lane);
  } else {
    copies_[due.copy].end_step(lane, finished);
  }
  wake(due.copy);
}

VirtualDevices::Place VirtualDevices::next_place() const {
  Place next;
  for (std::size_t c = 0; c < lines_.size(); ++c) {
    const std::vector<Station>& stations = lines_[c].stations;
    for (std::size_t s = 0; s < stations.size(); ++s) {
      if (stations[s].lanes.empty()) continue;
      const double end_ns = now_ns_ + std::max(0.0, stations[s].left_ns) / speed(stations[s]);
      if (end_ns < next.end_ns) next = {c, s, end_ns};
    }
  }
  return next;
}

/// Begins with the first that is there.
void VirtualDevices::serve(Line& line, std::size_t station) {
  Station& here = line.stations[station];
  here.left_ns = line.times_ns[here.lanes.front()][station];
  if (!here.is_bound)
    here.cores = {
        static_cast<std::uint32_t>(std::ranges::min_element(core_load_) - core_load_.begin())};
  for (const std::uint32_t core : here.cores)
    ++core_load_[core];
}

void VirtualDevices::pass_to(Line& line, std::size_t station, std::uint32_t lane) {
  line.stations[station].lanes.push_back(lane);
  if (line.stations[station].lanes.size() == 1) serve(line, station);
}

}  // namespace luna::model
