#include "core/text/tokenizer.hpp"

#include "support/test_seed.hpp"
#include "support/tiny_vocabulary.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace luna::text {
namespace {

using Ids = std::vector<TokenId>;
constexpr TokenId kStart = 256;
constexpr TokenId kEnd = 257;
constexpr TokenId kThink = 258;
constexpr TokenId kThe = 260;  // of the merges t h, th e
constexpr TokenId kAa = 261;
constexpr TokenId kSpaceThe = 263;

Tokenizer tiny() {
  return *Tokenizer::create(test::tiny_vocabulary());
}

Ids ids(std::string_view text, SpecialTokens mode = SpecialTokens::recognise) {
  return *tiny().encode(text, mode);
}

TEST(Tokenizer, JoinsPairsByRank) {
  EXPECT_EQ(ids("the"), Ids{kThe});
  EXPECT_EQ(ids("a the"), (Ids{'a', kSpaceThe}));
  EXPECT_EQ(ids("aaa"), (Ids{kAa, 'a'}));
}

TEST(Tokenizer, MakesControlTokensOfTheirTextUnlessTold) {
  EXPECT_EQ(ids("<|im_end|>the"), (Ids{kEnd, kThe}));
  EXPECT_EQ(ids("<|im_end|>", SpecialTokens::plain).size(), 10U);
}

TEST(Tokenizer, FindsUserDefinedTokensInAnyText) {
  EXPECT_EQ(ids("x<think>", SpecialTokens::plain), (Ids{'x', kThink}));
}

TEST(Tokenizer, NeverMakesControlTokensOfUntrustedText) {
  const std::vector<TextRun> runs = {
      {"<|im_start|>", true}, {"<|im_end|>", false}, {"<|im_end|>", true}};
  const Ids found = *tiny().encode(runs);
  EXPECT_EQ(found.size(), 12U);
  EXPECT_EQ(found.front(), kStart);
  EXPECT_EQ(found.back(), kEnd);
  EXPECT_EQ(std::count(found.begin(), found.end(), kEnd), 1);
}

TEST(Tokenizer, NeverMakesAControlTokenAcrossATrustBorder) {
  for (std::size_t cut = 1; cut < 10; ++cut) {
    const std::string text = "<|im_end|>";
    for (const bool first : {true, false}) {
      const std::vector<TextRun> runs = {{text.substr(0, cut), first}, {text.substr(cut), !first}};
      const Ids found = *tiny().encode(runs);
      EXPECT_EQ(std::count(found.begin(), found.end(), kEnd), 0) << cut;
      EXPECT_EQ(found, ids(text, SpecialTokens::plain)) << cut;
    }
  }
}

TEST(Tokenizer, MakesAControlTokenAcrossRunsThatAreBothTrusted) {
  const std::vector<TextRun> runs = {{"<|im_", true}, {"", false}, {"end|>", true}};
  EXPECT_EQ(*tiny().encode(runs), Ids{kEnd});
}

TEST(Tokenizer, MergesAcrossRunsAsInOneText) {
  const std::vector<TextRun> runs = {{"a t", true}, {"h", false}, {"e", true}};
  EXPECT_EQ(*tiny().encode(runs), ids("a the"));
}

TEST(Tokenizer, DecodesToTheSameBytesForAnyBytes) {
  const Tokenizer tokenizer = tiny();
  std::mt19937 random(test::test_seed());
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (unsigned n = random() % 40; n > 0; --n)
      text += static_cast<char>(random());
    ASSERT_EQ(tokenizer.decode(*tokenizer.encode(text, SpecialTokens::recognise)), text);
  }
}

TEST(Tokenizer, DropsBytesWithoutATokenAndNamesThem) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  vocabulary.tokens[0x13] = "gone";
  const Tokenizer tokenizer = *Tokenizer::create(vocabulary);
  EXPECT_EQ(tokenizer.missing_bytes(), std::vector<std::uint8_t>{0x13});
  EXPECT_EQ(*tokenizer.encode("t\x13h", SpecialTokens::plain), (Ids{'t', 'h'}));
}

TEST(Tokenizer, ComposesForQwen2) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  vocabulary.pre = "qwen2";
  const Tokenizer tokenizer = *Tokenizer::create(vocabulary);
  EXPECT_EQ(*tokenizer.encode("e\xCC\x81", SpecialTokens::plain), (Ids{0xC3, 0xA9}));
  EXPECT_EQ(*tokenizer.encode("\xFF"
                              "e\xCC\x81\xFF",
                              SpecialTokens::plain),
            (Ids{0xFF, 0xC3, 0xA9, 0xFF}));
}

TEST(Tokenizer, TakesAWholeWordBeforeMergesWhereTheFamilyDoes) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  vocabulary.tokens.push_back("xyz");
  vocabulary.types.push_back(TokenType::normal);
  const auto whole = static_cast<TokenId>(vocabulary.tokens.size() - 1);
  vocabulary.pre = "llama-bpe";
  EXPECT_EQ(*(*Tokenizer::create(vocabulary)).encode("xyz", SpecialTokens::plain), Ids{whole});
  vocabulary.pre = "gpt-2";
  EXPECT_EQ(*(*Tokenizer::create(vocabulary)).encode("xyz", SpecialTokens::plain),
            (Ids{'x', 'y', 'z'}));
}

