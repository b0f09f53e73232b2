// What GgufWriter writes, GgufFile reads back; what no file may hold is refused when it is added.
#include "core/model/gguf_file.hpp"
#include "core/model/gguf_writer.hpp"
#include "unit/model/gguf_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luna::model {
namespace {

using ::testing::HasSubstr;

GgufLayout layout_of(const GgufFile& file) {
  GgufLayout layout;
  for (const MetadataEntry& entry : file.metadata()) {
    const auto added = layout.add_key(entry);
    EXPECT_TRUE(added) << added.error().message();
  }
  for (const TensorInfo& tensor : file.tensors()) {
    const auto added =
        layout.add_tensor(tensor.name, tensor.type, {tensor.dims.data(), tensor.rank});
    EXPECT_TRUE(added) << added.error().message();
  }
  return layout;
}

/// The file written anew, its tensors in pieces of at most n bytes.
std::vector<std::byte> rewrite(const GgufFile& file, std::size_t n_piece_bytes) {
  test::Bytes out;
  const GgufLayout layout = layout_of(file);
  GgufWriter writer(layout, [&](std::span<const std::byte> bytes) {
    out.raw(bytes);
    return Result<void>{};
  });
  EXPECT_TRUE(writer.write_header());
  for (const TensorInfo& tensor : file.tensors()) {
    for (auto rest = tensor.bytes; !rest.empty();) {
      const auto piece = rest.first(std::min(rest.size(), n_piece_bytes));
      EXPECT_TRUE(writer.append(piece));
      rest = rest.subspan(piece.size());
    }
  }
  EXPECT_TRUE(writer.finish());
  EXPECT_EQ(layout.n_file_bytes().value(), out.bytes_.size());
  return std::move(out.bytes_);
}

/// Keys of every type there is.
test::GgufParts every_type() {
  test::GgufParts parts = test::tiny_llama({.n_layers = 2}, test::zeros);
  const auto add = [&](std::string key, ValueType type, auto value) {
    parts.keys.push_back(test::raw_key(std::move(key), test::typed(type).put(value)));
  };
  add("x.u8", ValueType::u8, std::uint8_t{255});
  add("x.i8", ValueType::i8, std::int8_t{-128});
  add("x.u16", ValueType::u16, std::uint16_t{65535});
  add("x.i16", ValueType::i16, std::int16_t{-32768});
  add("x.i32", ValueType::i32, std::int32_t{-5});
  add("x.u64", ValueType::u64, ~std::uint64_t{0});
  add("x.i64", ValueType::i64, std::int64_t{-1} << 62);
  add("x.f64", ValueType::f64, 0.1);
  parts.keys.push_back(test::key_bool("x.bool", true));
  test::Bytes nested = test::array_of(ValueType::array, 1);
  nested.put(static_cast<std::uint32_t>(ValueType::u8)).put<std::uint64_t>(3);
  nested.put<std::uint8_t>(1).put<std::uint8_t>(2).put<std::uint8_t>(3);
  parts.keys.push_back(test::raw_key("x.nested", std::move(nested)));
  return parts;
}

TEST(GgufWriter, WritesTheBytesThatWereRead) {
  // The tests' own writer pads as GGUF does and keeps the order: the files are equal to the byte.
  const auto bytes = every_type().write();
  const auto file = GgufFile::parse(bytes);
  ASSERT_TRUE(file) << file.error().message();
  for (const std::size_t n_piece_bytes : {std::size_t{1}, std::size_t{97}, std::size_t{1} << 20})
    EXPECT_EQ(rewrite(*file, n_piece_bytes), bytes);
}

TEST(GgufWriter, TensorsLieAtTheAlignmentThatIsStated) {
  GgufLayout layout;
  MetadataEntry alignment;
  alignment.key = "general.alignment";
  alignment.type = ValueType::u32;
  alignment.value = std::uint64_t{128};
  ASSERT_TRUE(layout.add_key(alignment));
  const std::uint64_t dims[] = {3};
  ASSERT_TRUE(layout.add_tensor("a", 0, dims));
  ASSERT_TRUE(layout.add_tensor("b", 0, dims));
  const auto places = layout.places();
  EXPECT_EQ(places[0].offset % 128, 0U);
  EXPECT_EQ(places[1].offset, places[0].offset + 128);
  EXPECT_EQ(layout.n_file_bytes().value(), places[1].offset + 128);
}

TEST(GgufWriter, RefusesKeysThatNoFileMayHold) {
  const auto refusal = [](std::string key, ValueType type, auto value) {
    GgufLayout layout;
    MetadataEntry entry;
    entry.key = std::move(key);
    entry.type = type;
    entry.value = value;
    const auto added = layout.add_key(entry);
    return added ? std::string() : added.error().message();
  };
  EXPECT_THAT(refusal("", ValueType::u8, std::uint64_t{1}), HasSubstr("a name of 0 bytes"));
  EXPECT_THAT(refusal(std::string(65536, 'x'), ValueType::u8, std::uint64_t{1}),
              HasSubstr("65536 bytes, allowed are 1..65535"));
  EXPECT_THAT(refusal("x", ValueType::u8, std::uint64_t{256}), HasSubstr("is no u8"));
  EXPECT_THAT(refusal("x", ValueType::i8, std::int64_t{-129}), HasSubstr("is no i8"));
  EXPECT_THAT(refusal("x", ValueType::u32, std::int64_t{1}), HasSubstr("is no u32"));
  EXPECT_THAT(refusal("x", ValueType::string, true), HasSubstr("is no string"));
  EXPECT_THAT(refusal("x", ValueType::u32, 1.0), HasSubstr("is no u32"));
  EXPECT_THAT(refusal("general.alignment", ValueType::u32, std::uint64_t{24}),
              HasSubstr("a power of two in 8.."));
  EXPECT_THAT(refusal("general.alignment", ValueType::u64, std::uint64_t{32}),
              HasSubstr("must be a u32"));
  GgufLayout layout;
  ASSERT_TRUE(layout.add_text("x", "y"));
  EXPECT_THAT(layout.add_count("x", 1).error().message(), HasSubstr("key x: added twice"));
}

TEST(GgufWriter, RefusesTensorsThatNoFileMayHold) {
  GgufLayout layout;
  const auto refusal =
      [&](std::string_view name, std::uint32_t type, const std::vector<std::uint64_t>& dims) {
        const auto added = layout.add_tensor(name, type, dims);
        return added ? std::string() : added.error().message();
      };
  EXPECT_EQ(refusal("a", 0, {2, 3}), "");
  EXPECT_THAT(refusal("a", 0, {2, 3}), HasSubstr("tensor a: added twice"));
  EXPECT_THAT(refusal("", 0, {2}), HasSubstr("a name of 0 bytes"));
  EXPECT_THAT(refusal("b", 99, {2}), HasSubstr("unknown tensor type 99"));
  EXPECT_THAT(refusal("b", 0, {2, 0}), HasSubstr("none of them 0"));
  EXPECT_THAT(refusal("b", 0, {1, 1, 1, 1, 1}), HasSubstr("at most 4 dimensions"));
  EXPECT_THAT(refusal("b", 8, {2, 33}), HasSubstr("whole blocks of 32"));
  EXPECT_THAT(refusal("b", 0, {1ULL << 32, 1ULL << 32}), HasSubstr("must fit 64 bits"));
  EXPECT_EQ(refusal("b", 0, {1ULL << 31, 1ULL << 29}), "");
  EXPECT_EQ(refusal("c", 0, {1ULL << 31, 1ULL << 29}), "");
  const auto n_bytes = layout.n_file_bytes();
  ASSERT_FALSE(n_bytes);
  EXPECT_THAT(n_bytes.error().message(), HasSubstr("does not fit 63 bits"));
}

TEST(GgufWriter, CountsTheBytesOfEachTensor) {
  GgufLayout layout;
  const std::uint64_t dims[] = {2};
  ASSERT_TRUE(layout.add_tensor("a", 0, dims));
  std::size_t n = 0;
  GgufWriter writer(layout, [&](std::span<const std::byte> bytes) {
    n += bytes.size();
    return Result<void>{};
  });
  ASSERT_TRUE(writer.write_header());
  const std::vector<std::byte> bytes(9);
  EXPECT_THAT(writer.append(bytes).error().message(), HasSubstr("9 bytes where 8 are missing"));
  ASSERT_TRUE(writer.append(std::span(bytes).first(5)));
  EXPECT_THAT(writer.finish().error().message(), HasSubstr("5 of 8 bytes were written"));
  ASSERT_TRUE(writer.append(std::span(bytes).first(3)));
  EXPECT_TRUE(writer.finish());
  EXPECT_FALSE(writer.append(std::span(bytes).first(1)));
  EXPECT_EQ(n, layout.n_file_bytes().value());
}

TEST(GgufWriter, PassesOnWhatTheSinkAnswers) {
  GgufLayout layout;
  ASSERT_TRUE(layout.add_text("x", "y"));
  GgufWriter writer(layout, [](std::span<const std::byte>) -> Result<void> {
    return Error{Code::io, "the disk is full"};
  });
  EXPECT_THAT(writer.write_header().error().message(), HasSubstr("the disk is full"));
}

}  // namespace
}  // namespace luna::model
