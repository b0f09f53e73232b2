// Which device holds which layers.
#pragma once

#include <luna/result.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace luna::model {

/// A contiguous range of a model's layers.
struct LayerRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;

  [[nodiscard]] std::uint32_t end() const { return first + count; }
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

/// What the parts of a model weigh.
struct ModelBytes {
  std::vector<std::uint64_t> layers;  // by layer
  std::uint64_t embedding = 0;        // goes to the first device
  std::uint64_t head = 0;             // goes to the last device, with the last norm
};

/// Balances weights: the largest share of any device's budget that weights take is as small as can
/// be; among equals, earlier devices take fewer layers. Every device gets at least one layer.
///
/// budgets   [n_devices] bytes, in the order the layers shall have
/// Errors    invalid_argument: no devices, a budget of 0, or more devices than layers
/// Cost      O(n_devices * n_layers^2)
Result<std::vector<LayerRange>> balance_layers(const ModelBytes& bytes,
                                               std::span<const std::uint64_t> budgets);

/// Checks ranges that somebody wrote by hand: they cover each layer once, in order.
/// Errors  invalid_argument, with the range that is wrong
Result<void> check_layers(std::span<const LayerRange> ranges,
                          std::uint32_t n_layers,
                          std::size_t n_devices);

}  // namespace luna::model
