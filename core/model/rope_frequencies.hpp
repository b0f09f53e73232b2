// Rotary positions: the angle per position of each pair, with the scalings that models use.
#pragma once

#include "core/model/model_config.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace luna::model {

enum class RopeScalingKind : std::uint8_t { none, linear, yarn };

/// How a model's positions were stretched beyond the length it was first trained for.
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1.0;                // stretched length / original length
  double original_context = 0.0;      // yarn: positions before stretching
  double beta_fast = 32.0;            // yarn: pairs that turn more often keep their frequency
  double beta_slow = 1.0;             // yarn: pairs that turn less often are stretched whole
  double extrapolation_factor = 1.0;  // yarn: share of the mix; 0 is linear
  double attention_factor = 1.0;      // yarn: further factor on the magnitude
};

/// The frequencies of a model.
///
/// n_rot      elements of a head that are rotated, even
/// base       theta of the papers
/// factors    [n_rot / 2] divisors of the frequencies (llama 3), or empty
/// Returns    frequencies [n_rot / 2] in radians per position, and the magnitude
/// Source     Su et al. 2021 (RoFormer), section 3.4.2; Peng et al. 2023 (YaRN), sections 3.2, 3.4
RopeConfig make_rope(std::uint32_t n_rot,
                     double base,
                     const RopeScaling& scaling,
                     std::span<const float> factors);

}  // namespace luna::model
