// linear: every instruction set against the contract written out, rows alone against batches,
// column ranges, and an FP64 reference.
#include "kernel_support.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace luna::kernels {
namespace {

class Linear : public testing::TestWithParam<NamedForm> {
 protected:
  void SetUp() override { set_thread_float_mode(); }
};

struct Quantized {
  Quantized(const KernelSet& set,
            const std::vector<float>& x,
            std::int64_t n,
            const PackedForm& form)
      : bytes(
            quantized_rows_bytes(n, form.form.n_cols, form.activation_group, form.activation_bits)),
        rows(place_quantized_rows(
            bytes.get(), n, form.form.n_cols, form.activation_group, form.activation_bits)) {
    set.quantize_rows(x.data(), form.form.n_cols, 0, n, &rows);
  }
  AlignedBytes bytes;
  QuantizedRows rows;
};

/// Activation i of a row, however it is kept.
int code_of(const QuantizedRows& x, std::int64_t row, std::int64_t i) {
  if (x.bytes == nullptr) {
    return x.codes[row * x.code_stride + i];
  }
  const auto* at = std::find(std::begin(kQuadOrder), std::end(kQuadOrder), i % 8);
  return x.bytes[row * x.code_stride + i / 8 * 8 + (at - kQuadOrder)];
}

/// The contract, section 3.1 of the kernel notes, as plainly as it can be written.
std::vector<float> linear_by_contract(const CanonicalWeight& w, const QuantizedRows& x) {
  const WeightForm& f = w.form;
  std::vector<float> y;
  const std::int64_t span =
      f.super_block != 0 ? f.super_block : std::min<std::int64_t>(f.group, 128);
  const bool is_signed = f.super_block == 0 && f.bits == 8 && f.zero == 128 && !f.has_offset;
  for (std::int64_t r = 0; r < x.n_rows; ++r) {
    for (std::int64_t n = 0; n < f.n_rows; ++n) {
      float total = 0.0F;
      for (std::int64_t first = 0; first < f.n_cols; first += f.segment) {
        float acc = 0.0F;
        const std::int64_t last = std::min(first + f.segment, f.n_cols);
        for (std::int64_t k = first; k < last; k += span) {
          std::int64_t isum = 0;
          std::int64_t offset_sum = 0;
          std::int64_t asum = 0;
          for (std::int64_t i = k; i < std::min(k + span, last); ++i) {
            const std::int64_t a = code_of(x, r, i);
            std::int64_t q = w.code(n, i);
            asum += a;
            if (f.super_block != 0) {
              q = (f.has_offset ? q : q - f.zero) * w.sub_scale[w.group_at(n, i)];
              offset_sum += f.has_offset ? a * w.sub_offset[w.group_at(n, i)] : 0;
            } else if (is_signed) {
              q -= 128;
            }
            isum += a * q;
          }
          const float d = w.scale[w.super_at(n, k)];
          const float s = x.scale[k / x.group * x.group_stride + r];
          acc = std::fma(static_cast<float>(isum), d * s, acc);
          if (f.super_block != 0) {
            if (f.has_offset) {
              acc = std::fma(static_cast<float>(offset_sum), w.offset[w.super_at(n, k)] * s, acc);
            }
          } else if (f.has_offset || (f.zero != 0 && !is_signed)) {
            const float m =
                f.has_offset ? w.offset[w.super_at(n, k)] : d * static_cast<float>(-f.zero);
            acc = std::fma(m, static_cast<float>(asum) * s, acc);
          }
        }
        total = total + acc;
      }
      y.push_back(total);
    }
  }
  return y;
}

LinearArgs whole(const Packed& packed,
                 const QuantizedRows& x,
                 const AlignedBytes& scratch,
                 float* y) {
  LinearArgs args;
  args.form = &packed.form;
  args.packed = packed.bytes.get();
  args.quantized = &x;
  args.n_rows = x.n_rows;
  args.n_strips = packed.form.n_strips;
  args.y = y;
  args.y_stride = packed.form.form.n_rows;
  args.scratch = scratch.get();
  return args;
}

TEST_P(Linear, EverySetFollowsTheContractToTheBit) {
  const WeightForm& f = GetParam().form;
  const bool is_super = f.super_block != 0;
  for (const std::int64_t k : {32, 96, 576, 1536}) {
    if ((is_super && k != 1536) || (f.group > 32 && k < 576)) {
      continue;
    }
    for (const std::int64_t n : {16, 40, 77}) {
      const CanonicalWeight w(f, n, k, static_cast<std::uint64_t>(k + n));
      const Packed packed(w);
      ASSERT_TRUE(packed.is_exact);
      for (const std::int64_t rows : {1, 2, 3, 4, 5, 7, 13}) {
        const std::vector<float> x = Random(7).normals(static_cast<std::size_t>(rows * k));
        const AlignedBytes scratch(linear_scratch_bytes(packed.form));
        std::vector<float> expected;
        for (const KernelSet* set : kernel_sets()) {
          const Quantized q(*set, x, rows, packed.form);
          if (expected.empty()) {
            expected = linear_by_contract(w, q.rows);
          }
          std::vector<float> y(expected.size() + 16, -7.0F);
          set->linear(whole(packed, q.rows, scratch, y.data()));
          ASSERT_EQ(0, std::memcmp(y.data(), expected.data(), expected.size() * 4))
              << set->name << " k=" << k << " n=" << n << " rows=" << rows
              << " seed=" << test_seed();
          ASSERT_EQ(y[expected.size()], -7.0F) << "wrote beyond the last column";
        }
      }
    }
  }
}

TEST_P(Linear, ARowAloneEqualsTheRowInAnyBatchAndColumnRange) {
  const std::int64_t k = GetParam().form.super_block != 0 ? 512 : 576;
  const std::int64_t n = 120;
  const CanonicalWeight w(GetParam().form, n, k, 3);
  const Packed packed(w);
  const AlignedBytes scratch(linear_scratch_bytes(packed.form));
  const std::vector<float> x = Random(11).normals(static_cast<std::size_t>(100 * k));
  for (const KernelSet* set : kernel_sets()) {
    // More than the set takes without unpacking bytes.
    const std::int64_t rows_max = set->isa == Isa::avx512_bf16 ? 100 : 40;
    const Quantized q(*set, x, rows_max, packed.form);
    std::vector<float> alone(static_cast<std::size_t>(rows_max * n));
    for (std::int64_t r = 0; r < rows_max; ++r) {
      LinearArgs args = whole(packed, q.rows, scratch, alone.data());
      args.first_row = r;
      args.n_rows = 1;
      set->linear(args);
    }
    for (std::int64_t rows = 1; rows <= rows_max; rows += rows < 10 ? 1 : rows < 40 ? 5 : 30) {
      std::vector<float> y(alone.size(), -1.0F);
      // Three ranges of strips, as three threads would take them.
      for (std::int64_t strip = 0; strip < packed.form.n_strips; strip += 3) {
        LinearArgs args = whole(packed, q.rows, scratch, y.data());
        args.first_row = rows_max - rows;
        args.n_rows = rows;
        args.first_strip = strip;
        args.n_strips = std::min<std::int64_t>(3, packed.form.n_strips - strip);
        set->linear(args);
      }
      const auto at = static_cast<std::size_t>((rows_max - rows) * n);
      ASSERT_EQ(0, std::memcmp(y.data() + at, alone.data() + at, (y.size() - at) * 4))
          << set->name << " rows=" << rows << " seed=" << test_seed();
    }
  }
}

TEST_P(Linear, WideScalesGiveTheBitsOfF16Scales) {
  const std::int64_t k = 512;
  const CanonicalWeight w(GetParam().form, 40, k, 9);
  const Packed narrow(w);
  Packed wide(w);
  ASSERT_TRUE(plan_packing(w.form, ScaleStorage::f32, &wide.form));
  wide.bytes = AlignedBytes(packed_bytes(wide.form));
  ASSERT_TRUE(pack_rows(wide.form, w.rows(0), 0, 40, wide.bytes.get()));
  const AlignedBytes scratch(linear_scratch_bytes(narrow.form));
  const std::vector<float> x = Random(15).normals(static_cast<std::size_t>(9 * k));
  for (const KernelSet* set : kernel_sets()) {
    for (const std::int64_t rows : {1, 9}) {
      const Quantized q(*set, x, rows, narrow.form);
      std::vector<float> a(static_cast<std::size_t>(rows * 40));
      std::vector<float> b(a.size());
      set->linear(whole(narrow, q.rows, scratch, a.data()));
      set->linear(whole(wide, q.rows, scratch, b.data()));
      EXPECT_EQ(0, std::memcmp(a.data(), b.data(), a.size() * 4)) << set->name << " rows " << rows;
    }
  }
}

TEST_P(Linear, StaysWithinTheErrorOfItsActivations) {
  const std::int64_t k = 1536;
  const std::int64_t n = 48;
  const std::int64_t rows = 3;
  const CanonicalWeight w(GetParam().form, n, k, 5);
  const Packed packed(w);
  const AlignedBytes scratch(linear_scratch_bytes(packed.form));
  const std::vector<float> x = Random(13).normals(static_cast<std::size_t>(rows * k));
  const KernelSet& set = select_kernels();
  const Quantized q(set, x, rows, packed.form);
  std::vector<float> y(static_cast<std::size_t>(rows * n));
  set.linear(whole(packed, q.rows, scratch, y.data()));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < n; ++c) {
      double exact = 0.0;
      double squares = 0.0;
      double magnitude = 0.0;
      for (std::int64_t i = 0; i < k; ++i) {
        const double v = w.value(c, i);
        const double a = x[static_cast<std::size_t>(r * k + i)];
        // Half a unit of the activation's grid is uniform noise of s / sqrt(12).
        const double s = q.rows.scale[i / q.rows.group * q.rows.group_stride + r];
        exact += v * a;
        squares += v * v * s * s / 12.0;
        magnitude += std::fabs(v * a);
      }
      const double bound = 6.0 * std::sqrt(squares) + 4.0 * 6e-8 * std::sqrt(1536.0) * magnitude;
      EXPECT_NEAR(y[static_cast<std::size_t>(r * n + c)], exact, bound) << "seed " << test_seed();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         Linear,
                         testing::ValuesIn(quantized_forms()),
                         [](const auto& one) { return one.param.name; });
INSTANTIATE_TEST_SUITE_P(ClassI8,
                         Linear,
                         testing::ValuesIn(short_activation_forms()),
                         [](const auto& one) { return one.param.name; });

TEST(QuantizeRows, EverySetFollowsTheContractToTheBit) {
  set_thread_float_mode();
  const std::int64_t k = 576;
  std::vector<float> x = Random(17).normals(static_cast<std::size_t>(k));
  for (std::size_t i = 0; i < 32; ++i) {
    x[i] = 0.0F;             // a group of zeros
    x[32 + i] *= 0x1p-110F;  // below the floor
    x[64 + i] *= 0x1p-120F;
    x[96 + i] *= 0x1p+100F;
  }
  x[64] = 0x1p-100F;  // exactly the floor
  for (const int bits : {12, 11, 10, 8}) {
    for (const std::int64_t group : {32, 64, 128}) {
      std::vector<std::byte> first;
      for (const KernelSet* set : kernel_sets()) {
        const AlignedBytes bytes(quantized_rows_bytes(1, k, group, bits));
        std::memset(bytes.get(), 0, bytes.size);
        const QuantizedRows rows = place_quantized_rows(bytes.get(), 1, k, group, bits);
        set->quantize_rows(x.data(), k, 0, 1, &rows);
        if (first.empty()) {
          first.assign(bytes.get(), bytes.get() + bytes.size);
          const auto limit = static_cast<float>(activation_limit(bits));
          for (std::int64_t g = 0; g < rows.n_groups; ++g) {
            float x_max = 0.0F;
            for (std::int64_t i = g * group; i < std::min(k, (g + 1) * group); ++i) {
              x_max = std::max(x_max, std::fabs(x[static_cast<std::size_t>(i)]));
            }
            const bool is_zero = x_max < 0x1p-100F;
            int sum = 0;
            for (std::int64_t i = g * group; i < std::min(k, (g + 1) * group); ++i) {
              const float a =
                  is_zero ? 0.0F : std::nearbyint(x[static_cast<std::size_t>(i)] * (limit / x_max));
              ASSERT_EQ(code_of(rows, 0, i), static_cast<int>(a));
              sum += static_cast<int>(a);
            }
            const float s = is_zero ? 0.0F : x_max / limit;
            ASSERT_EQ(rows.scale[g * rows.group_stride], s);
            ASSERT_EQ(rows.scaled_sum[g * rows.group_stride], static_cast<float>(sum) * s);
            if (rows.sums != nullptr) {
              ASSERT_EQ(rows.sums[g * rows.group_stride], sum);
            }
          }
        }
        ASSERT_EQ(0, std::memcmp(bytes.get(), first.data(), first.size())) << set->name;
      }
    }
  }
}

TEST(QuantizeRows, GiveTheBitsOfEachRowAlone) {
  set_thread_float_mode();
  const std::int64_t k = 576 + 32;
  const std::int64_t n = 35;
  std::vector<float> x = Random(19).normals(static_cast<std::size_t>(n * k));
  for (std::size_t i = 0; i < x.size(); i += 1201) {
    x[i] = i % 2 == 0 ? NAN : INFINITY;
  }
  for (const int bits : {12, 8}) {
    for (const std::int64_t group : {32, 64, 128, 256}) {
      for (const KernelSet* set : kernel_sets()) {
        const AlignedBytes bytes(quantized_rows_bytes(n, k, group, bits));
        const AlignedBytes expected(quantized_rows_bytes(n, k, group, bits));
        for (const AlignedBytes* memory : {&bytes, &expected}) {
          std::memset(memory->get(), 0, memory->size);
        }
        const QuantizedRows alone = place_quantized_rows(expected.get(), n, k, group, bits);
        for (std::int64_t row = 0; row < n; ++row) {
          set->quantize_rows(x.data() + row * k, k, row, 1, &alone);
        }
        const QuantizedRows rows = place_quantized_rows(bytes.get(), n, k, group, bits);
        std::int64_t first = 0;
        for (const std::int64_t n_rows : {1, 2, 8, 24}) {  // within batches, across, whole
          set->quantize_rows(x.data() + first * k, k, first, n_rows, &rows);
          first += n_rows;
        }
        ASSERT_EQ(0, std::memcmp(bytes.get(), expected.get(), bytes.size))
            << set->name << " group " << group << " bits " << bits;
        for (std::int64_t g = 0; g < rows.n_groups; ++g) {
          const bool has_nan = std::isnan(rows.scale[g * rows.group_stride]);
          ASSERT_EQ(has_nan, g == 0) << set->name;  // of row 0, whose first input is NaN
        }
        ASSERT_EQ(code_of(rows, 0, 1), 0) << set->name;
      }
    }
  }
}

TEST(QuantizeRows, NonFiniteInputMakesTheRowNanAndLeavesOthersAlone) {
  set_thread_float_mode();
  const CanonicalWeight w(quantized_forms()[1].form, 32, 64, 1);
  const Packed packed(w);
  const AlignedBytes scratch(linear_scratch_bytes(packed.form));
  for (const KernelSet* set : kernel_sets()) {
    std::vector<float> x(128, 1.0F);
    x[5] = INFINITY;
    x[40] = NAN;
    const Quantized q(*set, x, 2, packed.form);
    std::vector<float> y(64);
    set->linear(whole(packed, q.rows, scratch, y.data()));
    for (std::size_t i = 0; i < 32; ++i) {
      EXPECT_TRUE(std::isnan(y[i]));
      EXPECT_TRUE(std::isfinite(y[32 + i]));
    }
  }
}

/// 32 inputs at a time: even and odd FMA chains from +0, their sum added.
float chain_by_contract(const float* a, const float* b, std::int64_t k, std::int64_t segment) {
  float total = 0.0F;
  for (std::int64_t first = 0; first < k; first += segment) {
    float acc = 0.0F;
    for (std::int64_t i = first; i < std::min(first + segment, k); i += 32) {
      float chains[2] = {0.0F, 0.0F};
      for (std::int64_t j = i; j < std::min(i + 32, k); ++j) {
        chains[j % 2] = std::fma(a[j], b[j], chains[j % 2]);
      }
      acc = acc + (chains[0] + chains[1]);
    }
    total = total + acc;
  }
  return total;
}
float to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x7FFFU + ((bits >> 16) & 1U)) & 0xFFFF0000U;
  std::memcpy(&x, &bits, 4);
  return x;
}

