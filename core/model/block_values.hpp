// What blocks of GGUF are worth, by the plugin that decodes them.
#pragma once

#include "core/model/weight_source.hpp"

#include <luna/result.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace luna::model {

/// Decodes a matrix that stands in no file.
///
/// type     ggml_type
/// bytes    [n_rows] rows of whole blocks
/// Returns  [n_rows, n_cols], row-major
/// Errors   unsupported: no plugin decodes the type; what the plugin answers
Result<std::vector<float>> values_of_blocks(QuantInstances quants,
                                            std::uint32_t type,
                                            std::span<const std::byte> bytes,
                                            std::uint64_t n_rows,
                                            std::uint64_t n_cols);

}  // namespace luna::model
