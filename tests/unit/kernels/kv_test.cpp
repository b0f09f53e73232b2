// KV in its blocks: what INT8 keeps, and how much memory it takes.
#include "attend_support.hpp"

#include <gtest/gtest.h>

namespace luna::kernels {
namespace {

TEST(KvWrite, Int8CodesAreWithinHalfAStepOfTheirValue) {
  set_thread_float_mode();
  for (const KernelSet* set : kernel_sets()) {
    for (const float size : {1e-20F, 1.0F, 3e37F}) {
      Sequence s(*set, {2, 64, 32, KvType::int8}, 40, 107);
      std::vector<float> q(64);
      for (std::int64_t t = 0; t < 40; ++t) {
        for (std::size_t i = 0; i < s.row; ++i) {
          s.k[static_cast<std::size_t>(t) * s.row + i] *= size;
        }
        const auto at = static_cast<std::size_t>(t) * s.row;
        set->kv_write({s.view(), t, s.k.data() + at, s.v.data() + at});
        for (int d = 0; d < 64; ++d) {
          const Coded kept = s.kept(s.k, t, 1, d);
          ASSERT_LE(std::fabs(kept.code * kept.scale - s.k[at + 64 + static_cast<std::size_t>(d)]),
                    0.5001F * kept.scale)
              << set->name;
        }
      }
    }
  }
}

TEST(KvWrite, RowsOfZerosAndOfNonFiniteNumbersHaveTheirScale) {
  set_thread_float_mode();
  for (const KernelSet* set : kernel_sets()) {
    Sequence s(*set, {1, 32, 32, KvType::int8}, 3, 109);
    std::fill_n(s.v.begin(), 32, 0.0F);
    s.v[32 + 7] = INFINITY;
    for (std::int64_t t = 0; t < 3; ++t) {
      set->kv_write({s.view(), t, s.k.data() + t * 32, s.v.data() + t * 32});
    }
    const std::byte* v = s.view().base + s.table[0] * s.stride() + 32 * 32;
    const std::byte* v_scales = v + 32 * 32 + 32 * 2;
    const auto scale = [&](std::size_t t) {
      std::uint16_t bits;
      std::memcpy(&bits, v_scales + t * 2, 2);
      return bits;
    };
    EXPECT_EQ(scale(0), 0U) << set->name;
    EXPECT_EQ(scale(1), 0x7FC0U) << set->name;
    EXPECT_NE(scale(2), 0U) << set->name;
    for (std::size_t i = 0; i < 64; ++i) {
      EXPECT_EQ(v[i], std::byte{0}) << set->name;
    }
  }
}

TEST(KvShape, Int8TakesLittleMoreThanHalf) {
  const KvShape bf16{3, 64, 32, KvType::bf16};
  const KvShape int8{3, 64, 32, KvType::int8};
  EXPECT_LE(static_cast<double>(kv_block_bytes(int8)),
            0.53 * static_cast<double>(kv_block_bytes(bf16)));
}

}  // namespace
}  // namespace luna::kernels
