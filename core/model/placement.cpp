#include "core/model/placement.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

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

constexpr double kImpossible = std::numeric_limits<double>::infinity();
// Costs that differ by what rounding leaves are equal.
constexpr double kRounding = 1.0 + 1e-9;

Result<void> check_counts(std::size_t n_devices, std::size_t n_layers) {
  if (n_devices > 0 && n_devices <= n_layers) return {};
  return Error{Code::invalid_argument,
               std::to_string(n_devices) + " devices for " + std::to_string(n_layers) +
                   " layers: each device needs at least one layer"};
}

/// Layers cut into a range a device.
struct Cut {
  double worst = kImpossible;      // cost of the device that it costs most
  std::vector<LayerRange> ranges;  // empty where every cut is impossible
};

/// The cut whose worst cost is least; among equals, earlier devices take fewer layers.
/// cost  of (device, first layer, end); kImpossible where it cannot be
template <typename Cost>
Cut cut_row(std::size_t n_devices, std::size_t n_layers, const Cost& cost) {
  // worst[d][f]: the least possible worst cost when devices d.. hold layers f..; end_of[d][f]: the
  // end of device d's range in the first such cut.
  std::vector<std::vector<double>> worst(n_devices, std::vector<double>(n_layers, kImpossible));
  std::vector<std::vector<std::size_t>> end_of(n_devices, std::vector<std::size_t>(n_layers, 0));
  for (std::size_t device = n_devices; device-- > 0;) {
    const std::size_t n_after = n_devices - 1 - device;
    for (std::size_t first = device; first + n_after < n_layers; ++first) {
      const std::size_t first_end = n_after == 0 ? n_layers : first + 1;
      for (std::size_t end = first_end; end + n_after <= n_layers; ++end) {
        const double rest = n_after == 0 ? 0.0 : worst[device + 1][end];
        const double value = std::max(cost(device, first, end), rest);
        if (value >= worst[device][first]) continue;
        worst[device][first] = value;
        end_of[device][first] = end;
      }
    }
  }
  Cut cut{.worst = worst[0][0], .ranges = {}};
  if (cut.worst == kImpossible) return cut;
  std::size_t first = 0;
  for (std::size_t device = 0; device < n_devices; ++device) {
    const std::size_t end = end_of[device][first];
    cut.ranges.push_back(
        {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end - first)});
    first = end;
  }
  return cut;
}

}  // namespace

Result<std::vector<LayerRange>> balance_layers(const ModelBytes& bytes,
                                               std::span<const std::uint64_t> budgets,
                                               std::span<const LayerRange> at_hand) {
  const std::size_t n_layers = bytes.layers.size();
  const std::size_t n_devices = budgets.size();
  LUNA_TRY(check_counts(n_devices, n_layers));
  if (std::ranges::find(budgets, 0u) != budgets.end())
    return Error{Code::invalid_argument, "a device has a memory budget of 0 bytes"};

  const LayerSums sums(bytes.layers);
  const auto share = [&](std::size_t device, std::size_t first, std::size_t end) {
    if (!at_hand.empty() && (first < at_hand[device].first || end > at_hand[device].end()))
      return kImpossible;
    std::uint64_t held = sums.bytes(first, end);
    if (device == 0) held += bytes.embedding;
    if (device == n_devices - 1) held += bytes.head;
    return static_cast<double>(held) / static_cast<double>(budgets[device]);
  };
  Cut cut = cut_row(n_devices, n_layers, share);
  if (!cut.ranges.empty()) return std::move(cut.ranges);
  std::string has;
  for (const LayerRange& layers : at_hand)
    has += (has.empty() ? "" : ", ") + std::to_string(layers.first) + ".." +
           std::to_string(layers.end() - 1);
  return Error{Code::not_found,
               "no cut of " + std::to_string(n_layers) +
                   " layers gives each device some of those that it has, in this order: " + has};
}

std::vector<std::size_t> order_by_layers(std::span<const LayerRange> at_hand,
                                         std::uint32_t n_layers) {
  std::vector<std::size_t> parts;
  std::vector<std::size_t> wholes;
  for (std::size_t device = 0; device < at_hand.size(); ++device)
    (at_hand[device].count >= n_layers ? wholes : parts).push_back(device);
  std::ranges::stable_sort(parts, {}, [&](std::size_t device) {
    return at_hand[device].first + at_hand[device].end();  // twice the middle
  });
  std::vector<std::size_t> order;
  std::uint32_t n_covered = 0;
  auto whole = wholes.begin();
  for (const std::size_t part : parts) {
    const LayerRange& layers = at_hand[part];
    if (layers.first > n_covered && whole != wholes.end()) order.push_back(*whole++);
    order.push_back(part);
    n_covered = std::max(n_covered, layers.end());
  }
  order.insert(order.end(), whole, wholes.end());
  return order;
}

Result<std::vector<LayerRange>> place_by_speed(std::span<const PlaceTerms> places,
                                               const PlaceGoals& goals) {
  const std::size_t n_devices = places.size();
  const std::size_t n_layers = places.empty() ? 0 : places.front().layer_bytes.size();
  LUNA_TRY(check_counts(n_devices, n_layers));
  std::vector<LayerSums> sums;
  for (const PlaceTerms& place : places)
    sums.emplace_back(place.layer_bytes);

  // Room and speed both as something that shall be small: the inverse of tokens, and time.
  const auto crampedness = [&](std::size_t device, std::size_t first, std::size_t end) {
    const PlaceTerms& place = places[device];
    const std::uint64_t taken = place.fixed_bytes + sums[device].bytes(first, end);
    const std::uint64_t token_bytes = place.kv_token_bytes * (end - first);
    const std::uint64_t left = place.memory_bytes - std::min(place.memory_bytes, taken);
    const std::uint64_t n_tokens =
        std::min(goals.kv_tokens_wanted, left / std::max<std::uint64_t>(1, token_bytes));
    if (n_tokens == 0 || n_tokens < goals.kv_tokens_min) return kImpossible;
    return 1.0 / static_cast<double>(n_tokens);
  };
  const auto time = [&](std::size_t device, std::size_t first, std::size_t end) {
    return places[device].fixed_ns + places[device].layer_ns * static_cast<double>(end - first);
  };
  const auto bounded = [](const auto& cost, const auto& other, double other_max) {
    return [&cost, &other, other_max](std::size_t device, std::size_t first, std::size_t end) {
      return other(device, first, end) > other_max ? kImpossible : cost(device, first, end);
    };
  };
  const double least_cramped = cut_row(n_devices, n_layers, crampedness).worst;
  if (least_cramped == kImpossible) {
    return Error{Code::exhausted,
                 "no placement of " + std::to_string(n_layers) + " layers on " +
                     std::to_string(n_devices) + " devices leaves room for " +
                     std::to_string(goals.kv_tokens_min) + " tokens of KV"};
  }
  const double cramped_max = least_cramped / (1.0 - goals.kv_given_up_max) * kRounding;
  const double fastest =
      cut_row(n_devices, n_layers, bounded(time, crampedness, cramped_max)).worst;
  return cut_row(n_devices, n_layers, bounded(crampedness, time, fastest * kRounding)).ranges;
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
