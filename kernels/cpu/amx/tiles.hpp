// Tile registers: eight matrices of up to 16 rows of 64 bytes, and their products. Two
// implementations with the same members: AMX instructions, and a model of them in plain C++ that
// shows on any CPU which numbers a kernel multiplies, and to which bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace luna::kernels::amx {

struct TileShape {
  std::uint8_t rows;
  std::uint8_t row_bytes;
};

/// What LDTILECFG reads: palette 1, then the shapes of the eight tiles.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

/// Tiles 0..3 take sums (16 x 16 words), 4 and 5 a left side of 16 rows, 6 and 7 a right side of 16
/// columns, for products over `left_bytes` bytes of a row.
constexpr TileConfig product_config(std::uint8_t left_bytes) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    const bool is_left = t == 4 || t == 5;
    config.row_bytes[t] = is_left ? left_bytes : 64;
    config.rows[t] = t < 6 ? 16 : static_cast<std::uint8_t>(left_bytes / 4);
  }
  return config;
}

/// The registers of this thread. Instructions are written out: GCC 12's intrinsics do not say that
/// they read memory. They need amx_is_permitted().
class HardwareTiles {
 public:
  void configure(const TileConfig& config) const {
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }
  /// Gives the registers back: their state is saved at every switch of threads otherwise.
  void release() const { asm volatile("tilerelease" : : : "memory"); }
  template <int t>
  void zero() const {
    asm volatile("tilezero %%tmm%c0" : : "i"(t));
  }
  template <int t>
  void load(const void* p, std::size_t stride_bytes) const {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride_bytes), "i"(t) : "memory");
  }
  template <int t>
  void store(void* p, std::size_t stride_bytes) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride_bytes), "i"(t) : "memory");
  }
  /// c += a * b: a signed bytes, b unsigned ones, four to a word.
  template <int c, int a, int b>
  void dot_bytes() const {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
  }
  /// c += a * b over BF16 pairs, in the order of arithmetic.hpp's chain step.
  template <int c, int a, int b>
  void dot_bf16() const {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
  }
};

/// The same in memory of its own, as the Intel manual writes the operations down. Under the
/// kernels' float mode: denormals are zero, rounding to nearest even.
class SoftwareTiles {
 public:
  void configure(const TileConfig& config) { config_ = config; }
  void release() { config_ = TileConfig{}; }
  template <int t>
  void zero() {
    std::memset(tiles_[t], 0, sizeof tiles_[t]);
  }
  template <int t>
  void load(const void* p, std::size_t stride_bytes) {
    zero<t>();
    for (int row = 0; row < config_.rows[t]; ++row) {
      std::memcpy(tiles_[t][row],
                  static_cast<const std::byte*>(p) + static_cast<std::size_t>(row) * stride_bytes,
                  config_.row_bytes[t]);
    }
  }
  template <int t>
  void store(void* p, std::size_t stride_bytes) const {
    for (int row = 0; row < config_.rows[t]; ++row) {
      std::memcpy(static_cast<std::byte*>(p) + static_cast<std::size_t>(row) * stride_bytes,
                  tiles_[t][row],
                  config_.row_bytes[t]);
    }
  }
  template <int c, int a, int b>
  void dot_bytes() {
    for_each_word<c, a>([&](int row, int column, int n_words) {
      std::int32_t sum = 0;
      std::memcpy(&sum, tiles_[c][row] + 4 * column, 4);
      for (int i = 0; i < 4 * n_words; ++i) {
        sum += static_cast<std::int8_t>(tiles_[a][row][i]) *
               static_cast<std::int32_t>(tiles_[b][i / 4][4 * column + i % 4]);
      }
      std::memcpy(tiles_[c][row] + 4 * column, &sum, 4);
    });
  }
  template <int c, int a, int b>
  void dot_bf16() {
    for_each_word<c, a>([&](int row, int column, int n_words) {
      float chains[2] = {0.0F, 0.0F};
      for (int i = 0; i < 2 * n_words; ++i) {
        chains[i % 2] = std::fma(bf16(tiles_[a][row] + 2 * i),
                                 bf16(tiles_[b][i / 2] + 4 * column + 2 * (i % 2)),
                                 chains[i % 2]);
      }
      float sum = 0.0F;
      std::memcpy(&sum, tiles_[c][row] + 4 * column, 4);
      sum = sum + (chains[0] + chains[1]);
      std::memcpy(tiles_[c][row] + 4 * column, &sum, 4);
    });
  }

 private:
  static float bf16(const std::uint8_t* p) {
    std::uint16_t half = 0;
    std::memcpy(&half, p, 2);
    const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
    float x = 0.0F;
    std::memcpy(&x, &bits, 4);
    return x;
  }
  template <int c, int a, class Body>
  void for_each_word(Body body) {
    for (int row = 0; row < config_.rows[c]; ++row) {
      for (int column = 0; column < config_.row_bytes[c] / 4; ++column) {
        body(row, column, config_.row_bytes[a] / 4);
      }
    }
  }

  TileConfig config_;
  std::uint8_t tiles_[8][16][64] = {};
};

}  // namespace luna::kernels::amx
