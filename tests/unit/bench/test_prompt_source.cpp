// Prompts: synthetic ones and those of a file.
#include "core/bench/prompt_source.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <unistd.h>

namespace luna::bench {
namespace {

using testing::HasSubstr;

TokenIds ids_of(const PromptSource& source, std::size_t i) {
  return std::get<TokenIds>(source.prompt(i).input);
}

TEST(SyntheticPrompts, AreDistinctOfTheWantedLengthAndTheSeeds) {
  SyntheticPrompts wanted;
  wanted.n_tokens = 50;
  wanted.seed = 1;
  const auto source = PromptSource::synthetic(wanted, 8);
  ASSERT_TRUE(source);
  std::set<TokenIds> seen;
  for (std::size_t i = 0; i < 200; ++i) {
    const TokenIds ids = ids_of(*source, i);
    EXPECT_EQ(ids.size(), 50U);
    for (const auto id : ids)
      EXPECT_TRUE(id >= wanted.token_id_min && id < wanted.token_id_max) << id;
    EXPECT_TRUE(seen.insert(ids).second) << "prompt " << i << " came before";
  }
  EXPECT_EQ(ids_of(*source, 3), ids_of(*source, 3));
  EXPECT_EQ(source->prompt(0).n_generated_max, 8U);
  wanted.seed = 2;
  EXPECT_NE(ids_of(*PromptSource::synthetic(wanted, 8), 3), ids_of(*source, 3));
}

TEST(SyntheticPrompts, SharePrefixAndNoMore) {
  SyntheticPrompts wanted;
  wanted.n_tokens = 40;
  wanted.n_shared_prefix_tokens = 30;
  const auto source = PromptSource::synthetic(wanted, 8);
  ASSERT_TRUE(source);
  const TokenIds a = ids_of(*source, 0), b = ids_of(*source, 1);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 30, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 30, a.end(), b.begin() + 30));
}

TEST(SyntheticPrompts, RefuseWhatCannotBe) {
  SyntheticPrompts none, prefix, range;
  none.n_tokens = 0;
  prefix.n_tokens = prefix.n_shared_prefix_tokens = 10;
  range.token_id_min = range.token_id_max;
  for (const auto& wanted : {none, prefix, range})
    EXPECT_FALSE(PromptSource::synthetic(wanted, 8));
}

class PromptFile : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  Result<PromptSource> read(const std::string& extension, const std::string& text) {
    path_ = std::filesystem::temp_directory_path() /
            ("luna-prompts-" + std::to_string(::getpid()) + extension);
    std::ofstream(path_) << text;
    return PromptSource::from_file(path_, 8);
  }

  std::filesystem::path path_;
};

TEST_F(PromptFile, OfTextIsAPromptALineUsedInTurn) {
  const auto source = read(".txt", "one\n\n\"two\"\n");
  ASSERT_TRUE(source);
  EXPECT_EQ(*source->n_distinct(), 2U);
  EXPECT_EQ(std::get<std::string>(source->prompt(1).input), "\"two\"");
  EXPECT_EQ(std::get<std::string>(source->prompt(2).input), "one");
}

TEST_F(PromptFile, OfJsonLinesHoldsTextsIdsAndMessages) {
  const auto source = read(".jsonl",
                           "\"a\"\n{\"prompt\":\"b\",\"max_tokens\":3}\n{\"prompt\":[4,5]}\n"
                           "{\"messages\":[{\"role\":\"user\",\"content\":\"c\"}]}\n");
  ASSERT_TRUE(source) << source.error().message();
  EXPECT_EQ(std::get<std::string>(source->prompt(0).input), "a");
  EXPECT_EQ(source->prompt(1).n_generated_max, 3U);
  EXPECT_EQ(std::get<TokenIds>(source->prompt(2).input), (TokenIds{4, 5}));
  EXPECT_EQ(std::get<boost::json::array>(source->prompt(3).input).size(), 1U);
}

TEST_F(PromptFile, ThatIsWrongNamesTheLine) {
  for (const char* line : {"{",
                           "7",
                           "{}",
                           "{\"prompt\":[]}",
                           "{\"prompt\":[\"a\"]}",
                           "{\"prompt\":\"a\",\"max_tokens\":0}",
                           "{\"prompt\":[-1]}"}) {
    const auto source = read(".jsonl", "\"fine\"\n" + std::string(line) + "\n");
    ASSERT_FALSE(source) << line;
    EXPECT_THAT(source.error().message(), HasSubstr(".jsonl:2: ")) << line;
  }
  EXPECT_FALSE(read(".txt", "\n"));
  EXPECT_EQ(PromptSource::from_file("/nowhere/prompts", 8).error().code(), Code::not_found);
}

}  // namespace
}  // namespace luna::bench
