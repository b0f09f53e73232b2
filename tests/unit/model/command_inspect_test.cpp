// `luna inspect` shows what a file holds, and fails for every file that is not right.
#include "core/app/command_inspect.hpp"

#include "unit/model/gguf_writer.hpp"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace luna::app {
namespace {

using ::testing::HasSubstr;

struct Answer {
  int status = 0;
  std::string out;
  std::string err;
};

Answer inspect(std::span<const std::byte> bytes, bool json = false) {
  const std::filesystem::path path =
      std::filesystem::path(::testing::TempDir()) /
      (std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + ".model");
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  std::istringstream in;
  std::ostringstream out;
  std::ostringstream err;
  Answer answer;
  answer.status = run_inspect({.path = path, .json = json}, {in, out, err});
  answer.out = out.str();
  answer.err = err.str();
  std::filesystem::remove(path);
  return answer;
}

TEST(CommandInspect, ShowsKeysTensorsTotalsAndModel) {
  const Answer answer = inspect(test::tiny_llama().write());
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("GGUF version 3, 21 keys, 11 tensors"));
  EXPECT_THAT(answer.out, HasSubstr("general.architecture  string  \"llama\""));
  EXPECT_THAT(answer.out, HasSubstr("tokenizer.ggml.tokens  string[260]  [\"t0\", \"t1\""));
  EXPECT_THAT(answer.out, HasSubstr("blk.0.ffn_gate.weight"));
  EXPECT_THAT(answer.out, HasSubstr("1 layers, hidden size 32"));
}

TEST(CommandInspect, WritesOneJsonObject) {
  const Answer answer = inspect(test::tiny_llama().write(), true);
  EXPECT_EQ(answer.status, 0);
  const auto object = boost::json::parse(answer.out).as_object();
  EXPECT_EQ(object.at("container").as_string(), "gguf");
  EXPECT_EQ(object.at("model").at("n_heads").as_int64(), 2);
  EXPECT_EQ(object.at("tensors").as_array().size(), 11u);
  EXPECT_EQ(object.at("totals").at("F32").at("n_tensors").as_int64(), 11);
}

TEST(CommandInspect, ShowsSafetensors) {
  constexpr std::string_view kHeader =
      R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})";
  test::Bytes bytes;
  bytes.put<std::uint64_t>(kHeader.size()).raw(kHeader).raw(std::string(16, '\0'));
  const Answer answer = inspect(bytes.bytes_);
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("[2, 2]"));
}

TEST(CommandInspect, TextOfAFileCannotSteerTheTerminal) {
  test::GgufParts parts = test::tiny_llama();
  parts.set(test::key_text("general.name", "\x1b[2J\x07"));
  const Answer answer = inspect(parts.write());
  EXPECT_EQ(answer.out.find('\x1b'), std::string::npos);
  EXPECT_THAT(answer.out, HasSubstr("\\x1b[2J\\x07"));
}

TEST(CommandInspect, FailsForFilesThatAreNotRight) {
  const std::vector<std::pair<const char*, std::function<void(test::GgufParts&)>>> cases = {
      {"magic", [](auto& f) { f.magic = "GGUG"; }},
      {"zebra", [](auto& f) { f.set(test::key_text("general.architecture", "zebra")); }},
      {"tokens",
       [](auto& f) {
         f.set(test::key_texts("tokenizer.ggml.tokens", std::vector<std::string>(261, "x")));
         f.drop("tokenizer.ggml.token_type");
       }},
      {"token_type",
       [](auto& f) {
         f.set(test::key_numbers(
             "tokenizer.ggml.token_type", model::ValueType::u8, std::vector<std::uint8_t>(260)));
       }},
  };
  for (const auto& [named, change] : cases) {
    test::GgufParts parts = test::tiny_llama();
    change(parts);
    const Answer answer = inspect(parts.write());
    EXPECT_EQ(answer.status, 1) << named;
    EXPECT_THAT(answer.err, HasSubstr(named));
  }
  EXPECT_EQ(inspect({}).status, 1);
}

}  // namespace
}  // namespace luna::app
