// Right headers are read; every wrong one is refused with the tensor and field named.
#include "core/model/safetensors_file.hpp"

#include "support/test_seed.hpp"
#include "unit/model/gguf_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace luna::model {
namespace {

std::vector<std::byte> file_of(std::string_view header,
                               std::size_t n_data = 16,
                               std::optional<std::uint64_t> length = std::nullopt) {
  test::Bytes bytes;
  bytes.put<std::uint64_t>(length.value_or(header.size())).raw(header);
  bytes.bytes_.resize(bytes.bytes_.size() + n_data);
  return bytes.bytes_;
}

constexpr const char* kRight = R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})";

TEST(SafetensorsFile, ReadsRightFiles) {
  for (const char* header : {
           kRight,
           R"({"__metadata__":{},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})",
           R"({"__metadata__":{"format":"pt"},
               "a":{"dtype":"BF16","shape":[8],"data_offsets":[0,16]}})",
           R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},
               "z":{"dtype":"F32","shape":[0,5],"data_offsets":[16,16]}})",
           R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},
               "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
           R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}}      )",
       }) {
    const auto bytes = file_of(header);
    const auto file = SafetensorsFile::parse(bytes);
    ASSERT_TRUE(file) << header << ": " << file.error().message();
    EXPECT_NE(file->find_tensor("a"), nullptr);
  }
}

TEST(SafetensorsFile, ReadsEscapedNames) {
  const auto bytes = file_of(R"({"\u0061\"":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})");
  const auto file = SafetensorsFile::parse(bytes);
  ASSERT_TRUE(file);
  EXPECT_NE(file->find_tensor("a\""), nullptr);
}

TEST(SafetensorsFile, RefusesWrongHeaderLengths) {
  for (const std::uint64_t length : {0ull, 1ull, 1ull << 63, 1'000'000ull, 200'000'000ull}) {
    const auto bytes = file_of(kRight, 16, length);
    const auto file = SafetensorsFile::parse(bytes);
    ASSERT_FALSE(file) << length;
    EXPECT_THAT(file.error().message(), ::testing::HasSubstr("header length"));
  }
  EXPECT_FALSE(SafetensorsFile::parse(std::vector<std::byte>(7)));
  EXPECT_FALSE(SafetensorsFile::parse({}));
}

TEST(SafetensorsFile, RefusesWrongHeadersWithTheFieldNamed) {
  struct Case {
    const char* header;
    const char* named;
  };
  const std::string deep = R"({"a":)" + std::string(200000, '[');
  for (const Case& tested : std::initializer_list<Case>{
           {"hello world     ", "JSON"},
           {"[1,2]  ", "object"},
           {"{\"\xff\":1}", "JSON"},
           {R"({"a":{"dtype":"F32",)", "JSON"},
           {deep.c_str(), "JSON"},
           {R"({"a":1})", "tensor a"},
           {R"({"__metadata__":[]})", "__metadata__"},
           {R"({"__metadata__":{"n":1}})", "__metadata__.n"},
           {R"({"a":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,16]}})", "data_offsets"},
           {R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[16,0]}})", "data_offsets"},
           {R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", "data_offsets"},
           {R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[-16,0]}})", "data_offsets"},
           {R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,8,16]}})", "data_offsets"},
           {R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":["0","16"]}})", "data_offsets"},
           {R"({"a":{"dtype":"F32","shape":[-2,-2],"data_offsets":[0,16]}})", "shape"},
           {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})",
            "shape"},
           {R"({"a":{"dtype":"F32","shape":[2.5,2],"data_offsets":[0,16]}})", "shape"},
           {R"({"a":{"dtype":"F32","shape":[1,1,1,1,4],"data_offsets":[0,16]}})", "shape"},
           {R"({"a":{"dtype":"F33","shape":[2,2],"data_offsets":[0,16]}})", "F33"},
           {R"({"a":{"shape":[2,2],"data_offsets":[0,16]}})", "dtype"},
           {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                "a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
            "twice"},
           {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},
                "b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
            "overlaps"},
           {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                "b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})",
            "hole"},
           {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "belong to none"},
       }) {
    const auto bytes = file_of(tested.header);
    const auto file = SafetensorsFile::parse(bytes);
    ASSERT_FALSE(file) << std::string_view(tested.header).substr(0, 200);
    EXPECT_THAT(file.error().message(), ::testing::HasSubstr(tested.named));
  }
}

TEST(SafetensorsFile, SurvivesRandomChangesOfBytes) {
  const auto whole = file_of(kRight);
  const std::uint32_t seed = test::test_seed();
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> changed = whole;
    for (auto i = random() % 4; i < 4; ++i)
      changed[random() % (changed.size() - 16)] = static_cast<std::byte>(random());
    static_cast<void>(SafetensorsFile::parse(changed));  // any answer, but no crash
  }
}

}  // namespace
}  // namespace luna::model
