// Every format of folders, three ways, bit for bit: canonical planes == the format's definition ==
// the values that were packed by the tools that define it.
#include "golden_weights.hpp"

#include <luna/float8.hpp>
#include <luna/grouped_codes.hpp>

#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <span>

namespace luna::test {
namespace {

/// Equal bits, or both no number (whose bits are nobody's promise).
bool same(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (a == 0 && b == 0);
}

/// Holds rows [first, first + n) of a weight against what was packed.
void expect_values(FormatPlugin& plugin,
                   const GoldenWeight& weight,
                   const luna_weight_desc& desc,
                   std::uint64_t first,
                   std::uint64_t n) {
  ExactPlanes planes(desc, first, n);
  const Result<void> decoded = plugin.decode(weight, desc, planes.rows_);
  ASSERT_TRUE(decoded) << weight.module << ": " << decoded.error().message();
  const CanonicalRows canonical(desc, planes.rows_);
  std::vector<float> defined(desc.n_cols);
  for (std::uint64_t r = 0; r < n; ++r) {
    ASSERT_TRUE(plugin.row(weight, first + r, defined));
    for (std::uint64_t c = 0; c < desc.n_cols; ++c) {
      const float expected = weight.values[(first + r) * desc.n_cols + c];
      ASSERT_TRUE(same(defined[c], expected))
          << weight.module << ": definition, row " << first + r << " column " << c << ": "
          << defined[c] << ", expected " << expected;
      ASSERT_TRUE(same(canonical.value(r, c), expected))
          << weight.module << ": planes, row " << first + r << " column " << c << ": "
          << canonical.value(r, c) << ", expected " << expected;
    }
  }
}

class QuantFolders : public ::testing::TestWithParam<const char*> {};

TEST_P(QuantFolders, PlanesDefinitionAndPackedValuesAgreeBitForBit) {
  FormatPlugin plugin(GetParam());
  const auto weights = golden_weights(GetParam());
  ASSERT_GE(weights.size(), 6U);
  for (const auto& weight : weights) {
    EXPECT_EQ(plugin.score(*weight), 100) << weight->module;
    const auto desc = plugin.describe(*weight);
    ASSERT_TRUE(desc) << weight->module << ": " << desc.error().message();
    EXPECT_TRUE(check_weight_desc(&*desc)) << weight->module;
    EXPECT_EQ(desc->flags & LUNA_WEIGHT_EXACT, LUNA_WEIGHT_EXACT) << weight->module;
    ASSERT_EQ(desc->n_rows * desc->n_cols, weight->values.size()) << weight->module;
    expect_values(plugin, *weight, *desc, 0, desc->n_rows);
    expect_values(plugin, *weight, *desc, desc->n_rows / 3, desc->n_rows / 2);
    expect_values(plugin, *weight, *desc, desc->n_rows - 1, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantFolders, ::testing::Values("awq", "gptq", "dense"));

TEST(QuantGptq, ActivationOrderIsKeptExactlyAsDenseValues) {
  FormatPlugin plugin("gptq");
  int n_mixed = 0;
  for (const auto& weight : golden_weights("gptq")) {
    const auto desc = plugin.describe(*weight);
    ASSERT_TRUE(desc);
    const auto* words = static_cast<const std::int32_t*>(weight->part("g_idx").bytes);
    const std::span<const std::int32_t> groups(words, desc->n_cols);
    const bool is_mixed = !std::ranges::is_sorted(groups);
    n_mixed += is_mixed ? 1 : 0;
    EXPECT_EQ(desc->klass, is_mixed ? LUNA_WEIGHT_DENSE : LUNA_WEIGHT_AFFINE) << weight->module;
  }
  EXPECT_EQ(n_mixed, 5);
}

TEST(QuantGptq, StoredZerosWrapInFormatOneAndAreThemselvesInFormatTwo) {
  FormatPlugin plugin("gptq");
  const auto weights = golden_weights("gptq");
  GoldenWeight& weight = *weights.front();
  std::vector<std::uint8_t> stored(weight.part("qzeros").n_bytes, 0xFF);  // 15 each
  weight.part("qzeros").bytes = stored.data();
  auto desc = plugin.describe(weight);
  ASSERT_TRUE(desc) << desc.error().message();
  EXPECT_EQ(desc->zero, 0.0F);
  EXPECT_EQ(desc->has_offset, 0U);
  weight.set_text("checkpoint_format", "gptq_v2");
  desc = plugin.describe(weight);
  ASSERT_TRUE(desc) << desc.error().message();
  EXPECT_EQ(desc->zero, 15.0F);
}

/// A weight of signed bytes; it lives as long as the object.
struct Int8Case {
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  std::vector<std::int8_t> zeros;
  std::unique_ptr<GoldenWeight> weight = std::make_unique<GoldenWeight>();

  /// n_groups 0: one scale a row, as a vector
  Int8Case(std::uint64_t n_rows, std::uint64_t n_cols, std::uint64_t n_groups, bool has_zeros) {
    const std::uint64_t n_scales = n_rows * std::max<std::uint64_t>(1, n_groups);
    for (std::uint64_t i = 0; i < n_rows * n_cols; ++i)
      codes.push_back(static_cast<std::int8_t>(i * 37 % 256));
    for (std::uint64_t i = 0; i < n_scales; ++i) {
      scales.push_back(std::ldexp(1.0F + static_cast<float>(i % 7) / 8, -static_cast<int>(i % 9)));
      zeros.push_back(static_cast<std::int8_t>(static_cast<int>(i * 51 % 256) - 128));
    }
    weight->form = "int8";
    weight->module = "w";
    add("weight", LUNA_DTYPE_I8, {n_rows, n_cols}, codes.data(), codes.size());
    std::vector<std::uint64_t> shape = {n_rows};
    if (n_groups > 0) shape.push_back(n_groups);
    add("weight_scale", LUNA_DTYPE_F32, shape, scales.data(), 4 * scales.size());
    if (has_zeros) add("weight_zero_point", LUNA_DTYPE_I8, shape, zeros.data(), zeros.size());
    for (std::uint64_t row = 0; row < n_rows; ++row) {
      for (std::uint64_t col = 0; col < n_cols; ++col) {
        const std::uint64_t g = n_groups == 0 ? row : row * n_groups + col * n_groups / n_cols;
        const int code = codes[row * n_cols + col] - (has_zeros ? zeros[g] : 0);
        weight->values.push_back(static_cast<float>(double{scales[g]} * code));
      }
    }
  }

 private:
  void add(const std::string& part,
           std::uint32_t type,
           const std::vector<std::uint64_t>& shape,
           const void* bytes,
           std::uint64_t n_bytes) {
    luna_tensor_entry entry{};
    entry.container = LUNA_CONTAINER_SAFETENSORS;
    entry.type = type;
    entry.rank = static_cast<std::uint32_t>(shape.size());
    std::fill(std::begin(entry.dims), std::end(entry.dims), 1);
    std::copy(shape.begin(), shape.end(), entry.dims);
    entry.bytes = bytes;
    entry.n_bytes = n_bytes;
    weight->add_part(part, entry);
  }
};

TEST(QuantInt8, RowsAndGroupsWithAndWithoutZerosAreTheirDefinition) {
  FormatPlugin plugin("int8");
  for (const std::uint64_t n_groups : {0U, 1U, 2U, 9U}) {
    for (const bool has_zeros : {false, true}) {
      const Int8Case made(5, 576, n_groups, has_zeros);
      EXPECT_EQ(plugin.score(*made.weight), 100);
      const auto desc = plugin.describe(*made.weight);
      ASSERT_TRUE(desc) << desc.error().message();
      EXPECT_EQ(desc->bits, 8U);
      EXPECT_EQ(desc->has_offset, has_zeros ? 1U : 0U);
      EXPECT_EQ(desc->group, n_groups == 2 ? 32U : 64U) << "a group that backends know";
      expect_values(plugin, *made.weight, *desc, 0, 5);
    }
  }
}

TEST(QuantFormats, CodesOfFp8AreTheirDefinition) {
  for (int code = 0; code < 256; ++code) {
    const double sign = code < 128 ? 1.0 : -1.0;
    const auto define = [&](int mantissa_bits, int bias) {
      const int exponent = code % 128 >> mantissa_bits;
      const double fraction = std::ldexp(code % (1 << mantissa_bits), -mantissa_bits);
      return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias)
                                   : std::ldexp(1.0 + fraction, exponent - bias));
    };
    const auto v = static_cast<std::uint8_t>(code);
    if (code % 128 == 127) {
      EXPECT_TRUE(std::isnan(f8_e4m3_to_f32(v)));
    } else {
      EXPECT_EQ(f8_e4m3_to_f32(v), static_cast<float>(define(3, 7))) << code;
    }
    if (code % 128 < 0x7C) {
      EXPECT_EQ(f8_e5m2_to_f32(v), static_cast<float>(define(2, 15))) << code;
    } else {
      EXPECT_FALSE(std::isfinite(f8_e5m2_to_f32(v))) << code;
    }
  }
}

}  // namespace
}  // namespace luna::test
