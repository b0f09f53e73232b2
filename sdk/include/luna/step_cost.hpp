// What a step is expected to take, by the costs that the host has fitted to the steps so far.
#pragma once

#include <luna/scheduler.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace luna {

/// A step's time is `fixed_ns`, and for each token that it computes `row_ns` and `kv_ns` for every
/// KV token that this token attends to, itself included. A value.
struct StepCost {
  double fixed_ns = 0.0;
  double row_ns = 0.0;
  double kv_ns = 0.0;

  /// Of the group that the device belongs to.
  static StepCost of(const luna_device_row& device) {
    return {std::max(double{device.step_ns_fixed}, 0.0),
            std::max(double{device.step_ns_per_row}, 0.0),
            std::max(double{device.step_ns_per_kv_token}, 0.0)};
  }
  /// Costs in tokens, for a policy that has no time to divide: a token costs 1.
  static StepCost of_tokens() { return {0.0, 1.0, 0.0}; }

  /// Whether it can size a chunk. As long as all steps had about as many tokens, what a token costs
  /// cannot be told from the fixed part.
  [[nodiscard]] bool is_known() const { return row_ns > 0.0; }
  /// Whether a step has run at all.
  [[nodiscard]] bool has_any() const { return fixed_ns > 0.0 || row_ns > 0.0 || kv_ns > 0.0; }

  /// n_tokens of one sequence, the first at position `first`; without the step's fixed part.
  [[nodiscard]] double chunk_ns(std::uint32_t first, std::uint32_t n_tokens) const {
    const double n = n_tokens;
    return n * row_ns + kv_ns * (n * first + n * (n + 1.0) / 2.0);
  }
  /// The next tokens of a row.
  [[nodiscard]] double chunk_ns(Row row, std::uint32_t n_tokens) const {
    return chunk_ns(row->n_computed, n_tokens);
  }

  /// The longest chunk from position `first` that takes `ns` at most. Needs known costs.
  ///
  /// Returns  0..n_tokens_max
  [[nodiscard]] std::uint32_t n_tokens_within(double ns,
                                              std::uint32_t first,
                                              std::uint32_t n_tokens_max) const {
    if (!(ns > 0.0)) return 0;
    // The positive root of kv/2 n^2 + b n = ns, in the form that loses no digits for a small kv.
    const double b = row_ns + kv_ns * (first + 0.5);
    const double n = 2.0 * ns / (b + std::sqrt(b * b + 2.0 * kv_ns * ns));
    return n >= n_tokens_max ? n_tokens_max : static_cast<std::uint32_t>(n);
  }
};

}  // namespace luna
