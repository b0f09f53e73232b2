#include "core/model/block_quantizer.hpp"

#include <luna/float16.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstring>

namespace luna::model {
namespace {

constexpr int kBlock = 32;
constexpr int kSuper = 256;
constexpr int kGroups = kSuper / kBlock;

void put_half(std::byte* out, float value) {
  const std::uint16_t half = f32_to_f16(value);
  std::memcpy(out, &half, sizeof(half));
}

/// 0 for steps so small that FP16 has none of them.
float inverse_of(float d) {
  const float inverse = 1.0F / d;
  return std::isfinite(inverse) ? inverse : 0.0F;
}

/// The low halves of 16 bytes are the first 16 codes, the high halves the last 16.
void put_nibbles(const std::array<std::uint8_t, kBlock>& codes, std::byte* out) {
  for (int i = 0; i < kBlock / 2; ++i)
    out[i] = static_cast<std::byte>(codes[i] | codes[i + kBlock / 2] << 4);
}

/// A number that is not negative, cut to a code.
std::uint8_t to_code(float value) {
  return static_cast<std::uint8_t>(std::clamp(std::trunc(value), 0.0F, 15.0F));
}

// d f16, 16 bytes of nibbles: the value farthest from 0 becomes -8 d.
void quantize_q4_0(const float* values, std::uint64_t n_blocks, std::byte* out) {
  for (; n_blocks > 0; --n_blocks, values += kBlock, out += 18) {
    const float* extreme = std::max_element(
        values, values + kBlock, [](float a, float b) { return std::abs(a) < std::abs(b); });
    const float d = *extreme / -8.0F;
    const float inverse = inverse_of(d);
    std::array<std::uint8_t, kBlock> codes;
    for (int i = 0; i < kBlock; ++i)
      codes[i] = to_code(values[i] * inverse + 8.5F);
    put_half(out, d);
    put_nibbles(codes, out + 2);
  }
}

// d f16, m f16, 16 bytes of nibbles
void quantize_q4_1(const float* values, std::uint64_t n_blocks, std::byte* out) {
  for (; n_blocks > 0; --n_blocks, values += kBlock, out += 20) {
    const auto [low, high] = std::minmax_element(values, values + kBlock);
    const float d = (*high - *low) / 15.0F;
    const float inverse = inverse_of(d);
    std::array<std::uint8_t, kBlock> codes;
    for (int i = 0; i < kBlock; ++i)
      codes[i] = to_code((values[i] - *low) * inverse + 0.5F);
    put_half(out, d);
    put_half(out + 2, *low);
    put_nibbles(codes, out + 4);
  }
}

// d f16, 32 signed bytes; halves are rounded away from 0
void quantize_q8_0(const float* values, std::uint64_t n_blocks, std::byte* out) {
  for (; n_blocks > 0; --n_blocks, values += kBlock, out += 34) {
    float largest = 0.0F;
    for (int i = 0; i < kBlock; ++i)
      largest = std::max(largest, std::abs(values[i]));
    const float d = largest / 127.0F;
    const float inverse = inverse_of(d);
    put_half(out, d);
    for (int i = 0; i < kBlock; ++i)
      out[2 + i] =
          static_cast<std::byte>(static_cast<std::int8_t>(std::round(values[i] * inverse)));
  }
}

/// A group of 32 values as scale * code - minimum, neither negative.
struct Group {
  float scale = 0.0F;
  float minimum = 0.0F;
};

/// Weighted sums over a group, for its codes at one trial step.
struct Sums {
  double l = 0.0;
  double l2 = 0.0;
  double xl = 0.0;
};

float code_at(float value, float low, float inverse) {
  return std::clamp(std::nearbyint((value - low) * inverse), 0.0F, 15.0F);
}

double error_of(
    const float* x, const float* weight, float low, float inverse, double scale, double minimum) {
  double error = 0.0;
  for (int i = 0; i < kBlock; ++i) {
    const double miss = scale * code_at(x[i], low, inverse) + minimum - x[i];
    error += weight[i] * miss * miss;
  }
  return error;
}

/// Tries 22 steps between codes; for each, the codes give the best scale and minimum by least
/// squares. Values far from 0 weigh more, as they do in products.
Group search_group(const float* x) {
  std::array<float, kBlock> weight;
  double square = 0.0;
  for (int i = 0; i < kBlock; ++i)
    square += double{x[i]} * x[i];
  const auto mean = static_cast<float>(std::sqrt(square / kBlock));
  double sum_w = 0.0;
  double sum_x = 0.0;
  for (int i = 0; i < kBlock; ++i) {
    weight[i] = mean + std::abs(x[i]);
    sum_w += weight[i];
    sum_x += double{weight[i]} * x[i];
  }
  const auto [lowest, highest] = std::minmax_element(x, x + kBlock);
  const float low = std::min(*lowest, 0.0F);
  if (*highest <= low) return {0.0F, -low};
  double best_scale = (*highest - low) / 15.0;
  double best_minimum = low;
  double best =
      error_of(x, weight.data(), low, static_cast<float>(1.0 / best_scale), best_scale, low);
  for (int step = 0; step <= 20; ++step) {
    const float inverse = (14.0F + 0.1F * static_cast<float>(step)) / (*highest - low);
    Sums sums;
    for (int i = 0; i < kBlock; ++i) {
      const double l = code_at(x[i], low, inverse);
      sums.l += weight[i] * l;
      sums.l2 += weight[i] * l * l;
      sums.xl += weight[i] * l * x[i];
    }
    const double det = sum_w * sums.l2 - sums.l * sums.l;
    if (det <= 0.0) continue;
    double scale = (sum_w * sums.xl - sum_x * sums.l) / det;
    double minimum = (sums.l2 * sum_x - sums.l * sums.xl) / det;
    if (minimum > 0.0) {
      minimum = 0.0;
      scale = sums.xl / sums.l2;
    }
    const double error = error_of(x, weight.data(), low, inverse, scale, minimum);
    if (error >= best || scale <= 0.0) continue;
    best = error;
    best_scale = scale;
    best_minimum = minimum;
  }
  return {static_cast<float>(best_scale), static_cast<float>(-best_minimum)};
}

/// Eight 6-bit scales and minimums in 12 bytes: the first four in the low bits of bytes 0-3 and
/// 4-7, the last four as low nibbles in bytes 8-11 and high bits above the first.
void put_k_scales(const std::array<std::uint8_t, kGroups>& scales,
                  const std::array<std::uint8_t, kGroups>& minimums,
                  std::byte* out) {
  for (int i = 0; i < 4; ++i) {
    out[i] = static_cast<std::byte>(scales[i] | (scales[i + 4] >> 4) << 6);
    out[i + 4] = static_cast<std::byte>(minimums[i] | (minimums[i + 4] >> 4) << 6);
    out[i + 8] = static_cast<std::byte>((scales[i + 4] & 15) | (minimums[i + 4] & 15) << 4);
  }
}

std::uint8_t to_6_bits(float value, float largest) {
  if (largest <= 0.0F) return 0;
  return static_cast<std::uint8_t>(
      std::clamp(std::nearbyint(63.0F / largest * value), 0.0F, 63.0F));
}

// d f16, dmin f16, 12 bytes of scales, 128 bytes of nibbles: byte 32h + i of them has code 64h + i
// below and code 64h + 32 + i above.
void quantize_q4_k(const float* values, std::uint64_t n_blocks, std::byte* out) {
  for (; n_blocks > 0; --n_blocks, values += kSuper, out += 144) {
    std::array<Group, kGroups> groups;
    float scale_max = 0.0F;
    float minimum_max = 0.0F;
    for (int g = 0; g < kGroups; ++g) {
      groups[g] = search_group(values + kBlock * g);
      scale_max = std::max(scale_max, groups[g].scale);
      minimum_max = std::max(minimum_max, groups[g].minimum);
    }
    std::array<std::uint8_t, kGroups> scales;
    std::array<std::uint8_t, kGroups> minimums;
    for (int g = 0; g < kGroups; ++g) {
      scales[g] = to_6_bits(groups[g].scale, scale_max);
      minimums[g] = to_6_bits(groups[g].minimum, minimum_max);
    }
    put_half(out, scale_max / 63.0F);
    put_half(out + 2, minimum_max / 63.0F);
    put_k_scales(scales, minimums, out + 4);
    // The codes are chosen for the scales as they will be read.
    const float d = f16_to_f32(f32_to_f16(scale_max / 63.0F));
    const float d_min = f16_to_f32(f32_to_f16(minimum_max / 63.0F));
    std::array<std::uint8_t, kSuper> codes{};
    for (int i = 0; i < kSuper; ++i) {
      const float scale = d * static_cast<float>(scales[i / kBlock]);
      const float minimum = d_min * static_cast<float>(minimums[i / kBlock]);
      if (scale != 0.0F)
        codes[i] = static_cast<std::uint8_t>(
            std::clamp(std::nearbyint((values[i] + minimum) / scale), 0.0F, 15.0F));
    }
    for (int half = 0; half < kSuper / 64; ++half)
      for (int i = 0; i < kBlock; ++i)
        out[16 + kBlock * half + i] =
            static_cast<std::byte>(codes[64 * half + i] | codes[64 * half + kBlock + i] << 4);
  }
}

constexpr std::array<BlockQuantizer, 4> kQuantizers = {{{"Q4_0", 2, 2, quantize_q4_0},
                                                        {"Q4_1", 3, 3, quantize_q4_1},
                                                        {"Q8_0", 8, 7, quantize_q8_0},
                                                        {"Q4_K", 12, 14, quantize_q4_k}}};

}  // namespace

const BlockQuantizer* block_quantizer(std::string_view name) {
  for (const BlockQuantizer& quantizer : kQuantizers) {
    const bool is_same = std::ranges::equal(name, quantizer.name, [](char a, char b) {
      return std::toupper(static_cast<unsigned char>(a)) == b;
    });
    if (is_same) return &quantizer;
  }
  return nullptr;
}

}  // namespace luna::model
