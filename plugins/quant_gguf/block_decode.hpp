// Blocks to canonical planes, one function a format.
// Source  ggml-common.h (layouts) and ggml-quants.c (meaning) of ggml-org/llama.cpp
#pragma once

#include "formats.hpp"

namespace luna::gguf {

void decode_q4_0(const std::uint8_t* block, const BlockPlanes& planes);
void decode_q4_1(const std::uint8_t* block, const BlockPlanes& planes);
void decode_q5_0(const std::uint8_t* block, const BlockPlanes& planes);
void decode_q5_1(const std::uint8_t* block, const BlockPlanes& planes);
void decode_q8_0(const std::uint8_t* block, const BlockPlanes& planes);
void decode_q2_k(const std::uint8_t* block, const BlockPlanes& planes);
void decode_q3_k(const std::uint8_t* block, const BlockPlanes& planes);
void decode_q4_k(const std::uint8_t* block, const BlockPlanes& planes);
void decode_q5_k(const std::uint8_t* block, const BlockPlanes& planes);
void decode_q6_k(const std::uint8_t* block, const BlockPlanes& planes);
void decode_iq4_nl(const std::uint8_t* block, const BlockPlanes& planes);

}  // namespace luna::gguf
