#include "block_values.hpp"

#include "formats.hpp"

#include <cstring>

namespace luna::gguf {
namespace {

using Byte = std::uint8_t;

std::uint16_t u16_at(const Byte* p) {
  return static_cast<std::uint16_t>(p[0] | (p[1] << 8));
}
float half_at(const Byte* p) {
  return f16_to_f32(u16_at(p));
}
/// Nibble of value i in 16 bytes.
int nibble(const Byte* nibbles, int i) {
  return i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
}
/// Bit i of a run of bytes.
int bit(const Byte* bytes, int i) {
  return (bytes[i / 8] >> (i % 8)) & 1;
}

/// Scale number j of the 12 packed bytes of Q4_K and Q5_K (get_scale_min_k4).
int k4_scale(const Byte* q, int j) {
  return j < 4 ? q[j] & 63 : (q[j + 4] & 15) | ((q[j - 4] >> 6) << 4);
}
int k4_minimum(const Byte* q, int j) {
  return j < 4 ? q[j + 4] & 63 : (q[j + 4] >> 4) | ((q[j] >> 6) << 4);
}

}  // namespace

void values_f32(const Byte* block, float* values) {
  std::memcpy(values, block, sizeof(float));
}

void values_f16(const Byte* block, float* values) {
  *values = half_at(block);
}

void values_bf16(const Byte* block, float* values) {
  *values = bf16_to_f32(u16_at(block));
}

void values_q4_0(const Byte* block, float* values) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i)
    values[i] = d * static_cast<float>(nibble(block + 2, i) - 8);
}

void values_q4_1(const Byte* block, float* values) {
  const float d = half_at(block);
  const float m = half_at(block + 2);
  for (int i = 0; i < 32; ++i)
    values[i] = d * static_cast<float>(nibble(block + 4, i)) + m;
}

void values_q5_0(const Byte* block, float* values) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) {
    const int q = nibble(block + 6, i) + 16 * bit(block + 2, i);
    values[i] = d * static_cast<float>(q - 16);
  }
}

void values_q5_1(const Byte* block, float* values) {
  const float d = half_at(block);
  const float m = half_at(block + 2);
  for (int i = 0; i < 32; ++i) {
    const int q = nibble(block + 8, i) + 16 * bit(block + 4, i);
    values[i] = d * static_cast<float>(q) + m;
  }
}

void values_q8_0(const Byte* block, float* values) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i)
    values[i] = d * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
}

void values_q2_k(const Byte* block, float* values) {
  const float d = half_at(block + 80);
  const float dmin = half_at(block + 82);
  for (int i = 0; i < 256; ++i) {
    const Byte scale = block[i / 16];
    const int q = (block[16 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
    const float dl = d * static_cast<float>(scale & 15);
    const float ml = dmin * static_cast<float>(scale >> 4);
    values[i] = dl * static_cast<float>(q) - ml;
  }
}

void values_q3_k(const Byte* block, float* values) {
  const float d = half_at(block + 108);
  const Byte* packed = block + 96;
  for (int i = 0; i < 256; ++i) {
    const int g = i / 16;
    // Four bits of scale g, then two bits further on.
    const int low = (packed[g % 8] >> (4 * (g / 8))) & 15;
    const int high = (packed[8 + g % 4] >> (2 * (g / 4))) & 3;
    const int scale = low + 16 * high - 32;
    const int q = (block[32 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
    const bool keeps = ((block[i % 32] >> (i / 32)) & 1) != 0;
    values[i] = d * static_cast<float>(scale) * static_cast<float>(keeps ? q : q - 4);
  }
}

void values_q4_k(const Byte* block, float* values) {
  const float d = half_at(block);
  const float dmin = half_at(block + 2);
  for (int i = 0; i < 256; ++i) {
    const int q = (block[16 + 32 * (i / 64) + i % 32] >> (4 * (i % 64 / 32))) & 15;
    const float dl = d * static_cast<float>(k4_scale(block + 4, i / 32));
    const float ml = dmin * static_cast<float>(k4_minimum(block + 4, i / 32));
    values[i] = dl * static_cast<float>(q) - ml;
  }
}

void values_q5_k(const Byte* block, float* values) {
  const float d = half_at(block);
  const float dmin = half_at(block + 2);
  for (int i = 0; i < 256; ++i) {
    const int low = (block[48 + 32 * (i / 64) + i % 32] >> (4 * (i % 64 / 32))) & 15;
    const int q = low + 16 * ((block[16 + i % 32] >> (i / 32)) & 1);
    const float dl = d * static_cast<float>(k4_scale(block + 4, i / 32));
    const float ml = dmin * static_cast<float>(k4_minimum(block + 4, i / 32));
    values[i] = dl * static_cast<float>(q) - ml;
  }
}

void values_q6_k(const Byte* block, float* values) {
  const float d = half_at(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;
    const int run = i % 128 / 32;
    const int low = (block[64 * half + 32 * (run % 2) + i % 32] >> (run < 2 ? 0 : 4)) & 15;
    const int high = (block[128 + 32 * half + i % 32] >> (2 * run)) & 3;
    const auto scale = static_cast<std::int8_t>(block[192 + i / 16]);
    values[i] = d * static_cast<float>(scale) * static_cast<float>(low + 16 * high - 32);
  }
}

void values_iq4_nl(const Byte* block, float* values) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i)
    values[i] = d * static_cast<float>(kIq4Values[nibble(block + 2, i)]);
}

}  // namespace luna::gguf