/// Every set's linear on dense (or dequantized) weights, at several row counts, against the chains
/// over `values` [n, k], which are BF16 numbers.
void expect_chains(const PackedForm& packed,
                   const AlignedBytes& bytes,
                   const std::vector<float>& values) {
  const std::int64_t n = packed.form.n_rows;
  const std::int64_t k = packed.form.n_cols;
  const std::int64_t rows_max = 9;
  std::vector<float> x = Random(23).normals(static_cast<std::size_t>(rows_max * k));
  std::vector<float> expected;
  std::vector<float> rounded;
  for (const float one : x) {
    rounded.push_back(to_bf16(one));
  }
  for (std::int64_t r = 0; r < rows_max; ++r) {
    for (std::int64_t c = 0; c < n; ++c) {
      expected.push_back(chain_by_contract(&rounded[static_cast<std::size_t>(r * k)],
                                           &values[static_cast<std::size_t>(c * k)],
                                           k,
                                           packed.form.segment));
    }
  }
  const AlignedBytes scratch(linear_scratch_bytes(packed));
  for (const KernelSet* set : kernel_sets()) {
    const AlignedBytes memory(dense_rows_bytes(rows_max, k));
    const DenseRows dense = place_dense_rows(memory.get(), rows_max, k);
    set->round_rows(x.data(), k, 0, rows_max, &dense);
    for (const std::int64_t n_rows : {1, 4, 9}) {
      std::vector<float> y(expected.size(), -7.0F);
      LinearArgs args;
      args.form = &packed;
      args.packed = bytes.get();
      args.dense = &dense;
      args.n_rows = n_rows;
      args.n_strips = packed.n_strips;
      args.y = y.data();
      args.y_stride = n;
      args.scratch = scratch.get();
      set->linear(args);
      ASSERT_EQ(0, std::memcmp(y.data(), expected.data(), static_cast<std::size_t>(n_rows * n) * 4))
          << set->name << " n=" << n << " k=" << k << " rows=" << n_rows << " seed=" << test_seed();
    }
  }
}

