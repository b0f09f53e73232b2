#include "support/role_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace luna::test {
namespace {

using Items = std::vector<OwnedItem>;
using ::testing::HasSubstr;

const char* const kFile = "role_postprocess";

/// What a stream of pieces becomes: the text, the finish reason, and an error if there was one.
struct Outcome {
  std::string text;
  std::string reason;
  std::string error;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

void PrintTo(const Outcome& outcome, std::ostream* os) {
  *os << "'" << outcome.text << "' reason '" << outcome.reason << "' error '" << outcome.error
      << "'";
}

void collect(const Items& items, Outcome& outcome) {
  for (const OwnedItem& item : items) {
    EXPECT_TRUE(outcome.reason.empty() && outcome.error.empty()) << "an item after the end";
    if (item.kind == ItemKind::text) outcome.text += item.text;
    if (item.kind == ItemKind::end) outcome.reason = item.text;
    if (item.kind == ItemKind::error) outcome.error = item.text;
  }
}

Outcome run(RoleUnderTest& role, const std::vector<std::string>& pieces) {
  Outcome outcome;
  collect(role.run({{1, ItemKind::request, "{}"}}), outcome);
  for (const std::string& piece : pieces)
    collect(role.run({{1, ItemKind::text, piece}}), outcome);
  collect(role.run({{1, ItemKind::end, "stop"}}), outcome);
  role.drop(1);
  return outcome;
}

Outcome run(const SettingValues& settings, const std::string& text) {
  RoleUnderTest role(kFile, settings);
  return run(role, {text});
}

const SettingValues kBare = {{"close_fences", false}};

SettingValues with(std::initializer_list<SettingValues::value_type> values) {
  SettingValues settings = kBare;
  for (const auto& [key, value] : values)
    settings[key] = value;
  return settings;
}

TEST(RolePostprocess, WithoutRulesTextPassesUnchanged) {
  EXPECT_EQ(run(kBare, "  a\n```\n"), (Outcome{"  a\n```\n", "stop", ""}));
  EXPECT_EQ(run(kBare, ""), (Outcome{"", "stop", ""}));
  const std::string huge(16U << 20U, ' ');
  EXPECT_EQ(run(kBare, huge).text, huge);
}

TEST(RolePostprocess, TrimDropsOuterWhitespaceOnly) {
  const SettingValues trim = with({{"trim", true}});
  EXPECT_EQ(run(trim, " \n a  b\t\n").text, "a  b");
  EXPECT_EQ(run(trim, " \n\t").text, "");
  EXPECT_EQ(run(trim, "").text, "");
}

TEST(RolePostprocess, TrimHoldsBackNothingButWhitespace) {
  RoleUnderTest role(kFile, with({{"trim", true}}));
  role.run({{1, ItemKind::request, "{}"}});
  EXPECT_EQ(role.run({{1, ItemKind::text, "  a b "}}), (Items{{1, ItemKind::text, "a b"}}));
  EXPECT_EQ(role.run({{1, ItemKind::text, "c"}}), (Items{{1, ItemKind::text, " c"}}));
}

TEST(RolePostprocess, MaxCharsCutsWholeCharactersAndEndsAtOnce) {
  const SettingValues cut = with({{"max_chars", std::int64_t{3}}});
  EXPECT_EQ(run(cut, "a\u00e9\U0001F600b"), (Outcome{"a\u00e9\U0001F600", "length", ""}));
  EXPECT_EQ(run(cut, "abc"), (Outcome{"abc", "stop", ""}));
  EXPECT_EQ(run(with({{"max_chars", std::int64_t{3}}, {"trim", true}}), " ab cd"),
            (Outcome{"ab", "length", ""}));
  RoleUnderTest role(kFile, cut);
  role.run({{1, ItemKind::request, "{}"}});
  EXPECT_EQ(role.run({{1, ItemKind::text, "abcd"}}),
            (Items{{1, ItemKind::text, "abc"}, {1, ItemKind::end, "length"}}));
  EXPECT_TRUE(role.run({{1, ItemKind::text, "more"}, {1, ItemKind::end, "stop"}}).empty());
}

TEST(RolePostprocess, OpenCodeFenceIsClosed) {
  struct Row {
    const char* text;
    const char* want;
  };
  const Row rows[] = {
      {"```py\nx = 1", "```py\nx = 1\n```"},
      {"```py\nx = 1\n", "```py\nx = 1\n```"},
      {"```py\nx = 1\n```", "```py\nx = 1\n```"},
      {"```py\nx = 1\n```\n", "```py\nx = 1\n```\n"},
      {"```", "```\n```"},
      {"a ``` b", "a ``` b"},
      {"```a```", "```a```"},                  // inline code
      {"~~~ a ```\nx", "~~~ a ```\nx\n~~~"},   // a tilde fence may name backticks
      {"````\n```\nx", "````\n```\nx\n````"},  // a shorter fence closes nothing
      {"```\n~~~\n", "```\n~~~\n```"},
      {"   ```\nx", "   ```\nx\n```"},
      {"    ```\nx", "    ```\nx"},  // indented code
      {"```\nx\n``` y", "```\nx\n``` y\n```"},
      {"```\r\nx\r\n```\r\n", "```\r\nx\r\n```\r\n"},
      {"``", "``"},
  };
  for (const Row& row : rows)
    EXPECT_EQ(run({}, row.text).text, row.want) << row.text;
}

TEST(RolePostprocess, JsonRepairClosesWhatIsOpenAndNothingElse) {
  struct Row {
    const char* text;
    const char* want;
  };
  const Row rows[] = {
      {R"({"a": [1, 2)", R"({"a": [1, 2]})"},
      {R"({"a": "b)", R"({"a": "b"})"},
      {R"([1, 2,)", R"([1, 2])"},
      {R"([1, 2, )", R"([1, 2 ])"},
      {R"([1, 2,] x)", R"([1, 2] x)"},
      {R"({"a": 1,})", R"({"a": 1})"},
      {R"({"a": "x\)", R"({"a": "x"})"},
      {R"({"a": "x\u00e)", R"({"a": "x"})"},
      {R"({"a": "x\\)", R"({"a": "x\\"})"},
      {R"({"a": "x\"y)", R"({"a": "x\"y"})"},
      {R"({"a": ",]}", "b": [)", R"({"a": ",]}", "b": []})"},
      {R"({"a")", R"({"a"})"},
      {R"({"a": tru)", R"({"a": tru})"},
      {R"([1}, [2)", R"([1}, [2)"},
      {R"({} and [1)", R"({} and [1)"},
      {R"(  [1)", R"(  [1])"},
      {R"(see [1, )", R"(see [1, )"},
      {R"("abc)", R"("abc)"},
      {"", ""},
      {"[", "[]"},
  };
  for (const Row& row : rows)
    EXPECT_EQ(run(with({{"json_repair", true}}), row.text).text, row.want) << row.text;
  EXPECT_EQ(run({}, "[1").text, "[1");  // off unless asked for
}

