// Weights of every form that the canonical layout has, drawn, with their exact values.
#pragma once

#include <luna/abi/quant.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna::check {

/// What a weight is made of; `group` 0: dense of `dtype`.
struct WeightForm {
  std::string_view name;
  std::uint32_t bits = 0;
  std::uint32_t group = 0;
  std::uint32_t super = 0;
  bool has_offset = false;
  bool has_code_book = false;
  std::uint32_t dtype = LUNA_DTYPE_F32;
  [[nodiscard]] bool is_dense() const { return group == 0; }
};

/// A form a row. Columns of a weight are a multiple of its group and super-block.
std::span<const WeightForm> weight_forms();

/// A weight in host memory. A value.
struct DrawnWeight {
  luna_weight_desc desc{};
  std::vector<std::byte> planes[LUNA_N_PLANES];
  std::vector<double> values;  ///< [n_rows, n_cols], exact
  /// [n_rows, n_cols]: |scale * q| + |offset|, what FP32 sums over codes round; dense: |value|.
  std::vector<double> magnitudes;

  [[nodiscard]] bool is_dense() const { return desc.klass == LUNA_WEIGHT_DENSE; }
};

/// Values of about 1 / sqrt(n_cols), with scales that FP16 has.
DrawnWeight draw_weight(std::mt19937_64& random,
                        std::uint64_t n_rows,
                        std::uint64_t n_cols,
                        const WeightForm& form);
/// FP32 numbers in low..high as one row: weights of norms, biases.
DrawnWeight draw_vector(std::mt19937_64& random, std::uint64_t n, float low, float high);
/// BF16 multiples of 1/16 in -2..2, which every type of activation and KV holds exactly.
DrawnWeight draw_embedding(std::mt19937_64& random, std::uint64_t n_rows, std::uint64_t n_cols);

}  // namespace luna::check
