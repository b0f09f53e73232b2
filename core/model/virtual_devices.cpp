#include "core/model/virtual_devices.hpp"

#include "core/base/assert.hpp"

#include <algorithm>

namespace luna::model {

VirtualDevices::VirtualDevices(std::span<VirtualCopy> copies, double n_at_once)
    : copies_(copies), n_at_once_(n_at_once) {
  for (const VirtualCopy& copy : copies) {
    const std::size_t n_stations = copy.cost().n_stations();
    Line& line = lines_.emplace_back();
    line.stations.resize(n_stations);
    line.times_ns.assign(copy.cost().n_lanes(), std::vector<double>(n_stations));
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

double VirtualDevices::speed() const {
  const auto n = static_cast<double>(n_computing_);
  return n <= n_at_once_ ? 1.0 : n_at_once_ / n;
}

double VirtualDevices::next_end_ns() const {
  return now_ns_ + std::max(0.0, next_place().end_work_ns - work_ns_) / speed();
}

void VirtualDevices::advance(double to_ns) {
  work_ns_ += (to_ns - now_ns_) * speed();
  now_ns_ = to_ns;
}

void VirtualDevices::end_next(std::vector<std::uint32_t>& finished) {
  const Place due = next_place();
  LUNA_ASSERT(n_computing_ > 0);
  Line& line = lines_[due.copy];
  std::deque<std::uint32_t>& lanes = line.stations[due.station].lanes;
  const std::uint32_t lane = lanes.front();
  lanes.pop_front();
  --n_computing_;
  if (!lanes.empty()) serve(line, due.station);
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
    for (std::size_t s = 0; s < stations.size(); ++s)
      if (!stations[s].lanes.empty() && stations[s].end_work_ns < next.end_work_ns)
        next = {c, s, stations[s].end_work_ns};
  }
  return next;
}

/// Begins with the first that is there.
void VirtualDevices::serve(Line& line, std::size_t station) {
  Station& here = line.stations[station];
  here.end_work_ns = work_ns_ + line.times_ns[here.lanes.front()][station];
  ++n_computing_;
}

void VirtualDevices::pass_to(Line& line, std::size_t station, std::uint32_t lane) {
  line.stations[station].lanes.push_back(lane);
  if (line.stations[station].lanes.size() == 1) serve(line, station);
}

}  // namespace luna::model
