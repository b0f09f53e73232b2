#include "block_decode.hpp"

#include <cstring>

namespace luna::gguf {
namespace {

using Byte = std::uint8_t;

float f16_at(const Byte* p) {
  std::uint16_t half;
  std::memcpy(&half, p, sizeof(half));
  return f16_to_f32(half);
}

/// 16 bytes of nibbles: the low halves are the first 16 codes, the high halves the last 16.
void split_nibbles(const Byte* nibbles, Byte* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = nibbles[i] & 0x0F;
    codes[i + 16] = nibbles[i] >> 4;
  }
}

/// Fifth bits of 32 codes: bit i of a little-endian word belongs to code i.
void add_fifth_bits(const Byte* word, Byte* codes) {
  std::uint32_t bits;
  std::memcpy(&bits, word, sizeof(bits));
  for (int i = 0; i < 32; ++i)
    codes[i] |= static_cast<Byte>(((bits >> i) & 1) << 4);
}

/// Eight 6-bit scales and minimums in 12 bytes. The first four lie in the low bits of bytes 0-3 and
/// 4-7; the last four have their low nibbles in bytes 8-11 and their high bits above the first.
void unpack_k_scales(const Byte* packed, std::int8_t* scales, std::int8_t* minimums) {
  for (int i = 0; i < 4; ++i) {
    scales[i] = static_cast<std::int8_t>(packed[i] & 63);
    minimums[i] = static_cast<std::int8_t>(packed[i + 4] & 63);
    scales[i + 4] = static_cast<std::int8_t>((packed[i + 8] & 15) | ((packed[i] >> 6) << 4));
    minimums[i + 4] = static_cast<std::int8_t>((packed[i + 8] >> 4) | ((packed[i + 4] >> 6) << 4));
  }
}

}  // namespace

// d f16, 16 bytes of nibbles
void decode_q4_0(const Byte* block, const BlockPlanes& planes) {
  *planes.scale = f16_at(block);
  split_nibbles(block + 2, planes.codes);
}

// d f16, m f16, 16 bytes of nibbles; the offset is +m
void decode_q4_1(const Byte* block, const BlockPlanes& planes) {
  *planes.scale = f16_at(block);
  *planes.offset = f16_at(block + 2);
  split_nibbles(block + 4, planes.codes);
}

// d f16, 32 fifth bits, 16 bytes of nibbles
void decode_q5_0(const Byte* block, const BlockPlanes& planes) {
  *planes.scale = f16_at(block);
  split_nibbles(block + 6, planes.codes);
  add_fifth_bits(block + 2, planes.codes);
}

// d f16, m f16, 32 fifth bits, 16 bytes of nibbles
void decode_q5_1(const Byte* block, const BlockPlanes& planes) {
  *planes.scale = f16_at(block);
  *planes.offset = f16_at(block + 2);
  split_nibbles(block + 8, planes.codes);
  add_fifth_bits(block + 4, planes.codes);
}

// d f16, 32 signed bytes; codes are unsigned, so 128 is added
void decode_q8_0(const Byte* block, const BlockPlanes& planes) {
  *planes.scale = f16_at(block);
  for (int i = 0; i < 32; ++i)
    planes.codes[i] = block[2 + i] ^ 0x80;
}

// 16 bytes: low nibble scale, high nibble minimum; 64 bytes of 2-bit codes; d f16, dmin f16.
// Byte 32h + i holds codes 128h + i, + 32, + 64, + 96 from its low bits up.
void decode_q2_k(const Byte* block, const BlockPlanes& planes) {
  for (int g = 0; g < 16; ++g) {
    planes.sub_scale[g] = static_cast<std::int8_t>(block[g] & 15);
    planes.sub_offset[g] = static_cast<std::int8_t>(block[g] >> 4);
  }
  const Byte* two_bits = block + 16;
  for (int half = 0; half < 2; ++half)
    for (int shift = 0; shift < 4; ++shift)
      for (int i = 0; i < 32; ++i)
        planes.codes[128 * half + 32 * shift + i] = (two_bits[32 * half + i] >> (2 * shift)) & 3;
  *planes.super_scale = f16_at(block + 80);
  *planes.super_offset = -f16_at(block + 82);
}

