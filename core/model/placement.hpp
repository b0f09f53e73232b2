// Which device holds which layers.
#pragma once

#include <luna/result.hpp>

#include <cstddef>
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
/// at_hand   [n_devices] layers that each could get; empty: all
/// Errors    invalid_argument: no devices, a budget of 0, or more devices than layers; not_found:
/// no
///           cut of what is at hand
/// Cost      O(n_devices * n_layers^2)
Result<std::vector<LayerRange>> balance_layers(const ModelBytes& bytes,
                                               std::span<const std::uint64_t> budgets,
                                               std::span<const LayerRange> at_hand = {});

/// The order in which devices that hold some of a model's layers can share its row: those with a
/// part by where it lies, a device with all layers ahead of a gap, the others of them behind. Where
/// all hold all, the order is theirs.
///
/// at_hand  [n_devices] layers that each could get
/// Returns  [n_devices] indices of devices, in layer order
std::vector<std::size_t> order_by_layers(std::span<const LayerRange> at_hand,
                                         std::uint32_t n_layers);

/// What a device has and takes at its place in the row.
struct PlaceTerms {
  std::uint64_t memory_bytes = 0;  ///< what the model may take
  /// Whatever layers it holds: activations, outputs, messages, embedding or head.
  std::uint64_t fixed_bytes = 0;
  std::vector<std::uint64_t> layer_bytes;  ///< by layer
  std::uint64_t kv_token_bytes = 0;        ///< of one token in one layer
  double layer_ns = 0.0;                   ///< one layer, in a step of usual size
  double fixed_ns = 0.0;                   ///< of such a step: what is not layers
};

struct PlaceGoals {
  std::uint64_t kv_tokens_min = 0;  ///< with less no request can run
  /// Room beyond it is of no use: as long as all sequences together may become.
  std::uint64_t kv_tokens_wanted = 0;
  /// Of the room that the roomiest placement has, the share that speed may cost. A pipeline is as
  /// fast as its slowest device, and as roomy as its tightest; where the last has the head beside
  /// as many layers, a quarter fewer of them there is about what evens the times out.
  double kv_given_up_max = 0.25;
};

/// Places layers by time. Of all ways to cut the row, those
///   1. in which every device has room for its weights and kv_tokens_min tokens of KV;
///   2. of them, those whose room is at least (1 - kv_given_up_max) of the largest there is (room
///   is
///      that of the tightest device, and counts up to kv_tokens_wanted);
///   3. of them, those whose slowest device is fastest;
///   4. of them, those with the most room; among equals, earlier devices take fewer layers.
///
/// places    [n_devices], in the order the layers shall have
/// Errors    invalid_argument: no devices, more than layers; exhausted: there is none of 1
/// Cost      O(n_devices * n_layers^2)
Result<std::vector<LayerRange>> place_by_speed(std::span<const PlaceTerms> places,
                                               const PlaceGoals& goals);

/// Checks ranges that somebody wrote by hand: they cover each layer once, in order.
/// Errors  invalid_argument, with the range that is wrong
Result<void> check_layers(std::span<const LayerRange> ranges,
                          std::uint32_t n_layers,
                          std::size_t n_devices);

}  // namespace luna::model