TEST(RolePostprocess, DeeplyNestedJsonIsClosedWithoutRecursion) {
  const std::string open(1'000'000, '[');
  EXPECT_EQ(run(with({{"json_repair", true}}), open).text, open + std::string(1'000'000, ']'));
}

TEST(RolePostprocess, PatternRulesJudgeTheWholeTextBeforeAnyOfItLeaves) {
  const SettingValues must = with({{"must_match", std::string("[0-9]+")}});
  EXPECT_EQ(run(must, "123"), (Outcome{"123", "stop", ""}));
  EXPECT_THAT(run(must, "123a").error, HasSubstr("does not have the form"));
  EXPECT_EQ(run(must, "123a").text, "");
  const SettingValues must_not = with({{"must_not_match", std::string("(?i)secret")},
                                       {"on_mismatch", std::string("replace")},
                                       {"replacement", std::string("[removed]")}});
  EXPECT_EQ(run(must_not, "a SECRET b"), (Outcome{"[removed]", "stop", ""}));
  EXPECT_EQ(run(must_not, "fine"), (Outcome{"fine", "stop", ""}));
  RoleUnderTest role(kFile, must_not);
  role.run({{1, ItemKind::request, "{}"}});
  EXPECT_TRUE(role.run({{1, ItemKind::text, "a sec"}, {1, ItemKind::text, "ret"}}).empty());
  EXPECT_EQ(role.run({{1, ItemKind::end, "stop"}}).at(0).text, "[removed]");
}

