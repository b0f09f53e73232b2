// A weight packed for the kernels.
#pragma once

#include "kernels/cpu/weights.hpp"
#include "memory.hpp"

#include <luna/abi/op_program.h>
#include <luna/abi/quant.h>
#include <luna/backend_blocks.hpp>

#include <atomic>
#include <vector>

namespace luna::cpu {

/// Owned by the device's table; filled while loading, then read only.
struct Weight {
  luna_weight_desc desc{};
  std::uint32_t numerics = LUNA_NUMERICS_I12;  // the class it was packed for
  kernels::PackedForm form;                    // its segment is each op's own business
  ArenaPiece packed;                           // packed_bytes(form)
  std::vector<float> vector;  // a dense weight of one row or column, as FP32: norms and biases
  std::atomic<std::uint64_t> n_rows_loaded{0};
  std::atomic<bool> is_complete{false};
  Reservation memory;

  [[nodiscard]] bool is_vector() const {
    return desc.klass == LUNA_WEIGHT_DENSE && (desc.n_rows == 1 || desc.n_cols == 1);
  }
  /// Packs a checked range. Disjoint ranges in parallel. [load]
  Result<void> load(const luna_weight_rows& rows);
};

/// The packed form of a described weight under a segment length, for a class of arithmetic.
///
/// Errors  unsupported, naming what the kernels do not know
Result<kernels::PackedForm> plan_weight(const luna_weight_desc& desc,
                                        std::uint64_t segment,
                                        std::uint32_t numerics);
/// Bytes a weight takes on the device.
std::uint64_t weight_bytes_of(const luna_weight_desc& desc, const kernels::PackedForm& form);

}  // namespace luna::cpu