// 32 bytes of third bits; 64 bytes of 2-bit codes (as Q2_K); 12 bytes of 6-bit scales; d f16.
// Third bits: bit b of byte i belongs to code 32b + i; set means that 4 is not taken off.
void decode_q3_k(const Byte* block, const BlockPlanes& planes) {
  const Byte* third_bits = block;
  const Byte* two_bits = block + 32;
  const Byte* scales = block + 96;
  for (int run = 0; run < 8; ++run) {
    for (int i = 0; i < 32; ++i) {
      const int low = (two_bits[32 * (run / 4) + i] >> (2 * (run % 4))) & 3;
      const int high = (third_bits[i] >> run) & 1;
      planes.codes[32 * run + i] = static_cast<Byte>(low | (high << 2));
    }
  }
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
    const int high = (scales[8 + g % 4] >> (2 * (g / 4))) & 3;
    planes.sub_scale[g] = static_cast<std::int8_t>((low | (high << 4)) - 32);
  }
  *planes.super_scale = f16_at(block + 108);
}

// d f16, dmin f16, 12 bytes of scales and minimums, 128 bytes of nibbles.
// Byte 32h + i holds code 64h + i in its low half and 64h + 32 + i in its high half.
void decode_q4_k(const Byte* block, const BlockPlanes& planes) {
  *planes.super_scale = f16_at(block);
  *planes.super_offset = -f16_at(block + 2);
  unpack_k_scales(block + 4, planes.sub_scale, planes.sub_offset);
  for (int run = 0; run < 4; ++run) {
    for (int i = 0; i < 32; ++i) {
      planes.codes[64 * run + i] = block[16 + 32 * run + i] & 15;
      planes.codes[64 * run + 32 + i] = block[16 + 32 * run + i] >> 4;
    }
  }
}

// As Q4_K with 32 bytes of fifth bits before the nibbles: bit b of byte i belongs to code 32b + i.
void decode_q5_k(const Byte* block, const BlockPlanes& planes) {
  *planes.super_scale = f16_at(block);
  *planes.super_offset = -f16_at(block + 2);
  unpack_k_scales(block + 4, planes.sub_scale, planes.sub_offset);
  const Byte* fifth_bits = block + 16;
  const Byte* nibbles = block + 48;
  for (int run = 0; run < 8; ++run) {
    for (int i = 0; i < 32; ++i) {
      const int low = (nibbles[32 * (run / 2) + i] >> (4 * (run % 2))) & 15;
      const int high = (fifth_bits[i] >> run) & 1;
      planes.codes[32 * run + i] = static_cast<Byte>(low | (high << 4));
    }
  }
}

// 128 bytes of low nibbles, 64 bytes of high pairs, 16 signed scales, d f16. Per half of 128 codes:
// nibble byte i holds codes i and 64 + i, byte 32 + i codes 32 + i and 96 + i; pair byte i holds
// the high bits of codes i, 32 + i, 64 + i, 96 + i from its low bits up.
void decode_q6_k(const Byte* block, const BlockPlanes& planes) {
  for (std::size_t half = 0; half < 2; ++half) {
    const Byte* nibbles = block + 64 * half;
    const Byte* pairs = block + 128 + 32 * half;
    for (std::size_t run = 0; run < 4; ++run) {
      for (std::size_t i = 0; i < 32; ++i) {
        const int low = (nibbles[32 * (run % 2) + i] >> (4 * (run / 2))) & 15;
        const int high = (pairs[i] >> (2 * run)) & 3;
        planes.codes[128 * half + 32 * run + i] = static_cast<Byte>(low | (high << 4));
      }
    }
  }
  std::memcpy(planes.sub_scale, block + 192, 16);
  *planes.super_scale = f16_at(block + 208);
}

// d f16, 16 bytes of nibbles that number values of kIq4Values
void decode_iq4_nl(const Byte* block, const BlockPlanes& planes) {
  *planes.scale = f16_at(block);
  split_nibbles(block + 2, planes.codes);
}

}  // namespace luna::gguf