TEST(RolePostprocess, PatternThatBacktracksWithoutEndIsGivenUp) {
  const SettingValues hostile = with({{"must_match", std::string("(a*)*b")}});
  EXPECT_THAT(run(hostile, std::string(100'000, 'a')).error, HasSubstr("matching a pattern"));
  EXPECT_THAT(RoleUnderTest::refusal(kFile, with({{"must_match", std::string("(")}})),
              HasSubstr("must_match: pattern '(' at byte 1"));
}

TEST(RolePostprocess, ResultDoesNotDependOnWhereTheStreamIsCut) {
  const char* const seed_text = std::getenv("LUNA_TEST_SEED");
  const std::uint32_t seed = seed_text != nullptr ? std::strtoul(seed_text, nullptr, 10) : 1;
  std::mt19937 random(seed);
  const std::vector<SettingValues> settings = {
      {},
      {{"trim", true}, {"json_repair", true}},
      {{"trim", true}, {"max_chars", std::int64_t{7}}, {"json_repair", true}},
      {{"max_chars", std::int64_t{5}}},
      {{"must_not_match", std::string("aa")}, {"trim", true}},
  };
  const std::vector<std::string> alphabet = {" ",
                                             "\n",
                                             "a",
                                             "`",
                                             "```",
                                             "~~~",
                                             "[",
                                             "]",
                                             "{",
                                             "}",
                                             "\"",
                                             ",",
                                             "\\",
                                             "\\u",
                                             "0",
                                             "\u00e9",
                                             "\U0001F600"};
  for (const SettingValues& values : settings) {
    RoleUnderTest role(kFile, values);
    for (int turn = 0; turn < 1500; ++turn) {
      std::vector<std::string> pieces;
      std::string whole;
      const std::size_t n = random() % 16;
      for (std::size_t i = 0; i < n; ++i) {
        const std::string& symbol = alphabet[random() % alphabet.size()];
        whole += symbol;
        if (pieces.empty() || random() % 2 == 0) {
          pieces.push_back(symbol);
        } else {
          pieces.back() += symbol;
        }
        if (random() % 8 == 0) pieces.emplace_back();
      }
      ASSERT_EQ(run(role, pieces), run(role, {whole})) << "LUNA_TEST_SEED=" << seed;
    }
  }
}

TEST(RolePostprocess, DroppedRequestIsForgottenAtEveryPoint) {
  RoleUnderTest role(kFile, {{"trim", true}, {"json_repair", true}});
  const Items steps = {{1, ItemKind::request, "{}"},
                       {1, ItemKind::text, " [1, "},
                       {1, ItemKind::text, "\"\\u00"},
                       {1, ItemKind::end, "stop"}};
  for (std::size_t n = 0; n <= steps.size(); ++n) {
    for (std::size_t i = 0; i < n; ++i)
      role.run({steps[i]});
    role.drop(1);
    EXPECT_EQ(run(role, {"x "}), (Outcome{"x", "stop", ""}));
  }
}

TEST(RolePostprocess, ChoicesThatShareABatchDoNotMix) {
  RoleUnderTest role(kFile, {{"trim", true}});
  EXPECT_EQ(role.run({{1, ItemKind::request, "{}"},
                      {2, ItemKind::request, "{}"},
                      {1, ItemKind::text, "a "},
                      {2, ItemKind::text, " b"},
                      {1, ItemKind::end, "stop"},
                      {2, ItemKind::end, "length"}}),
            (Items{{1, ItemKind::text, "a"},
                   {2, ItemKind::text, "b"},
                   {1, ItemKind::end, "stop"},
                   {2, ItemKind::end, "length"}}));
}

}  // namespace
}  // namespace luna::test
