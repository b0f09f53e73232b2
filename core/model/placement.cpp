#include "core/model/placement.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace luna::model {
namespace {

std::string range_text(const LayerRange& range) {
  return "layers [" + std::to_string(range.first) + ", " + std::to_string(range.end()) + ")";
}

/// The bytes of layers [first, end), by sums of prefixes.
class LayerSums {
 public:
  explicit LayerSums(std::span<const std::uint64_t> layers) {
    for (const std::uint64_t bytes : layers)
      sums_.push_back(sums_.back() + bytes);
  }
  [[nodiscard]] std::uint64_t bytes(std::size_t first, std::size_t end) const {
    return sums_[end] - sums_[first];
  }

 private:
  std::vector<std::uint64_t> sums_{0};
};

}  // namespace

Result<std::vector<LayerRange>> balance_layers(const ModelBytes& bytes,
                                               std::span<const std::uint64_t> budgets) {
  const std::size_t n_layers = bytes.layers.size();
  const std::size_t n_devices = budgets.size();
  if (n_devices == 0 || n_devices > n_layers) {
    return Error{Code::invalid_argument,
                 std::to_string(n_devices) + " devices for " + std::to_string(n_layers) +
                     " layers: each device needs at least one layer"};
  }
  if (std::ranges::find(budgets, 0u) != budgets.end())
    return Error{Code::invalid_argument, "a device has a memory budget of 0 bytes"};

  const LayerSums sums(bytes.layers);
  const auto share = [&](std::size_t device, std::size_t first, std::size_t end) {
    std::uint64_t held = sums.bytes(first, end);
    if (device == 0) held += bytes.embedding;
    if (device == n_devices - 1) held += bytes.head;
    return static_cast<double>(held) / static_cast<double>(budgets[device]);
  };
  // worst[d][f]: the least possible largest share when devices d.. hold layers f..; cut[d][f]: the
  // end of device d's range in the first such placement.
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> worst(n_devices, std::vector<double>(n_layers, kImpossible));
  std::vector<std::vector<std::size_t>> cut(n_devices, std::vector<std::size_t>(n_layers, 0));
  for (std::size_t device = n_devices; device-- > 0;) {
    const std::size_t n_after = n_devices - 1 - device;
    for (std::size_t first = device; first + n_after < n_layers; ++first) {
      const std::size_t first_end = n_after == 0 ? n_layers : first + 1;
      for (std::size_t end = first_end; end + n_after <= n_layers; ++end) {
        const double rest = n_after == 0 ? 0.0 : worst[device + 1][end];
        const double value = std::max(share(device, first, end), rest);
        if (value >= worst[device][first]) continue;
        worst[device][first] = value;
        cut[device][first] = end;
      }
    }
  }
  std::vector<LayerRange> ranges;
  std::size_t first = 0;
  for (std::size_t device = 0; device < n_devices; ++device) {
    const std::size_t end = cut[device][first];
    ranges.push_back({static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end - first)});
    first = end;
  }
  return ranges;
}

Result<void> check_layers(std::span<const LayerRange> ranges,
                          std::uint32_t n_layers,
                          std::size_t n_devices) {
  if (ranges.size() != n_devices) {
    return Error{Code::invalid_argument,
                 std::to_string(ranges.size()) + " layer ranges for " + std::to_string(n_devices) +
                     " devices"};
  }
  std::uint64_t next = 0;
  for (const LayerRange& range : ranges) {
    if (range.count == 0 || range.first != next || range.count > n_layers - next) {
      return Error{Code::invalid_argument,
                   range_text(range) + ": must begin at layer " + std::to_string(next) +
                       ", have at least one layer, and end within " + std::to_string(n_layers)};
    }
    next += range.count;
  }
  if (next != n_layers) {
    return Error{Code::invalid_argument,
                 "layer ranges end at " + std::to_string(next) + ": the model has " +
                     std::to_string(n_layers)};
  }
  return {};
}

}  // namespace luna::model
