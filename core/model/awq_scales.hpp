// Activation-aware scales: inputs that are large get finer steps of the weight, at no cost later.
#pragma once

#include "core/model/calibration_pass.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace luna::model {

/// What a weight [n_rows, n_cols] is worth once it is rounded, row-major.
using Rounding = std::function<std::vector<float>(
    std::span<const float> values, std::uint64_t n_rows, std::uint64_t n_cols)>;

/// Multiplies columns of a layer's matrices by scales, and divides what makes their inputs (norm,
/// value, up) by the same: the layer computes what it did, but rounds better. Of 20 exponents a,
/// s = mean|x|^a, the one is taken that changes the products with `inputs` least; a = 0 is the
/// plain rounding, so no product gets worse on them.
///
/// inputs   of run_layer() on the weights as they are
/// Cost     21 roundings of each weight and as many products with at most 128 tokens
/// Source   Lin et al. 2023 (AWQ), section 3.2
void scale_layer(const ModelConfig& config,
                 const LayerInputs& inputs,
                 const Rounding& rounding,
                 std::uint32_t n_threads,
                 LayerValues& weights);

}  // namespace luna::model
