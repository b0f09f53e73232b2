// Every format, three ways, bit for bit: canonical planes == the format's definition == the values
// that the gguf package reads. Entries that are wrong are refused by name.
#include "support/plugin_fixture.hpp"

#include <luna/quant.hpp>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <map>

namespace luna {
namespace {

namespace json = boost::json;

/// Memory for rows of canonical planes.
class Planes {
 public:
  Planes(const luna_weight_desc& desc, std::uint64_t first_row, std::uint64_t n_rows) {
    rows_.struct_size = sizeof(rows_);
    rows_.first_row = first_row;
    rows_.n_rows = n_rows;
    for (std::uint32_t plane = 0; plane < LUNA_N_PLANES; ++plane) {
      if (desc.row_bytes[plane] == 0) continue;
      // Exactly as large as promised, so that a sanitizer sees a write beyond it.
      memory_[plane] = std::make_unique<std::byte[]>(desc.row_bytes[plane] * n_rows);
      rows_.planes[plane] = memory_[plane].get();
    }
  }
  luna_weight_rows rows_{};

 private:
  std::array<std::unique_ptr<std::byte[]>, LUNA_N_PLANES> memory_;
};

/// One entry "w" in a table, and the plugin's answers about it.
class QuantGguf : public ::testing::Test {
 protected:
  void SetUp() override {
    table_ = test::load_table<luna_quant_if>("quant_gguf", LUNA_KIND_QUANT);
    ASSERT_NE(table_, nullptr);
    const auto self = test::make_instance(*table_, host_, {});
    ASSERT_TRUE(self) << self.error().message();
    self_ = *self;
  }
  void TearDown() override { table_->head.destroy(self_); }

  void set_entry(std::uint32_t type,
                 std::uint64_t n_rows,
                 std::uint64_t n_cols,
                 std::span<const std::byte> bytes) {
    entry_ = {};
    entry_.name = to_abi("w");
    entry_.container = LUNA_CONTAINER_GGUF;
    entry_.type = type;
    entry_.rank = 2;
    entry_.dims[0] = n_rows;
    entry_.dims[1] = n_cols;
    entry_.bytes = bytes.data();
    entry_.n_bytes = bytes.size();
    entries_ = {};
    entries_.struct_size = sizeof(entries_);
    entries_.entry_stride = sizeof(entry_);
    entries_.n_entries = 1;
    entries_.entries = &entry_;
  }

  Result<luna_weight_desc> describe() {
    luna_weight_desc desc{};
    desc.struct_size = sizeof(desc);
    luna_err err = make_err();
    LUNA_TRY(to_result(
        table_->describe(self_, &entries_, to_abi("w"), 0, &desc, &err), err, "describe"));
    return desc;
  }
  Result<void> decode(const luna_weight_desc& desc, Planes& planes) {
    luna_err err = make_err();
    return to_result(table_->decode(self_, &entries_, to_abi("w"), 0, &desc, &planes.rows_, &err),
                     err,
                     "decode");
  }
  Result<void> row(std::uint64_t row, std::vector<float>& out) {
    luna_err err = make_err();
    return to_result(
        table_->row_f32(self_, &entries_, to_abi("w"), 0, row, out.data(), &err), err, "row_f32");
  }

