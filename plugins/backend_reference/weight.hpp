// A weight as plain FP32 numbers.
#pragma once

#include <luna/abi/quant.h>
#include <luna/backend_blocks.hpp>

#include <atomic>
#include <vector>

namespace luna::reference {

/// Decoded rows of one weight. Owned by the device's table; filled while loading, then read only.
struct Weight {
  luna_weight_desc desc{};
  std::vector<float> values;  // [n_rows, n_cols]
  std::atomic<std::uint64_t> n_rows_loaded{0};
  std::atomic<bool> is_complete{false};
  Reservation memory;

  /// Whether the backend knows the element type. [any]
  static Result<void> check_supported(const luna_weight_desc& desc);
  /// Decodes a checked range. Disjoint ranges in parallel. [load]
  void load(const luna_weight_rows& rows);
};

}  // namespace luna::reference
