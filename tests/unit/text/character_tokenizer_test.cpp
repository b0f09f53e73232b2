// BPE over characters: spaces as U+2581, merges by score or by list, bytes for what has no token.
#include "core/text/tokenizer.hpp"
#include "core/text/vocabulary_json.hpp"
#include "support/test_seed.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace luna::text {
namespace {

using Ids = std::vector<TokenId>;
using ::testing::HasSubstr;

constexpr TokenId kUnknown = 0;
constexpr TokenId kEnd = 1;
constexpr TokenId kNewlines = 2;  // user-defined: two line ends
constexpr TokenId kByte0 = 3;
constexpr TokenId kFirstPiece = kByte0 + 256;

/// Control and user-defined tokens, 256 bytes, then these pieces by score.
Vocabulary pieces(const std::vector<std::pair<std::string, float>>& scored) {
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.tokens = {"<unk>", "<end>", "\n\n"};
  vocabulary.types = {TokenType::unknown, TokenType::control, TokenType::user_defined};
  for (unsigned byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    vocabulary.tokens.emplace_back(name);
    vocabulary.types.push_back(TokenType::byte);
  }
  vocabulary.scores.assign(vocabulary.tokens.size(), 0.0F);
  for (const auto& [text, score] : scored) {
    vocabulary.tokens.push_back(text);
    vocabulary.types.push_back(TokenType::normal);
    vocabulary.scores.push_back(score);
  }
  vocabulary.unknown_id = kUnknown;
  vocabulary.eos_id = kEnd;
  return vocabulary;
}

// Ids from kFirstPiece on.
enum Piece : TokenId { kSpace, kA, kB, kC, kAb, kBc, kSpaceA, kAbc, kXy };
Vocabulary letters() {
  return pieces({{"\u2581", -9},
                 {"a", -9},
                 {"b", -9},
                 {"c", -9},
                 {"ab", -3},
                 {"bc", -2},
                 {"\u2581a", -4},
                 {"abc", -5},
                 {"xy", -6}});
}

Ids encoded(const Vocabulary& vocabulary,
            std::string_view text,
            SpecialTokens mode = SpecialTokens::recognise) {
  const auto tokenizer = Tokenizer::create(vocabulary);
  EXPECT_TRUE(tokenizer) << tokenizer.error().message();
  return *tokenizer->encode(text, mode);
}
TokenId id(Piece piece) {
  return kFirstPiece + piece;
}

TEST(CharacterTokenizer, MergesTheHighestScoreFirst) {
  EXPECT_EQ(encoded(letters(), "ab"), Ids{id(kAb)});
  // "bc" goes before "ab", and "a" with "bc" makes "abc".
  EXPECT_EQ(encoded(letters(), "abc"), Ids{id(kAbc)});
  EXPECT_EQ(encoded(letters(), "abab"), (Ids{id(kAb), id(kAb)}));
}

TEST(CharacterTokenizer, SpacesAreMarksAndMergeAcrossWords) {
  EXPECT_EQ(encoded(letters(), "b a"), (Ids{id(kB), id(kSpaceA)}));
  Vocabulary vocabulary = letters();
  vocabulary.adds_space = true;
  EXPECT_EQ(encoded(vocabulary, "a"), Ids{id(kSpaceA)});
  EXPECT_EQ(encoded(vocabulary, ""), Ids{});
}

TEST(CharacterTokenizer, PartsWithoutTokensOfTheirOwnStillMerge) {
  EXPECT_EQ(encoded(letters(), "xy"), Ids{id(kXy)});
}

TEST(CharacterTokenizer, WhatHasNoTokenBecomesItsBytes) {
  EXPECT_EQ(encoded(letters(), "\u00e9"), (Ids{kByte0 + 0xC3, kByte0 + 0xA9}));
  EXPECT_EQ(encoded(letters(), "x"), Ids{kByte0 + 'x'});
  EXPECT_EQ(encoded(letters(), "a\xFF"), (Ids{id(kA), kByte0 + 0xFF}));
  Vocabulary vocabulary = letters();
  vocabulary.types[kByte0 + 0xA9] = TokenType::unused;
  EXPECT_EQ(encoded(vocabulary, "\u00e9"), Ids{kUnknown});
}

TEST(CharacterTokenizer, ControlAndUserDefinedTokensAreFoundAsElsewhere) {
  EXPECT_EQ(encoded(letters(), "a<end>\n\nb"), (Ids{id(kA), kEnd, kNewlines, id(kB)}));
  EXPECT_EQ(encoded(letters(), "<end>", SpecialTokens::plain).size(), 5U);
}

TEST(CharacterTokenizer, DecodesToTheSameBytesForAnyBytes) {
  const auto tokenizer = Tokenizer::create(letters());
  ASSERT_TRUE(tokenizer);
  std::mt19937 random(test::test_seed());
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::size_t n = random() % 60; n > 0; --n)
      text += random() % 4 == 0 ? static_cast<char>(random() % 256) : "abc xy\n"[random() % 7];
    const auto ids = tokenizer->encode(text, SpecialTokens::plain);
    ASSERT_TRUE(ids);
    std::string expected;  // a mark in the text cannot be told from a space
    for (std::size_t pos = 0; pos < text.size(); ++pos) {
      const bool is_mark = text.compare(pos, 3, "\u2581") == 0;
      expected += is_mark ? ' ' : text[pos];
      pos += is_mark ? 2 : 0;
    }
    EXPECT_EQ(tokenizer->decode(*ids), expected);
  }
}

TEST(CharacterTokenizer, ScoresMustBeOnePerToken) {
  Vocabulary vocabulary = letters();
  vocabulary.scores.pop_back();
  const auto tokenizer = Tokenizer::create(vocabulary);
  ASSERT_FALSE(tokenizer);
  EXPECT_THAT(tokenizer.error().message(), HasSubstr("scores"));
}

constexpr const char* kJson = R"({
  "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
  "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                    "invert": false},
  "added_tokens": [{"id": 1, "content": "<end>", "special": true}],
  "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
            "vocab": {"<unk>": 0, "<end>": 1, "<0xC3>": 2, "<0xA9>": 3, "\u2581": 4, "a": 5, "b": 6,
                      "ab": 7, "\u2581a": 8},
            "merges": [["\u2581", "a"], ["a", "b"]]}})";

TEST(CharacterTokenizer, IsReadFromATokenizerJson) {
  const auto vocabulary = parse_tokenizer_json(kJson);
  ASSERT_TRUE(vocabulary) << vocabulary.error().message();
  EXPECT_EQ(encoded(*vocabulary, "ab ab<end>"), (Ids{7, 8, 6, 1}));
  EXPECT_EQ(encoded(*vocabulary, "\u00e9?"), (Ids{2, 3, 0}));
}

TEST(CharacterTokenizer, OtherNormalizersAndCutsAreRefused) {
  const auto refused = [](std::string_view from, std::string_view to) {
    std::string json = kJson;
    json.replace(json.find(from), from.size(), to);
    const auto vocabulary = parse_tokenizer_json(json);
    return vocabulary ? std::string("taken") : vocabulary.error().message();
  };
  EXPECT_THAT(refused("\"content\": \"\\u2581\"", "\"content\": \"_\""), HasSubstr("Replace"));
  EXPECT_THAT(refused("{\"String\": \" \"}, \"behavior\"", "{\"String\": \"x\"}, \"behavior\""),
              HasSubstr("Split"));
  EXPECT_THAT(refused("\"byte_fallback\": true", "\"byte_fallback\": false"),
              HasSubstr("byte_fallback"));
}

}  // namespace
}  // namespace luna::text
