// Tile registers: the model against the operations written out and, where the CPU has them, the
// instructions against the model; and how instruction sets are chosen by name.
#include "kernels/cpu/amx/tiles.hpp"

#include "kernel_support.hpp"

#include <gtest/gtest.h>

namespace luna::kernels {
namespace {

/// What both implementations compute from one input: c += a * b by bytes and by BF16.
struct TileResults {
  alignas(64) std::int32_t bytes[16][16];
  alignas(64) float bf16[16][16];
};
struct TileInputs {
  alignas(64) std::uint8_t left[16][64];
  alignas(64) std::uint8_t right[16][64];
  alignas(64) std::int32_t sums[16][16];
};

template <class Tiles>
TileResults multiply(const TileInputs& in, std::uint8_t left_bytes) {
  TileResults out{};
  Tiles tiles;
  tiles.configure(amx::product_config(left_bytes));
  tiles.template load<0>(in.sums, 64);
  tiles.template load<4>(in.left, 64);
  tiles.template load<6>(in.right, 64);
  tiles.template dot_bytes<0, 4, 6>();
  tiles.template store<0>(out.bytes, 64);
  tiles.template load<1>(in.sums, 64);
  tiles.template dot_bf16<1, 4, 6>();
  tiles.template store<1>(out.bf16, 64);
  tiles.release();
  return out;
}

/// Random bytes; as BF16 they hold every kind of number but NaN and infinity.
TileInputs random_inputs(std::uint64_t salt) {
  Random random(salt);
  TileInputs in{};
  for (auto* matrix : {&in.left, &in.right}) {
    for (auto& row : *matrix) {
      for (int i = 0; i < 64; ++i) {
        row[i] = static_cast<std::uint8_t>(random.integer(0, i % 2 == 0 ? 255 : 0x7E));
        row[i] |= static_cast<std::uint8_t>(i % 2 == 0 ? 0 : random.integer(0, 1) << 7);
      }
    }
  }
  for (auto& row : in.sums) {
    for (std::int32_t& sum : row) {
      sum = random.integer(-1000000, 1000000);
    }
  }
  return in;
}

float bf16_at(const std::uint8_t* p) {
  const std::uint32_t bits = static_cast<std::uint32_t>(p[0] | p[1] << 8) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

TEST(SoftwareTiles, MultiplyAsTheManualSays) {
  set_thread_float_mode();
  for (const std::uint8_t left_bytes : {32, 64}) {
    const TileInputs in = random_inputs(left_bytes);
    const TileResults out = multiply<amx::SoftwareTiles>(in, left_bytes);
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 16; ++column) {
        std::int32_t sum = in.sums[row][column];
        float even = 0.0F;
        float odd = 0.0F;
        for (int k = 0; k < left_bytes; ++k) {
          sum += static_cast<std::int8_t>(in.left[row][k]) * in.right[k / 4][4 * column + k % 4];
        }
        for (int k = 0; k < left_bytes; k += 4) {
          const std::uint8_t* a = in.left[row] + k;
          const std::uint8_t* b = in.right[k / 4] + 4 * column;
          even = std::fma(bf16_at(a), bf16_at(b), even);
          odd = std::fma(bf16_at(a + 2), bf16_at(b + 2), odd);
        }
        ASSERT_EQ(out.bytes[row][column], sum) << row << ' ' << column;
        float start;
        std::memcpy(&start, &in.sums[row][column], sizeof start);
        const float expected = start + (even + odd);
        ASSERT_TRUE(std::memcmp(&out.bf16[row][column], &expected, 4) == 0 ||
                    (std::isnan(expected) && std::isnan(out.bf16[row][column])))
            << row << ' ' << column;
      }
    }
  }
}

TEST(HardwareTiles, GiveTheBitsOfTheModel) {
  if (kernel_set(Isa::amx) == nullptr) {
    GTEST_SKIP() << "this CPU or system has no AMX: the instructions are not proven here";
  }
  set_thread_float_mode();
  for (std::uint64_t salt = 0; salt < 200; ++salt) {
    const std::uint8_t left_bytes = salt % 2 == 0 ? 64 : 32;
    const TileInputs in = random_inputs(salt);
    const TileResults expected = multiply<amx::SoftwareTiles>(in, left_bytes);
    const TileResults got = multiply<amx::HardwareTiles>(in, left_bytes);
    ASSERT_EQ(0, std::memcmp(got.bytes, expected.bytes, sizeof got.bytes)) << salt;
    for (int i = 0; i < 256; ++i) {
      const float a = got.bf16[i / 16][i % 16];
      const float b = expected.bf16[i / 16][i % 16];
      ASSERT_TRUE(std::memcmp(&a, &b, 4) == 0 || (std::isnan(a) && std::isnan(b))) << salt;
    }
  }
}

TEST(FindKernels, NamesASetOrSaysWhyNot) {
  const char* why = nullptr;
  EXPECT_EQ(find_kernels("portable", &why), kernel_set(Isa::portable));
  for (const Isa isa : kIsas) {
    const KernelSet* set = kernel_set(isa);
    if (set != nullptr) {
      EXPECT_EQ(find_kernels(set->name, &why), set);
    }
  }
  EXPECT_EQ(find_kernels("sse9", &why), nullptr);
  EXPECT_STREQ(why, "must be portable, avx2, avx512, avx512_bf16 or amx");
  if (kernel_set(Isa::amx) == nullptr) {
    why = nullptr;
    EXPECT_EQ(find_kernels("amx", &why), nullptr);
    EXPECT_NE(why, nullptr);
  }
}

}  // namespace
}  // namespace luna::kernels
