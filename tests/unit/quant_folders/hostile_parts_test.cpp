// Parts that are missing, of another type, shape or length, and numbers that lead astray: each is
// refused by name, before any byte beyond a part is read.
#include "golden_weights.hpp"

#include <gmock/gmock.h>

#include <limits>

namespace luna::test {
namespace {

using ::testing::HasSubstr;

/// Every form has a weight 1 with groups.
std::unique_ptr<GoldenWeight> weight_of(const std::string& form) {
  return std::move(golden_weights(form).at(1));
}

/// A copy of a part's bytes that may be changed; its end is the end of memory for a sanitizer.
class OwnBytes {
 public:
  OwnBytes(luna_tensor_entry& entry, std::size_t n_bytes)
      : bytes_(std::make_unique<std::uint8_t[]>(n_bytes)) {
    std::memcpy(bytes_.get(), entry.bytes, std::min<std::size_t>(n_bytes, entry.n_bytes));
    entry.bytes = bytes_.get();
    entry.n_bytes = n_bytes;
  }
  template <typename T>
  void put(std::size_t i, T value) {
    std::memcpy(bytes_.get() + i * sizeof(T), &value, sizeof(T));
  }

 private:
  std::unique_ptr<std::uint8_t[]> bytes_;
};

void expect_refused(FormatPlugin& plugin, const GoldenWeight& weight, const std::string& named) {
  const auto desc = plugin.describe(weight);
  ASSERT_FALSE(desc) << weight.module << ": " << named << " was let pass";
  EXPECT_THAT(desc.error().message(), HasSubstr(named));
  EXPECT_THAT(desc.error().message(), HasSubstr(weight.module));
  std::vector<float> row(4096);
  EXPECT_FALSE(plugin.row(weight, 0, row));
}

class HostileParts : public ::testing::TestWithParam<const char*> {};

TEST_P(HostileParts, EachMissingPartIsNamed) {
  FormatPlugin plugin(GetParam());
  const std::size_t n_parts = weight_of(GetParam())->entries.size();
  for (std::size_t i = 0; i < n_parts; ++i) {
    const auto weight = weight_of(GetParam());
    const std::string part(view(weight->entries[i].name).substr(weight->module.size() + 1));
    const bool is_optional = part == "g_idx" || part == "weight_scale";
    weight->entries.erase(weight->entries.begin() + static_cast<std::ptrdiff_t>(i));
    if (is_optional) {
      EXPECT_TRUE(plugin.describe(*weight)) << part;
    } else if (!weight->entries.empty()) {
      expect_refused(plugin, *weight, part);
    }
  }
}

TEST_P(HostileParts, EachWrongTypeShapeAndLengthIsNamed) {
  FormatPlugin plugin(GetParam());
  const std::size_t n_parts = weight_of(GetParam())->entries.size();
  for (std::size_t i = 0; i < n_parts; ++i) {
    const auto change = [&](const auto& how) {
      const auto weight = weight_of(GetParam());
      luna_tensor_entry& entry = weight->entries[i];
      const std::string part(view(entry.name).substr(weight->module.size() + 1));
      how(entry);
      expect_refused(plugin, *weight, part);
    };
    change([](luna_tensor_entry& e) { e.type = 0xFFFFFFFFU; });
    change([](luna_tensor_entry& e) { e.type = LUNA_DTYPE_U8; });
    change([](luna_tensor_entry& e) { e.rank = 3; });
    change([](luna_tensor_entry& e) { e.n_bytes -= 1; });
    change([](luna_tensor_entry& e) { e.n_bytes = 0; });
    change([](luna_tensor_entry& e) { e.dims[0] += 1; });
    change([](luna_tensor_entry& e) { e.dims[0] = std::uint64_t{1} << 62; });
    change([](luna_tensor_entry& e) { e.dims[0] = 0; });
  }
}

TEST_P(HostileParts, APartThatTheFormatDoesNotKnowIsRefused) {
  FormatPlugin plugin(GetParam());
  const auto weight = weight_of(GetParam());
  weight->add_part("weight_g_idx", weight->entries.front());
  EXPECT_FALSE(plugin.describe(*weight));
  for (int i = 0; i < 20; ++i)
    weight->add_part("extra_" + std::to_string(i), weight->entries.front());
  EXPECT_FALSE(plugin.describe(*weight));
}

TEST_P(HostileParts, RowsAndPlanesThatDoNotFitAreRefused) {
  FormatPlugin plugin(GetParam());
  const auto weight = weight_of(GetParam());
  const auto desc = plugin.describe(*weight);
  ASSERT_TRUE(desc);
  for (const std::uint64_t first : {desc->n_rows, desc->n_rows + 1, UINT64_MAX}) {
    ExactPlanes planes(*desc, first, 1);
    EXPECT_FALSE(plugin.decode(*weight, *desc, planes.rows_)) << first;
  }
  ExactPlanes planes(*desc, 0, 1);
  luna_weight_desc narrow = *desc;
  narrow.row_bytes[0] -= 1;
  EXPECT_FALSE(plugin.decode(*weight, narrow, planes.rows_));
  planes.rows_.planes[0] = nullptr;
  EXPECT_FALSE(plugin.decode(*weight, *desc, planes.rows_));
  std::vector<float> row(desc->n_cols);
  EXPECT_FALSE(plugin.row(*weight, desc->n_rows, row));
}

INSTANTIATE_TEST_SUITE_P(Formats, HostileParts, ::testing::Values("awq", "gptq", "dense"));

TEST(HostileGptq, AGroupThatIsNotThereIsNamed) {
  FormatPlugin plugin("gptq");
  for (const std::int32_t group : {1, -1, std::numeric_limits<std::int32_t>::max()}) {
    const auto weight = weight_of("gptq");  // one group
    OwnBytes g_idx(weight->part("g_idx"), weight->part("g_idx").n_bytes);
    g_idx.put<std::int32_t>(7, group);
    expect_refused(plugin, *weight, "column 7");
  }
}

TEST(HostileScales, WhatIsNoFiniteNumberIsNamed) {
  for (const char* form : {"awq", "gptq"}) {
    FormatPlugin plugin(form);
    for (const std::uint16_t half : {0x7C00, 0xFC00, 0x7E00}) {
      const auto weight = weight_of(form);
      OwnBytes scales(weight->part("scales"), weight->part("scales").n_bytes);
      scales.put<std::uint16_t>(3, half);
      const auto desc = plugin.describe(*weight);
      ASSERT_FALSE(desc);
      EXPECT_THAT(desc.error().message(), HasSubstr("the scale of row 3"));
    }
  }
}

TEST(HostileConfig, WhatContradictsThePartsIsNamed) {
  FormatPlugin awq("awq");
  FormatPlugin gptq("gptq");
  const auto refused = [](FormatPlugin& plugin, const char* form, const auto& change) {
    const auto weight = weight_of(form);
    change(*weight);
    const auto desc = plugin.describe(*weight);
    return desc ? std::string("let pass") : desc.error().message();
  };
  EXPECT_THAT(refused(awq, "awq", [](auto& w) { w.set_text("version", "gemv"); }),
              HasSubstr("gemv"));
  EXPECT_THAT(refused(awq, "awq", [](auto& w) { w.set_number("bits", 3); }), HasSubstr("bits = 3"));
  EXPECT_THAT(refused(awq, "awq", [](auto& w) { w.set_number("group_size", 64); }),
              HasSubstr("group_size = 64"));
  EXPECT_THAT(refused(gptq, "gptq", [](auto& w) { w.set_number("bits", 5); }),
              HasSubstr("bits = 5"));
  EXPECT_THAT(refused(gptq, "gptq", [](auto& w) { w.set_number("bits", 8); }), HasSubstr("qzeros"));
  EXPECT_THAT(refused(gptq, "gptq", [](auto& w) { w.set_number("group_size", 32); }),
              HasSubstr("groups of 32"));
  EXPECT_THAT(refused(gptq, "gptq", [](auto& w) { w.set_text("checkpoint_format", "marlin"); }),
              HasSubstr("marlin"));
  EXPECT_THAT(refused(gptq, "gptq", [](auto& w) { w.set_number("dynamic.x.bits", 8); }),
              HasSubstr("dynamic"));
}

TEST(FormatScores, AFormatTakesOnlyItsOwn) {
  for (const char* plugin_form : {"awq", "gptq", "dense", "int8"}) {
    FormatPlugin plugin(plugin_form);
    for (const char* form : {"awq", "gptq", "dense"}) {
      EXPECT_EQ(plugin.score(*weight_of(form)), std::string(form) == plugin_form ? 100 : 0)
          << plugin_form << " asked for " << form;
    }
  }
}

}  // namespace
}  // namespace luna::test
