#include "core/text/detokenizer.hpp"

#include "core/text/utf8.hpp"
#include "support/test_seed.hpp"
#include "support/tiny_vocabulary.hpp"

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

namespace luna::text {
namespace {

/// The value table of a case of tests/golden/cases, by id.
boost::json::object golden_case(std::string_view id) {
  std::ifstream file(std::string(LUNA_SOURCE_DIR) + "/tests/golden/cases/cases.jsonl");
  for (std::string line; std::getline(file, line);) {
    boost::json::object found = boost::json::parse(line).as_object();
    if (found["id"].as_string() == boost::json::string_view(id.data(), id.size())) return found;
  }
  ADD_FAILURE() << "no case " << id;
  return {};
}

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

std::string text_of(const boost::json::value& value) {
  return boost::json::value_to<std::string>(value);
}

/// What one piece with all the bytes gives, flushed.
std::string whole(std::string_view bytes) {
  Utf8Stream stream(bytes.size());
  std::string text(stream.push(bytes));
  text += stream.flush();
  return text;
}

TEST(Utf8Stream, SendsEachPieceAsTheCaseTableSays) {
  const boost::json::object table = golden_case("UNIT-UTF8-1");
  const auto& runs = table.at("input").at("pieces_hex").as_array();
  const auto& expected = table.at("expected").at("emitted").as_array();
  ASSERT_EQ(runs.size(), expected.size());
  for (std::size_t run = 0; run < runs.size(); ++run) {
    Utf8Stream stream(64);
    const auto& pieces = expected[run].at("pieces").as_array();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_EQ(stream.push(from_hex(text_of(runs[run].as_array()[i]))), text_of(pieces[i]))
          << "run " << run << " piece " << i;
    }
    EXPECT_EQ(stream.flush(), text_of(expected[run].at("flush"))) << "run " << run;
  }
}

TEST(Utf8Stream, GivesTheSameTextForEverySplitInTwo) {
  const std::string bytes =
      "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\xA6\x99\xED\xA0\x80\xF4\x90\x80\xFFz\xE2\x82";
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    Utf8Stream stream(bytes.size());
    std::string text(stream.push(std::string_view(bytes).substr(0, cut)));
    text += stream.push(std::string_view(bytes).substr(cut));
    text += stream.flush();
    EXPECT_EQ(text, whole(bytes)) << "cut at " << cut;
  }
}

TEST(Utf8Stream, IsAlwaysValidAndEqualUnderAnySplit) {
  std::mt19937 random(test::test_seed());
  constexpr std::string_view kTroublesome =
      "\x41\x80\xBF\xC2\xE0\xE2\x82\xED\xA0\xEF\xF0\x90\xF4\x8F\xFF";
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (unsigned n = random() % 24; n > 0; --n)
      bytes += kTroublesome[random() % kTroublesome.size()];
    Utf8Stream stream(bytes.size());
    std::string text;
    for (std::size_t pos = 0; pos < bytes.size();) {
      const std::size_t n = random() % 4;
      const std::string_view sent = stream.push(std::string_view(bytes).substr(pos, n));
      ASSERT_TRUE(is_utf8(sent));
      ASSERT_LE(stream.n_held_bytes(), 3U);
      text += sent;
      pos += n;
    }
    text += stream.flush();
    ASSERT_EQ(text, whole(bytes)) << "round " << round;
  }
}

TEST(Utf8Stream, KeepsValidTextAsItIs) {
  const std::string text = "na\xC3\xAFve \xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9";
  EXPECT_EQ(whole(text), text);
}

TEST(Detokenizer, HidesControlTokensUnlessTheyAreAskedFor) {
  const Tokenizer tokenizer = *Tokenizer::create(test::tiny_vocabulary());
  Detokenizer hidden(tokenizer, Detokenizer::ControlText::hidden);
  EXPECT_EQ(hidden.push(256), "");
  EXPECT_EQ(hidden.push('x'), "x");
  Detokenizer shown(tokenizer, Detokenizer::ControlText::shown);
  EXPECT_EQ(shown.push(256), "<|im_start|>");
}

TEST(Detokenizer, ShowsUserDefinedTokens) {
  const Tokenizer tokenizer = *Tokenizer::create(test::tiny_vocabulary());
  Detokenizer hidden(tokenizer, Detokenizer::ControlText::hidden);
  EXPECT_EQ(hidden.push(258), "<think>");
}

TEST(Detokenizer, HoldsACharacterThatTokensShare) {
  const Tokenizer tokenizer = *Tokenizer::create(test::tiny_vocabulary());
  Detokenizer detokenizer(tokenizer, Detokenizer::ControlText::hidden);
  EXPECT_EQ(detokenizer.push(0xC3), "");
  EXPECT_EQ(detokenizer.push(0xA9), "\xC3\xA9");
  EXPECT_EQ(detokenizer.flush(), "");
}

}  // namespace
}  // namespace luna::text
