#include "core/text/vocabulary_difference.hpp"

#include "support/tiny_vocabulary.hpp"

#include <gtest/gtest.h>

namespace luna::text {
namespace {

TEST(VocabularyDifference, EqualVocabulariesHaveNone) {
  Vocabulary other = test::tiny_vocabulary();
  other.chat_template = "another";
  other.adds_bos = !other.adds_bos;
  EXPECT_EQ(first_difference(test::tiny_vocabulary(), other), std::nullopt);
}

TEST(VocabularyDifference, TheFirstIsNamedWithBothWords) {
  const Vocabulary one = test::tiny_vocabulary();
  Vocabulary other = one;
  other.tokens[70] = "x\n";
  other.tokens[71] = "y";
  EXPECT_EQ(first_difference(one, other),
            "token 70 is \"" + one.tokens[70] + "\" in the one and \"x?\" in the other");
  other = one;
  other.tokens.push_back("more");
  EXPECT_EQ(first_difference(one, other),
            "the number of tokens is " + std::to_string(one.tokens.size()) + " in the one and " +
                std::to_string(one.tokens.size() + 1) + " in the other");
  other = one;
  other.types[3] = TokenType::unused;
  EXPECT_EQ(first_difference(one, other), "the type of token 3 is 1 in the one and 5 in the other");
  other = one;
  other.merges.pop_back();
  EXPECT_TRUE(first_difference(one, other)->starts_with("the number of merges is "));
  other = one;
  other.pre = "qwen2";
  EXPECT_TRUE(first_difference(one, other)->starts_with("the pre-tokenizer is "));
  other = one;
  other.model = "llama";
  EXPECT_TRUE(first_difference(one, other)->starts_with("the kind is "));
}

}  // namespace
}  // namespace luna::text
