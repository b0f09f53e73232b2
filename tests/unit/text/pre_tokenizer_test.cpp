#include "core/text/pre_tokenizer.hpp"

#include <gtest/gtest.h>

namespace luna::text {
namespace {

std::vector<std::string_view> words(std::string_view text, std::string_view family) {
  std::vector<std::string_view> found;
  split_words(text, *split_rules_by_name(family), found);
  return found;
}

using Words = std::vector<std::string_view>;

TEST(SplitWords, KeepsTheBlankBeforeAWordWithIt) {
  EXPECT_EQ(words("Hello world!  x", "gpt-2"), (Words{"Hello", " world", "!", " ", " x"}));
}

TEST(SplitWords, CutsContractionsInLowerCaseOnlyForGpt2) {
  EXPECT_EQ(words("I'm I'M", "gpt-2"), (Words{"I", "'m", " I", "'", "M"}));
  EXPECT_EQ(words("I'm I'M x'll", "llama-bpe"), (Words{"I", "'m", " I", "'M", " x", "'ll"}));
}

TEST(SplitWords, MakesEachDigitAWordForSmollm) {
  EXPECT_EQ(words("in 1234", "smollm"), (Words{"in", " ", "1", "2", "3", "4"}));
  EXPECT_EQ(words("in 1234", "gpt-2"), (Words{"in", " 1234"}));
  EXPECT_EQ(words("in 1234", "llama-bpe"), (Words{"in", " ", "123", "4"}));
  EXPECT_EQ(words("in 1234", "qwen2"), (Words{"in", " ", "1", "2", "3", "4"}));
}

TEST(SplitWords, SeesTheEndOfAPieceBeforeADigitAsTheEndOfTheText) {
  EXPECT_EQ(words("a  1", "smollm"), (Words{"a", "  ", "1"}));
  EXPECT_EQ(words("a  1", "gpt-2"), (Words{"a", " ", " 1"}));
}

TEST(SplitWords, EndsWhiteSpaceAfterTheLastLineEndForLlama3) {
  EXPECT_EQ(words("a \n\n  b", "llama-bpe"), (Words{"a", " \n\n", " ", " b"}));
  EXPECT_EQ(words("x;\r\ny", "llama-bpe"), (Words{"x", ";\r\n", "y"}));
}

TEST(SplitWords, TakesBrokenBytesAsCharactersOfNoClass) {
  EXPECT_EQ(words("a\xFF\x80 b", "gpt-2"), (Words{"a", "\xFF\x80", " b"}));
}

TEST(SplitWords, LosesNoByteOfAnyText) {
  for (unsigned seed = 1; seed < 3000; ++seed) {
    std::string text;
    for (unsigned x = seed; x != 0; x /= 7)
      text += "a '1\n\xC3."[x % 7];
    for (const char* family : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
      std::string joined;
      for (const std::string_view word : words(text, family)) {
        ASSERT_FALSE(word.empty());
        joined += word;
      }
      ASSERT_EQ(joined, text) << family;
    }
  }
}

TEST(SplitRules, RefusesAnUnknownNameWithTheKnownOnes) {
  const auto rules = split_rules_by_name("mystery");
  ASSERT_FALSE(rules);
  EXPECT_EQ(rules.error().code(), Code::unsupported);
  EXPECT_NE(rules.error().message().find("\"mystery\""), std::string::npos);
  for (const char* known : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
    EXPECT_NE(rules.error().message().find(known), std::string::npos) << known;
  }
}

}  // namespace
}  // namespace luna::text