TEST(Tokenizer, TakesWhiteSpaceAlongWhereATokenSaysSo) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  vocabulary.added = {{.id = kEnd, .strips_left = true, .strips_right = true}};
  const Tokenizer tokenizer = *Tokenizer::create(vocabulary);
  EXPECT_EQ(*tokenizer.encode("x \n<|im_end|>\t y", SpecialTokens::recognise),
            (Ids{'x', kEnd, 'y'}));
}

TEST(Tokenizer, KeepsAWordTokenOutOfWords) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  vocabulary.tokens[kThink] = "tool";
  vocabulary.added = {{.id = kThink, .single_word = true}};
  const Tokenizer tokenizer = *Tokenizer::create(vocabulary);
  EXPECT_EQ(*tokenizer.encode("tool", SpecialTokens::plain), Ids{kThink});
  EXPECT_EQ(tokenizer.encode("tools", SpecialTokens::plain)->size(), 5U);
}

TEST(Tokenizer, TakesTheLongestOfTextsThatBeginTogether) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  vocabulary.tokens[kThink] = "<|im_end|><|im_end|>";
  const Tokenizer tokenizer = *Tokenizer::create(vocabulary);
  EXPECT_EQ(*tokenizer.encode("<|im_end|><|im_end|><|im_end|>", SpecialTokens::recognise),
            (Ids{kThink, kEnd}));
}

TEST(Tokenizer, KnowsWhatEndsAGeneration) {
  const Tokenizer tokenizer = tiny();
  EXPECT_TRUE(tokenizer.is_end_of_generation(kEnd));
  EXPECT_FALSE(tokenizer.is_end_of_generation(kStart));
}

void expect_refused(const Vocabulary& vocabulary, Code code, std::string_view names) {
  const auto tokenizer = Tokenizer::create(vocabulary);
  ASSERT_FALSE(tokenizer) << names;
  EXPECT_EQ(tokenizer.error().code(), code);
  EXPECT_NE(tokenizer.error().message().find(names), std::string::npos)
      << tokenizer.error().message();
}

TEST(Tokenizer, RefusesWhatItDoesNotKnowByName) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  vocabulary.model = "bert";
  expect_refused(vocabulary, Code::unsupported, "\"bert\"");
  vocabulary = test::tiny_vocabulary();
  vocabulary.pre = "";
  expect_refused(vocabulary, Code::unsupported, "smollm");
}

TEST(Tokenizer, RefusesABrokenVocabulary) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  vocabulary.types.pop_back();
  expect_refused(vocabulary, Code::corrupt, "token types");
  vocabulary = test::tiny_vocabulary();
  vocabulary.eos_id = 100000;
  expect_refused(vocabulary, Code::corrupt, "eos token id 100000");
  for (const char* merge : {"th", "t h e", "q q", " ", ""}) {
    vocabulary = test::tiny_vocabulary();
    vocabulary.merges.emplace_back(merge);
    expect_refused(vocabulary, Code::corrupt, "merge 5");
  }
  vocabulary = test::tiny_vocabulary();
  vocabulary.tokens[kThink] = std::string(2000, 'x');
  expect_refused(vocabulary, Code::unsupported, "2000 bytes");
}

TEST(Tokenizer, RefusesAMergeThatMakesAControlToken) {
  Vocabulary vocabulary = test::tiny_vocabulary({"t h", "e n"});
  vocabulary.types.back() = TokenType::control;
  expect_refused(vocabulary, Code::corrupt, "merge 1");
}

TEST(PairMerger, LooksAtNoMoreThanThreePairsASymbol) {
  MergeTable table(2);
  table.insert('a', 'a', {0, 300});
  table.insert(300, 300, {1, 301});
  for (const std::size_t n : {25U, 1000U, 100'000U}) {
    PairMerger merger;
    Ids out;
    merger.merge(Ids(n, 'a'), table, out);
    EXPECT_EQ(out.size(), n / 4 + (n % 4 == 3 ? 2 : n % 4 == 0 ? 0 : 1)) << n;
    EXPECT_LE(merger.n_pairs_seen(), 3 * n) << n;
  }
}

TEST(PairMerger, JoinsLongWordsAsItJoinsShortOnes) {
  std::mt19937 random(test::test_seed());
  MergeTable table(64);
  for (std::uint32_t rank = 0; rank < 60; ++rank) {
    table.insert(random() % (8 + rank), random() % (8 + rank), {rank, 8 + rank});
  }
  for (int round = 0; round < 500; ++round) {
    Ids symbols;
    for (unsigned n = random() % 60; n > 0; --n)
      symbols.push_back(random() % 8);
    PairMerger merger;
    Ids out;
    merger.merge(symbols, table, out);
    // The definition: join the leftmost pair of the best rank until none is left.
    for (;;) {
      std::optional<MergeRule> best;
      std::size_t at = 0;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto rule = table.find(symbols[i], symbols[i + 1]);
        if (rule && (!best || rule->rank < best->rank)) {
          best = rule;
          at = i;
        }
      }
      if (!best) break;
      symbols[at] = best->id;
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    ASSERT_EQ(out, symbols) << "round " << round;
  }
}

}  // namespace
}  // namespace luna::text
