// Weights of safetensors folders, rounded to nearest: 4 bits as AWQ and GPTQ pack them, and INT8.
#pragma once

#include <luna/result.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna::model {

enum class PackedForm : std::uint8_t { awq, gptq, int8 };

/// One tensor of a safetensors file.
struct PackedPart {
  std::string name;                  // the last word of its name: "qweight"
  std::string_view dtype;            // "I32"; static storage
  std::vector<std::uint64_t> shape;  // slowest first
  std::vector<std::byte> bytes;
};

struct PackedOptions {
  PackedForm form = PackedForm::awq;
  std::uint32_t group = 128;  // columns that share a scale; 0: the whole row
};

/// What a folder's `quantization_config` says of such weights, as JSON text.
std::string quantization_config(const PackedOptions& options);

/// Rounds a weight to the nearest codes and packs them. Each group has a scale in FP16 and, of 4
/// bits, a zero between 1 and 15, so that its lowest and highest value are codes (GPTQ's readers
/// differ on a zero of 0); INT8 is symmetric.
///
/// values   [n_rows, n_cols], row-major, finite
/// Errors   unsupported: a shape that the form cannot hold, with the numbers
/// Source   the layouts: plugins/quant_awq, quant_gptq, quant_int8
Result<std::vector<PackedPart>> pack_weight(const PackedOptions& options,
                                            std::span<const float> values,
                                            std::uint64_t n_rows,
                                            std::uint64_t n_cols);

/// What pack_weight()'s codes are worth: [n_rows, n_cols], row-major.
std::vector<float> rounded_values(const PackedOptions& options,
                                  std::span<const float> values,
                                  std::uint64_t n_rows,
                                  std::uint64_t n_cols);

}  // namespace luna::model
