// Packing: values survive exactly, ranges of rows may be packed apart, unknown forms are refused.
#include "kernel_support.hpp"

#include <gtest/gtest.h>

namespace luna::kernels {
namespace {

class Packing : public testing::TestWithParam<NamedForm> {};

TEST_P(Packing, UnpackedRowsHoldTheCanonicalValues) {
  set_thread_float_mode();
  const CanonicalWeight w(GetParam().form, 77, 768, 29);
  const Packed packed(w);
  for (const KernelSet* set : kernel_sets()) {
    std::vector<float> row(768);
    for (std::int64_t r = 0; r < 77; ++r) {
      set->unpack_row(packed.form, packed.bytes.get(), r, row.data());
      for (std::int64_t k = 0; k < 768; ++k) {
        // scale * code is exact in FP32, so one rounding is all there is.
        ASSERT_EQ(row[static_cast<std::size_t>(k)], static_cast<float>(w.value(r, k)))
            << set->name << " row " << r << " column " << k;
      }
    }
  }
}

TEST_P(Packing, RangesPackedApartEqualTheWhole) {
  const CanonicalWeight w(GetParam().form, 150, 256, 31);
  const Packed whole(w);
  const AlignedBytes apart(packed_bytes(whole.form));
  for (const std::int64_t first : {128, 0, 64}) {
    pack_rows(
        whole.form, w.rows(first), first, std::min<std::int64_t>(64, 150 - first), apart.get());
  }
  EXPECT_EQ(0, std::memcmp(apart.get(), whole.bytes.get(), packed_bytes(whole.form)));
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         Packing,
                         testing::ValuesIn(quantized_forms()),
                         [](const auto& one) { return one.param.name; });

TEST(PlanPacking, RefusesWhatTheKernelsDoNotKnow) {
  PackedForm packed;
  const auto is_known = [&](WeightForm f, std::int64_t k) {
    f.n_rows = 64;
    f.n_cols = k;
    f.segment = 256;
    return plan_packing(f, ScaleStorage::f16, &packed);
  };
  EXPECT_TRUE(is_known(affine(4, 32, 0, true, 0), 512));
  EXPECT_FALSE(is_known(affine(4, 32, 0, true, 0), 500));  // K is no multiple of 32
  EXPECT_FALSE(is_known(affine(4, 16, 0, true, 0), 512));  // groups of 16 without super-blocks
  EXPECT_FALSE(is_known(affine(1, 32, 0, true, 0), 512));
  EXPECT_FALSE(is_known(affine(9, 32, 0, true, 0), 512));
  EXPECT_FALSE(is_known(affine(4, 32, 128, true, 0), 512));  // other super-blocks than 256
  EXPECT_FALSE(is_known(affine(4, 32, 256, true, 0), 384));
  EXPECT_FALSE(is_known(affine(8, 32, 256, true, 0), 512));  // code * sub-scale beyond 16 bits
  EXPECT_FALSE(is_known(affine(4, 96, 0, true, 0), 512));
}

TEST(PackRows, TellsWhenAScaleDoesNotFitF16) {
  CanonicalWeight w(affine(4, 32, 0, true, 0), 16, 64, 1);
  EXPECT_TRUE(Packed(w).is_exact);
  for (const float bad : {0.1F, 65536.0F, 0x1p-25F, 1e-42F}) {
    CanonicalWeight other = w;
    other.scale[3] = bad;
    EXPECT_FALSE(Packed(other).is_exact) << bad;
    PackedForm wide;
    ASSERT_TRUE(plan_packing(other.form, ScaleStorage::f32, &wide));
    const AlignedBytes bytes(packed_bytes(wide));
    EXPECT_TRUE(pack_rows(wide, other.rows(0), 0, 16, bytes.get()));
  }
  for (const float good : {0.0F, -0.0F, 65504.0F, 0x1p-24F, 0x1.8p-15F, -0x1.ffcp-3F}) {
    CanonicalWeight other = w;
    other.scale[3] = good;
    const Packed packed(other);
    EXPECT_TRUE(packed.is_exact) << good;
    for (const KernelSet* set : kernel_sets()) {
      std::vector<float> row(64);
      set->unpack_row(packed.form, packed.bytes.get(), 1, row.data());
      EXPECT_EQ(row[40], static_cast<float>(other.value(1, 40))) << good;
    }
  }
}

TEST(PackRows, DenseValuesAreRoundedToBf16) {
  set_thread_float_mode();
  WeightForm f;
  f.n_rows = 3;
  f.n_cols = 40;
  f.segment = 64;
  std::vector<float> values = Random(37).normals(120);
  PackedForm packed;
  ASSERT_TRUE(plan_packing(f, ScaleStorage::f16, &packed));
  const AlignedBytes bytes(packed_bytes(packed));
  WeightRows rows;
  rows.codes = values.data();
  rows.codes_stride_bytes = 160;
  ASSERT_TRUE(pack_rows(packed, rows, 0, 3, bytes.get()));
  for (const KernelSet* set : kernel_sets()) {
    std::vector<float> row(40);
    std::vector<std::uint16_t> halves(40);
    for (std::size_t r = 0; r < 3; ++r) {
      set->unpack_row(packed, bytes.get(), static_cast<std::int64_t>(r), row.data());
      set->round_bf16(values.data() + 40 * r, 40, halves.data());
      for (std::size_t k = 0; k < 40; ++k) {
        const std::uint32_t bits = static_cast<std::uint32_t>(halves[k]) << 16;
        EXPECT_EQ(0, std::memcmp(&row[k], &bits, 4));
        EXPECT_NEAR(row[k], values[40 * r + k], std::fabs(values[40 * r + k]) * 0x1p-8);
      }
    }
  }
}

}  // namespace
}  // namespace luna::kernels
