// Blocks to values by the formats' own definitions: walked value by value in F32, as the reference
// does, and written apart from block_decode.cpp so that one can be held against the other.
// Source  dequantize_row_* in ggml-quants.c of ggml-org/llama.cpp
#pragma once

#include <cstdint>

namespace luna::gguf {

void values_f32(const std::uint8_t* block, float* values);
void values_f16(const std::uint8_t* block, float* values);
void values_bf16(const std::uint8_t* block, float* values);
void values_q4_0(const std::uint8_t* block, float* values);
void values_q4_1(const std::uint8_t* block, float* values);
void values_q5_0(const std::uint8_t* block, float* values);
void values_q5_1(const std::uint8_t* block, float* values);
void values_q8_0(const std::uint8_t* block, float* values);
void values_q2_k(const std::uint8_t* block, float* values);
void values_q3_k(const std::uint8_t* block, float* values);
void values_q4_k(const std::uint8_t* block, float* values);
void values_q5_k(const std::uint8_t* block, float* values);
void values_q6_k(const std::uint8_t* block, float* values);
void values_iq4_nl(const std::uint8_t* block, float* values);

}  // namespace luna::gguf
