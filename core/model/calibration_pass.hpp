// What the linear ops of a layer see of a text: an FP32 pass that keeps their inputs.
#pragma once

#include "core/model/model_config.hpp"
#include "core/model/weight_names.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace luna::model {

/// Numbers by feature and token: [n_features, n_tokens], a token's features n_tokens apart. Loops
/// over tokens are then loops over neighbours. A value.
struct Activations {
  std::uint64_t n_features = 0;
  std::uint64_t n_tokens = 0;
  std::vector<float> values;

  Activations() = default;
  Activations(std::uint64_t features, std::uint64_t tokens)
      : n_features(features), n_tokens(tokens), values(features * tokens) {}
  [[nodiscard]] std::span<float> of(std::uint64_t feature) {
    return std::span(values).subspan(feature * n_tokens, n_tokens);
  }
  [[nodiscard]] std::span<const float> of(std::uint64_t feature) const {
    return std::span(values).subspan(feature * n_tokens, n_tokens);
  }
};

/// The weights of one layer in FP32, by LayerWeight; each row-major in its shape.
using LayerValues = std::array<std::vector<float>, kNLayerWeights>;

/// What the linear ops of a layer read.
struct LayerInputs {
  Activations attention;  // normed, of query, key, value: [hidden_size, n_tokens]
  Activations heads;      // of attention_out: [n_heads * head_dim, n_tokens]
  Activations ffn;        // normed, of gate and up: [hidden_size, n_tokens]
  Activations gated;      // of down: [ffn_size, n_tokens]
};

/// Runs one layer of a Llama on one sequence that begins at position 0.
///
/// x        hidden states [hidden_size, n_tokens]: before, then after the layer
/// Returns  what its linear ops read
/// Cost     the layer's products in plain loops, on n_threads threads
LayerInputs run_layer(const ModelConfig& config,
                      const LayerValues& weights,
                      std::uint32_t n_threads,
                      Activations& x);

/// weight [n_rows, x.n_features] times x: [n_rows, n_tokens]
Activations times(std::span<const float> weight,
                  std::uint64_t n_rows,
                  const Activations& x,
                  std::uint32_t n_threads);

}  // namespace luna::model