TEST(DenseLinear, EverySetFollowsTheContractToTheBit) {
  set_thread_float_mode();
  for (const std::int64_t k : {8, 33, 96, 576, 1536}) {
    for (const std::int64_t n : {5, 48, 77}) {
      WeightForm f;
      f.n_rows = n;
      f.n_cols = k;
      f.segment = segment_length(n, k, 32, 0);
      std::vector<float> weights = Random(19).normals(static_cast<std::size_t>(n * k));
      weights[3] = 1e-39F;  // denormals count as zero on both sides
      PackedForm packed;
      ASSERT_TRUE(plan_packing(f, ScaleStorage::f16, &packed));
      const AlignedBytes bytes(packed_bytes(packed));
      WeightRows rows;
      rows.codes = weights.data();
      rows.codes_stride_bytes = static_cast<std::size_t>(k) * 4;
      ASSERT_TRUE(pack_rows(packed, rows, 0, n, bytes.get()));
      for (float& w : weights) {
        w = to_bf16(w);
      }
      expect_chains(packed, bytes, weights);
    }
  }
}

class DequantizedLinear : public testing::TestWithParam<NamedForm> {};

TEST_P(DequantizedLinear, IsDenseLinearOnTheWeightsValues) {
  set_thread_float_mode();
  CanonicalWeight w(GetParam().form, 40, 512, 33);
  w.form.is_dequantized = true;
  const Packed packed(w);
  ASSERT_TRUE(packed.is_exact && packed.form.is_dense());
  std::vector<float> values;
  std::vector<float> row(512);
  for (std::int64_t r = 0; r < 40; ++r) {
    for (std::int64_t k = 0; k < 512; ++k) {
      values.push_back(to_bf16(static_cast<float>(w.value(r, k))));
    }
    select_kernels().unpack_row(packed.form, packed.bytes.get(), r, row.data());
    EXPECT_EQ(0, std::memcmp(row.data(), &values[static_cast<std::size_t>(r * 512)], 512 * 4));
  }
  expect_chains(packed.form, packed.bytes, values);
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         DequantizedLinear,
                         testing::ValuesIn(quantized_forms()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace luna::kernels