  test::FakeHost host_;
  const luna_quant_if* table_ = nullptr;
  void* self_ = nullptr;
  luna_tensor_entry entry_{};
  luna_tensor_table entries_{};
};

/// Equal bits, or both no number (whose bits are nobody's promise).
bool same(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

struct Golden {
  std::array<std::uint32_t, 4> head{};  // type, n_blocks, values and bytes of a block
  std::vector<std::byte> blocks;
  std::vector<float> values;
};

Golden load_golden(const std::string& name) {
  std::ifstream file(LUNA_SOURCE_DIR "/tests/golden/quant/" + name + ".bin", std::ios::binary);
  EXPECT_TRUE(file) << name;
  Golden golden;
  file.read(reinterpret_cast<char*>(golden.head.data()), sizeof(golden.head));
  golden.blocks.resize(std::size_t{golden.head[1]} * golden.head[3]);
  golden.values.resize(std::size_t{golden.head[1]} * golden.head[2]);
  file.read(reinterpret_cast<char*>(golden.blocks.data()),
            static_cast<std::streamsize>(golden.blocks.size()));
  file.read(reinterpret_cast<char*>(golden.values.data()),
            static_cast<std::streamsize>(golden.values.size() * sizeof(float)));
  EXPECT_TRUE(file) << name << " is cut short";
  return golden;
}

class QuantGgufFormat : public QuantGguf, public ::testing::WithParamInterface<const char*> {};

TEST_P(QuantGgufFormat, PlanesDefinitionAndReferenceAgreeBitForBit) {
  const Golden golden = load_golden(GetParam());
  const auto [type, n_blocks, block_values, block_bytes] = golden.head;
  // As one row of all blocks, and as one row a block.
  for (const std::uint64_t n_rows : {std::uint64_t{1}, std::uint64_t{n_blocks}}) {
    const std::uint64_t n_cols = golden.values.size() / n_rows;
    set_entry(type, n_rows, n_cols, golden.blocks);
    EXPECT_EQ(table_->score(self_, &entries_, 0), 100);
    const auto desc = describe();
    ASSERT_TRUE(desc) << desc.error().message();
    EXPECT_EQ(desc->flags & LUNA_WEIGHT_EXACT, LUNA_WEIGHT_EXACT);
    Planes planes(*desc, 0, n_rows);
    ASSERT_TRUE(decode(*desc, planes));
    const CanonicalRows canonical(*desc, planes.rows_);
    std::vector<float> defined(n_cols);
    for (std::uint64_t r = 0; r < n_rows; ++r) {
      ASSERT_TRUE(row(r, defined));
      for (std::uint64_t c = 0; c < n_cols; ++c) {
        const float expected = golden.values[r * n_cols + c];
        ASSERT_TRUE(same(defined[c], expected)) << "definition, row " << r << " column " << c
                                                << ": " << defined[c] << ", expected " << expected;
        ASSERT_TRUE(same(canonical.value(r, c), expected))
            << "planes, row " << r << " column " << c << ": " << canonical.value(r, c)
            << ", expected " << expected;
      }
    }
  }
}

TEST_P(QuantGgufFormat, RangesOfRowsAreThoseOfTheWhole) {
  const Golden golden = load_golden(GetParam());
  const auto [type, n_blocks, block_values, block_bytes] = golden.head;
  set_entry(type, n_blocks, block_values, golden.blocks);
  const auto desc = describe();
  ASSERT_TRUE(desc);
  for (std::uint64_t first = 0; first < n_blocks; first += 3) {
    const std::uint64_t n = std::min<std::uint64_t>(3, n_blocks - first);
    Planes planes(*desc, first, n);
    ASSERT_TRUE(decode(*desc, planes));
    const CanonicalRows canonical(*desc, planes.rows_);
    for (std::uint64_t r = 0; r < n; ++r)
      for (std::uint64_t c = 0; c < block_values; ++c)
        ASSERT_TRUE(same(canonical.value(r, c), golden.values[(first + r) * block_values + c]));
  }
}

INSTANTIATE_TEST_SUITE_P(Each,
                         QuantGgufFormat,
                         ::testing::Values("f32",
                                           "f16",
                                           "bf16",
                                           "q4_0",
                                           "q4_1",
                                           "q5_0",
                                           "q5_1",
                                           "q8_0",
                                           "q2_k",
                                           "q3_k",
                                           "q4_k",
                                           "q5_k",
                                           "q6_k",
                                           "iq4_nl"),
                         [](const auto& tested) { return std::string(tested.param); });

int base64_digit(char c) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  return static_cast<int>(kDigits.find(c));
}

std::vector<std::byte> from_base64(std::string_view text) {
  std::vector<std::byte> bytes;
  std::uint32_t bits = 0;
  int n_bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<std::uint32_t>(base64_digit(c));
    n_bits += 6;
    if (n_bits >= 8) {
      n_bits -= 8;
      bytes.push_back(static_cast<std::byte>(bits >> n_bits & 0xFF));
    }
  }
  return bytes;
}

TEST_F(QuantGguf, BlocksOfThePublicCaseHaveItsValues) {
  const std::map<std::string, std::uint32_t> types = {{"Q4_0", 2},
                                                      {"Q4_1", 3},
                                                      {"Q5_0", 6},
                                                      {"Q5_1", 7},
                                                      {"Q8_0", 8},
                                                      {"Q2_K", 10},
                                                      {"Q3_K", 11},
                                                      {"Q4_K", 12},
                                                      {"Q5_K", 13},
                                                      {"Q6_K", 14}};
  std::ifstream file(LUNA_SOURCE_DIR "/tests/golden/cases/cases.jsonl");
  std::string line;
  while (std::getline(file, line) && line.find("\"UNIT-BLOCK-1\"") == std::string::npos) {}
  ASSERT_TRUE(file) << "no case UNIT-BLOCK-1";
  const json::value tested = json::parse(line);
  const auto& expected = tested.at("expected").as_object();
  const double tolerance = expected.at("tolerance").to_number<double>();
  std::size_t n_checked = 0;
  for (const auto& [name, text] : tested.at("input").at("blocks").as_object()) {
    const auto bytes = from_base64(std::string(text.as_string()));
    const auto& values = expected.at("values").at(name).as_array();
    set_entry(types.at(std::string(name)), 1, values.size(), bytes);
    const auto desc = describe();
    ASSERT_TRUE(desc) << desc.error().message();
    Planes planes(*desc, 0, 1);
    ASSERT_TRUE(decode(*desc, planes));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double want = values[i].to_number<double>();
      EXPECT_NEAR(CanonicalRows(*desc, planes.rows_).value(0, i),
                  want,
                  tolerance * std::max(1.0, std::abs(want)))
          << name << " value " << i;
    }
    ++n_checked;
  }
  EXPECT_EQ(n_checked, types.size());
}

