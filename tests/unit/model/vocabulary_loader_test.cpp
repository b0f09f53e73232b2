// The vocabulary of a file: whole when right, refused with the key named when wrong.
#include "core/model/vocabulary_loader.hpp"

#include "core/model/gguf_file.hpp"
#include "unit/model/gguf_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luna::model {
namespace {

Result<text::Vocabulary> read(const test::GgufParts& parts) {
  const auto bytes = parts.write();
  LUNA_TRY(const GgufFile file, GgufFile::parse(bytes));
  return read_vocabulary(file);
}

TEST(VocabularyLoader, ReadsTokensTypesMergesAndIds) {
  const auto vocabulary = read(test::tiny_llama());
  ASSERT_TRUE(vocabulary) << vocabulary.error().message();
  EXPECT_EQ(vocabulary->tokens.size(), 260u);
  EXPECT_EQ(vocabulary->tokens[7], "t7");
  EXPECT_EQ(vocabulary->types[3], text::TokenType::control);
  EXPECT_EQ(vocabulary->types[4], text::TokenType::normal);
  EXPECT_EQ(vocabulary->merges, std::vector<std::string>{"t h"});
  EXPECT_EQ(vocabulary->model, "gpt2");
  EXPECT_EQ(vocabulary->pre, "smollm");
  EXPECT_EQ(vocabulary->bos_id, 1u);
  EXPECT_EQ(vocabulary->eos_id, 2u);
  EXPECT_EQ(vocabulary->eot_id, std::nullopt);
  EXPECT_FALSE(vocabulary->adds_bos);
  EXPECT_EQ(vocabulary->chat_template, "{{ messages }}");
}

TEST(VocabularyLoader, KnowsTheFamiliesThatAddABosUnasked) {
  test::GgufParts parts = test::tiny_llama();
  parts.set(test::key_text("tokenizer.ggml.pre", "llama-bpe"));
  auto vocabulary = read(parts);
  ASSERT_TRUE(vocabulary);
  EXPECT_TRUE(vocabulary->adds_bos);
  parts.set(test::key_bool("tokenizer.ggml.add_bos_token", false));
  vocabulary = read(parts);
  ASSERT_TRUE(vocabulary);
  EXPECT_FALSE(vocabulary->adds_bos);
}

TEST(VocabularyLoader, RefusesWrongKeysByName) {
  struct Case {
    const char* named;
    std::function<void(test::GgufParts&)> change;
  };
  const std::vector<Case> cases = {
      {"token_type",
       [](auto& f) {
         f.set(test::key_numbers(
             "tokenizer.ggml.token_type", ValueType::u8, std::vector<std::uint8_t>(260, 1)));
       }},
      {"token_type",
       [](auto& f) {
         f.set(test::key_numbers(
             "tokenizer.ggml.token_type", ValueType::i32, std::vector<std::int32_t>(10, 1)));
       }},
      {"token_type",
       [](auto& f) {
         f.set(test::key_numbers(
             "tokenizer.ggml.token_type", ValueType::i32, std::vector<std::int32_t>(260, 7)));
       }},
      {"tokens",
       [](auto& f) {
         f.set(test::key_numbers(
             "tokenizer.ggml.tokens", ValueType::u32, std::vector<std::uint32_t>(260, 1)));
       }},
      {"tokens", [](auto& f) { f.drop("tokenizer.ggml.tokens"); }},
      {"tokenizer.ggml.model", [](auto& f) { f.drop("tokenizer.ggml.model"); }},
      {"bos_token_id", [](auto& f) { f.set(test::key_u32("tokenizer.ggml.bos_token_id", 260)); }},
      {"eos_token_id", [](auto& f) { f.set(test::key_text("tokenizer.ggml.eos_token_id", "2")); }},
      {"merges", [](auto& f) { f.set(test::key_u32("tokenizer.ggml.merges", 1)); }},
      {"chat_template", [](auto& f) { f.set(test::key_u32("tokenizer.chat_template", 1)); }},
  };
  for (const Case& tested : cases) {
    test::GgufParts parts = test::tiny_llama();
    tested.change(parts);
    const auto vocabulary = read(parts);
    ASSERT_FALSE(vocabulary) << tested.named;
    EXPECT_THAT(vocabulary.error().message(), ::testing::HasSubstr(tested.named));
  }
}

}  // namespace
}  // namespace luna::model
