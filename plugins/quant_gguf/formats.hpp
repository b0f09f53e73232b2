// The block formats of GGUF that Luna decodes, as one table.
#pragma once

#include <luna/quant.hpp>

#include <cstdint>
#include <string_view>

namespace luna::gguf {

/// Where the canonical numbers of one block go; planes a format lacks are nullptr.
struct BlockPlanes {
  std::uint8_t* codes = nullptr;      // [block_values]
  float* scale = nullptr;             // [block_values / group]
  float* offset = nullptr;            // [block_values / group]
  std::int8_t* sub_scale = nullptr;   // [block_values / group]
  std::int8_t* sub_offset = nullptr;  // [block_values / group]
  float* super_scale = nullptr;       // [1]
  float* super_offset = nullptr;      // [1]
};

/// One block to canonical planes.
using DecodeBlock = void (*)(const std::uint8_t* block, const BlockPlanes& planes);
/// One block to values by the format's definition, written apart from DecodeBlock: its oracle.
using BlockValues = void (*)(const std::uint8_t* block, float* values);

/// A format. Its block holds `block_values` values in `block_bytes` bytes.
struct Format {
  std::uint32_t type = 0;  // ggml_type
  std::string_view name;
  std::uint32_t block_values = 1;
  std::uint32_t block_bytes = 0;
  std::uint32_t klass = LUNA_WEIGHT_DENSE;
  std::uint32_t dtype = 0;  // DENSE: LUNA_DTYPE_*
  std::uint32_t bits = 0;
  std::uint32_t group = 0;
  std::uint32_t super = 0;
  bool has_offset = false;
  float zero = 0.0F;
  DecodeBlock decode = nullptr;  // nullptr for DENSE: the bytes are the values
  BlockValues values = nullptr;
};

/// The format of a ggml_type, or nullptr for one that is not decoded.
const Format* format_by_type(std::uint32_t type);

/// The name of a ggml_type that Luna knows but does not decode, or "unknown".
std::string_view undecoded_name(std::uint32_t type);

/// Every format that is decoded, separated by blanks: for messages.
std::string known_formats();

/// Values of the 16 codes of IQ4_NL.
inline constexpr std::int8_t kIq4Values[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

}  // namespace luna::gguf
