// Rows of numbers to the block types of GGUF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace luna::model {

/// How one block type is made. Pure; any number of blocks at a time, in any thread.
///
/// values  [n_blocks * block_values of the type], finite
/// out     [n_blocks * block_bytes of the type]
struct BlockQuantizer {
  std::string_view name;        // "Q4_K"
  std::uint32_t type = 0;       // ggml_type
  std::uint32_t file_type = 0;  // `general.file_type` of a file that is mostly of it
  void (*quantize)(const float* values, std::uint64_t n_blocks, std::byte* out) = nullptr;
};

/// The quantizer of a type, by its name in any case; nullptr: there is none. Q4_0, Q4_1 and Q8_0
/// round to nearest, with the bits that the gguf package gives; Q4_K searches scale and minimum of
/// each 32 values for the least weighted square error.
/// Source  quants.py of the gguf package; make_qkx2_quants of ggml-org/llama.cpp, ggml-quants.c
const BlockQuantizer* block_quantizer(std::string_view name);

}  // namespace luna::model