TEST_F(QuantGguf, RefusesTypesItDoesNotDecodeByName) {
  const std::vector<std::byte> bytes(66);
  set_entry(16, 1, 256, bytes);
  EXPECT_EQ(table_->score(self_, &entries_, 0), 0);
  const auto desc = describe();
  ASSERT_FALSE(desc);
  EXPECT_EQ(desc.error().code(), Code::unsupported);
  EXPECT_THAT(desc.error().message(), ::testing::HasSubstr("IQ2_XXS"));
}

TEST_F(QuantGguf, RefusesEntriesWhoseBytesDoNotFit) {
  const std::vector<std::byte> bytes(18);
  for (const auto& [n_rows, n_cols] :
       std::initializer_list<std::pair<std::uint64_t, std::uint64_t>>{
           {2, 32}, {1, 64}, {1, 33}, {1, 0}, {std::uint64_t{1} << 62, 64}}) {
    set_entry(2, n_rows, n_cols, bytes);
    EXPECT_FALSE(describe()) << n_rows << " x " << n_cols;
  }
  set_entry(2, 1, 32, bytes);
  entry_.container = LUNA_CONTAINER_SAFETENSORS;
  EXPECT_FALSE(describe());
  entry_.container = LUNA_CONTAINER_GGUF;
  entry_.rank = 3;
  EXPECT_FALSE(describe());
}

TEST_F(QuantGguf, RefusesRowsAndPlanesOutOfBounds) {
  const std::vector<std::byte> bytes(36);
  set_entry(2, 2, 32, bytes);
  const auto desc = describe();
  ASSERT_TRUE(desc);
  std::vector<float> out(32);
  EXPECT_FALSE(row(2, out));
  Planes planes(*desc, 0, 2);
  planes.rows_.first_row = 1;
  EXPECT_FALSE(decode(*desc, planes));
  planes.rows_.first_row = ~std::uint64_t{0};
  EXPECT_FALSE(decode(*desc, planes));
  planes.rows_.first_row = 0;
  planes.rows_.planes[LUNA_PLANE_SCALE] = nullptr;
  EXPECT_FALSE(decode(*desc, planes));
}

}  // namespace
}  // namespace luna
