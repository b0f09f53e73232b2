#include "core/text/stop_matcher.hpp"

#include "support/test_seed.hpp"

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

namespace luna::text {
namespace {

using Strings = std::vector<std::string>;

struct Outcome {
  std::string text;
  bool stopped = false;
  std::size_t n_tokens = 0;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  return out << '"' << o.text << "\" stopped " << o.stopped << " after " << o.n_tokens;
}

Outcome run(const Strings& pieces, const Strings& stops) {
  StopMatcher matcher(stops, 16);
  Outcome outcome;
  for (const std::string& piece : pieces) {
    const StopMatcher::Answer answer = matcher.push(piece);
    outcome.text += answer.text;
    outcome.stopped = answer.stopped;
    if (answer.stopped) break;
  }
  if (!outcome.stopped) {
    const StopMatcher::Answer rest = matcher.flush();
    outcome.text += rest.text;
    outcome.stopped = rest.stopped;
  }
  outcome.n_tokens = matcher.n_tokens();
  return outcome;
}

/// The definition, on the whole text: cut at the earliest match, count the token that completes it.
Outcome naive(const Strings& pieces, const Strings& stops) {
  std::string text;
  for (const std::string& piece : pieces)
    text += piece;
  std::size_t begin = std::string::npos;
  std::size_t end = 0;
  for (const std::string& stop : stops) {
    const std::size_t at = stop.empty() ? std::string::npos : text.find(stop);
    if (at == std::string::npos) continue;
    if (at < begin || (at == begin && at + stop.size() < end)) {
      begin = at;
      end = at + stop.size();
    }
  }
  if (begin == std::string::npos) return {text, false, pieces.size()};
  std::size_t n_tokens = 0;
  for (std::size_t seen = 0; seen < end; ++n_tokens)
    seen += pieces[n_tokens].size();
  return {text.substr(0, begin), true, n_tokens};
}

TEST(StopMatcher, SendsEachPieceAsTheCaseTableSays) {
  std::ifstream file(std::string(LUNA_SOURCE_DIR) + "/tests/golden/cases/cases.jsonl");
  boost::json::object table;
  for (std::string line; std::getline(file, line);) {
    if (line.find("\"UNIT-STOP-1\"") != std::string::npos)
      table = boost::json::parse(line).as_object();
  }
  ASSERT_FALSE(table.empty());
  const auto& runs = table.at("input").at("runs").as_array();
  const auto& results = table.at("expected").at("results").as_array();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto pieces = boost::json::value_to<Strings>(runs[i].at("pieces"));
    const auto stops = boost::json::value_to<Strings>(runs[i].at("stops"));
    const auto sent = boost::json::value_to<Strings>(results[i].at("sent"));
    StopMatcher matcher(stops, 16);
    bool stopped = false;
    for (std::size_t p = 0; p < sent.size(); ++p) {
      const StopMatcher::Answer answer = matcher.push(pieces[p]);
      EXPECT_EQ(answer.text, sent[p]) << "run " << i << " piece " << p;
      stopped = answer.stopped;
    }
    EXPECT_EQ(stopped, results[i].at("stopped").as_bool()) << "run " << i;
    if (!stopped) {
      EXPECT_EQ(matcher.flush().text, boost::json::value_to<std::string>(results[i].at("flush")));
    }
  }
}

TEST(StopMatcher, PassesEverythingThroughWithoutStops) {
  EXPECT_EQ(run({"a", "", "bc"}, {}), (Outcome{"abc", false, 3}));
  EXPECT_EQ(run({"a", "bc"}, {""}), (Outcome{"abc", false, 2}));
}

TEST(StopMatcher, WaitsForAMatchThatBeganEarlier) {
  EXPECT_EQ(run({"ab", "c", "d"}, {"bc", "abcd"}), (Outcome{"", true, 3}));
}

TEST(StopMatcher, DoesNotCountTokensPushedWhileItWaits) {
  EXPECT_EQ(run({"ab", "c", "x"}, {"bc", "abcd"}), (Outcome{"a", true, 2}));
  EXPECT_EQ(run({"ab", "c"}, {"bc", "abcd"}), (Outcome{"a", true, 2}));  // settled by flush
}

TEST(StopMatcher, EqualsTheNaiveSearchUnderAnySplit) {
  std::mt19937 random(test::test_seed());
  const auto word = [&random](unsigned n_max) {
    std::string text;
    for (unsigned n = random() % (n_max + 1); n > 0; --n)
      text += "ab"[random() % 2];
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    Strings stops;
    for (unsigned n = random() % 4; n > 0; --n)
      stops.push_back(word(6));
    Strings pieces;
    for (unsigned n = random() % 10; n > 0; --n)
      pieces.push_back(word(4));
    ASSERT_EQ(run(pieces, stops), naive(pieces, stops)) << "round " << round;
  }
}

TEST(StopMatcher, HoldsOnlyTheLongestEndThatMayBecomeAStop) {
  std::mt19937 random(test::test_seed());
  for (int round = 0; round < 5000; ++round) {
    std::string stop;
    for (unsigned n = 1 + random() % 6; n > 0; --n)
      stop += "ab"[random() % 2];
    StopMatcher matcher(std::span(&stop, 1), 16);
    std::string all;
    std::string sent;
    for (int piece = 0; piece < 12; ++piece) {
      const std::string text(1, "ab"[random() % 2]);
      all += text;
      const StopMatcher::Answer answer = matcher.push(text);
      sent += answer.text;
      if (answer.stopped) break;
      std::size_t held = std::min(stop.size() - 1, all.size());
      while (!all.ends_with(std::string_view(stop).substr(0, held)))
        --held;
      ASSERT_EQ(all.size() - sent.size(), held) << stop << " in " << all;
    }
  }
}

}  // namespace
}  // namespace luna::text
