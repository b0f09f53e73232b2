#include "core/text/vocabulary_json.hpp"

#include "core/text/tokenizer.hpp"

#include <gtest/gtest.h>

namespace luna::text {
namespace {

const std::string kByteLevel =
    R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true})";
const std::string kModel =
    R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]})";

std::string file(const std::string& parts) {
  return "{" + parts + "}";
}

TEST(VocabularyJson, ReadsTokensMergesAndRules) {
  const auto vocabulary = parse_tokenizer_json(file(kByteLevel + "," + kModel));
  ASSERT_TRUE(vocabulary) << vocabulary.error().message();
  EXPECT_EQ(vocabulary->tokens, (std::vector<std::string>{"a", "b", "ab"}));
  EXPECT_EQ(vocabulary->merges, std::vector<std::string>{"a b"});
  EXPECT_EQ(vocabulary->rules, SplitRules{});
}

TEST(VocabularyJson, ReadsDigitsThenByteLevelAsSmollm) {
  const auto vocabulary = parse_tokenizer_json(file(
      R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},)"
      R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true}]},)" +
      kModel));
  ASSERT_TRUE(vocabulary) << vocabulary.error().message();
  EXPECT_EQ(vocabulary->rules, *split_rules_by_name("smollm"));
}

TEST(VocabularyJson, ReadsAddedTokensWithTheirFlags) {
  const auto vocabulary = parse_tokenizer_json(
      file(R"("added_tokens":[{"id":3,"content":"<s>","special":true,"rstrip":true},)"
           R"({"id":5,"content":"<t>","special":false,"normalized":true}],)" +
           kByteLevel + "," + kModel));
  ASSERT_TRUE(vocabulary) << vocabulary.error().message();
  ASSERT_EQ(vocabulary->tokens.size(), 6U);
  EXPECT_EQ(vocabulary->types[3], TokenType::control);
  EXPECT_EQ(vocabulary->types[4], TokenType::unused);
  EXPECT_EQ(vocabulary->types[5], TokenType::user_defined);
  EXPECT_TRUE(vocabulary->added[0].strips_right);
  EXPECT_TRUE(vocabulary->added[1].normalized);
  const auto tokenizer = Tokenizer::create(*vocabulary);
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(*tokenizer->encode("ab<s> <t>a", SpecialTokens::recognise),
            (std::vector<TokenId>{2, 3, 5, 0}));
}

TEST(VocabularyJson, ReadsTheConfiguration) {
  auto vocabulary = parse_tokenizer_json(file(
      R"("added_tokens":[{"id":3,"content":"<s>","special":true}],)" + kByteLevel + "," + kModel));
  ASSERT_TRUE(vocabulary);
  ASSERT_TRUE(apply_tokenizer_config(
      R"({"bos_token":{"content":"<s>"},"add_bos_token":true,)"
      R"("chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"}]})",
      *vocabulary));
  EXPECT_EQ(vocabulary->bos_id, 3U);
  EXPECT_TRUE(vocabulary->adds_bos);
  EXPECT_EQ(vocabulary->chat_template, "D");
}

struct Refusal {
  const char* what;
  std::string json;
  Code code;
};

TEST(VocabularyJson, RefusesWhatWouldGiveOtherIds) {
  const std::string deep(5000, '[');
  const std::vector<Refusal> refusals = {
      {"not valid JSON", "{", Code::corrupt},
      {"not valid JSON", deep, Code::corrupt},
      {"model", file(kByteLevel), Code::corrupt},
      {"ByteLevel", file(kModel), Code::unsupported},
      {"Metaspace", file(R"("pre_tokenizer":{"type":"Metaspace"},)" + kModel), Code::unsupported},
      {"Lowercase",
       file(R"("normalizer":{"type":"Lowercase"},)" + kByteLevel + "," + kModel),
       Code::unsupported},
      {"WordPiece", file(kByteLevel + R"(,"model":{"type":"WordPiece"})"), Code::unsupported},
      {"byte_fallback", file(kByteLevel + R"(,"model":{"byte_fallback":true})"), Code::unsupported},
      {"unk_token",
       file(kByteLevel + R"(,"model":{"vocab":{},"merges":[],"unk_token":"?"})"),
       Code::unsupported},
      {"merge 0", file(kByteLevel + R"(,"model":{"vocab":{},"merges":[["a"]]})"), Code::corrupt},
      {"its id",
       file(kByteLevel + R"(,"model":{"vocab":{"a":4000000000},"merges":[]})"),
       Code::corrupt},
      {"its id", file(kByteLevel + R"(,"model":{"vocab":{"a":-1},"merges":[]})"), Code::corrupt},
      {"pattern",
       file(R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","behavior":)"
            R"("Isolated","pattern":{"Regex":"x+"}}]},)" +
            kModel),
       Code::unsupported},
  };
  for (const Refusal& refusal : refusals) {
    const auto vocabulary = parse_tokenizer_json(refusal.json);
    ASSERT_FALSE(vocabulary) << refusal.what;
    EXPECT_EQ(vocabulary.error().code(), refusal.code) << refusal.what;
    EXPECT_NE(vocabulary.error().message().find(refusal.what), std::string::npos)
        << vocabulary.error().message();
  }
}

TEST(VocabularyJson, NamesTheFileThatIsNotThere) {
  const auto vocabulary = read_vocabulary_folder("/nonexistent");
  ASSERT_FALSE(vocabulary);
  EXPECT_NE(vocabulary.error().message().find("tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace luna::text
