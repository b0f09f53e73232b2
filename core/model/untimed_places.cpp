#include "core/model/untimed_places.hpp"

#include "core/base/units.hpp"

#include <luna/abi/types.h>

#include <algorithm>

namespace luna::model {
namespace {

// What is not weights, outputs or KV: activations of a step, messages. More than it takes on the
// CPU, since what does not fit is found only when the device plans its part.
constexpr std::uint64_t kScratchBytes = std::uint64_t{48} * kMiB;

/// Weights that a row is multiplied with in a layer.
double layer_weights(const ModelConfig& config) {
  const double hidden = config.hidden_size;
  const double query = double{1} * config.n_heads * config.head_dim;
  const double key_value = double{2} * config.n_kv_heads * config.head_dim;
  return hidden * (2.0 * query + key_value) + 3.0 * hidden * config.ffn_size;
}

std::uint64_t kv_token_bytes(const ModelConfig& config, std::uint32_t kv_dtype) {
  const std::uint64_t n_values = std::uint64_t{2} * config.n_kv_heads * config.head_dim;
  const std::uint64_t scales = std::uint64_t{2} * config.n_kv_heads * sizeof(std::uint16_t);
  return kv_dtype == LUNA_DTYPE_I8 ? n_values + scales : 2 * n_values;
}

}  // namespace

std::vector<PlaceTerms> untimed_places(const ModelConfig& config,
                                       const ModelBytes& bytes,
                                       const ProgramOptions& program,
                                       const UsualStep& step,
                                       std::span<const UntimedDevice> devices) {
  std::vector<PlaceTerms> places;
  for (const UntimedDevice& device : devices) {
    const double threads = std::max(device.n_threads, 1U);
    PlaceTerms& place = places.emplace_back();
    place.memory_bytes = device.memory_bytes;
    place.fixed_bytes = kScratchBytes;
    place.layer_bytes = bytes.layers;
    place.kv_token_bytes = kv_token_bytes(config, program.kv_dtype);
    place.layer_ns = step.n_rows * layer_weights(config) / threads;
    if (places.size() == 1) place.fixed_bytes += bytes.embedding;
    if (places.size() < devices.size()) continue;
    place.fixed_bytes += bytes.head + std::uint64_t{program.limits.n_out_rows_max} *
                                          config.vocab_size * sizeof(float) * program.n_lanes;
    place.fixed_ns = step.n_out_rows * config.vocab_size * config.hidden_size / threads;
  }
  return places;
}

}  // namespace luna::model
