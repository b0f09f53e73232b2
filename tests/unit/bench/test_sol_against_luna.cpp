// Parts of bench/sol-against-luna: routing, sessions, budgets, the search for the highest rate.
#include "bench/sol-against-luna/budgets.hpp"
#include "bench/sol-against-luna/curve_plot.hpp"
#include "bench/sol-against-luna/journal.hpp"
#include "bench/sol-against-luna/limit_search.hpp"
#include "bench/sol-against-luna/loads.hpp"
#include "bench/sol-against-luna/results.hpp"
#include "bench/sol-against-luna/routed_target.hpp"
#include "bench/sol-against-luna/router.hpp"
#include "bench/sol-against-luna/run_figures.hpp"
#include "bench/sol-against-luna/time_box.hpp"

#include <boost/json/object.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <unistd.h>

namespace luna::sol_against_luna {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

TEST(Router, StickySessionsStayAndAreSpreadEvenly) {
  Router router(Routing::sticky);
  const std::vector<std::uint64_t> outstanding = {900, 0, 0};
  std::map<std::size_t, int> n_by_copy;
  for (std::uint32_t session = 0; session < 9; ++session) {
    const std::size_t copy = router.choose(session, outstanding);
    EXPECT_EQ(router.choose(session, outstanding), copy);
    ++n_by_copy[copy];
  }
  for (const auto& [copy, n] : n_by_copy)
    EXPECT_EQ(n, 3) << copy;
}

TEST(Router, RoundRobinTakesEachInTurn) {
  Router router(Routing::round_robin);
  const std::vector<std::uint64_t> outstanding = {0, 5, 5};
  for (std::size_t i = 0; i < 7; ++i)
    EXPECT_EQ(router.choose(1, outstanding), i % 3);
}

TEST(Router, LeastOutstandingTakesTheLeastLoadedAndRotatesTies) {
  Router router(Routing::least_outstanding);
  const std::vector<std::uint64_t> outstanding = {7, 3, 9};
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(router.choose(0, outstanding), 1U);
  const std::vector<std::uint64_t> equal = {4, 4};
  std::set<std::size_t> seen;
  for (int i = 0; i < 2; ++i)
    seen.insert(router.choose(0, equal));
  EXPECT_EQ(seen.size(), 2U);
}

model::ShardMemory a_copy() {
  model::ShardMemory copy;
  copy.weights = 80'000'000;
  copy.scratch = 5'000'000;
  copy.logits = 12'000'000;
  copy.candidates = 1'000;
  copy.kv_block = 384'000;
  copy.kv = 777;  // of the budget that it was measured with
  return copy;
}

TEST(Budgets, WeightsTakeTheirShareOfWhatTheFixedScratchLeaves) {
  const model::ShardMemory copy = a_copy();
  EXPECT_EQ(fixed_scratch_bytes(copy), 17'001'000U);
  for (const double share : {0.4, 0.8, 0.85, 1.0}) {
    const std::uint64_t budget = device_budget_bytes(copy, share);
    EXPECT_NEAR(
        static_cast<double>(copy.weights) / static_cast<double>(budget - fixed_scratch_bytes(copy)),
        share,
        1e-6);
  }
}

TEST(Budgets, SessionsAreTheGeometricMeanOfBothSidesRoom) {
  EXPECT_EQ(n_sessions(4'000, 16'000, 1'000), 8U);
  EXPECT_EQ(n_sessions(3'700, 9'600, 1'600), 4U);  // sqrt(2.3 * 6.0) = 3.7
  EXPECT_EQ(n_sessions(10, 10, 1'600), 1U);
}

TEST(Budgets, RequestsShrinkToWhatBothSidesHoldButNotTheirHistory) {
  EXPECT_EQ(sequence_tokens_max(2'048, 9'000, 8'192, 1'500), 2'048U);
  EXPECT_EQ(sequence_tokens_max(20'000, 90'000, 8'192, 1'500), 8'192U);
  EXPECT_EQ(sequence_tokens_max(1'024, 9'000, 8'192, 1'500), 1'502U);
}

TEST(LimitSearch, FindsTheHighestStepThatHolds) {
  for (int limit = -40; limit <= 60; limit += 7) {
    std::set<int> asked;
    const auto found = find_highest_step(12, -50, [&](int step) -> Result<bool> {
      EXPECT_TRUE(asked.insert(step).second) << "step " << step << " is measured twice";
      return step <= limit;
    });
    ASSERT_TRUE(found && *found) << limit;
    EXPECT_EQ(**found, limit);
    EXPECT_LE(asked.size(), 14U);
  }
}

TEST(LimitSearch, EndsWhereNothingHoldsAndPassesErrorsOn) {
  const auto none = find_highest_step(3, -20, [](int) -> Result<bool> { return false; });
  ASSERT_TRUE(none);
  EXPECT_FALSE(*none);
  const auto failed = find_highest_step(3, -20, [](int) -> Result<bool> {
    return Error{Code::timeout, "over"};
  });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Code::timeout);
}

TEST(LimitSearch, OfASyntheticServerComesWithinAStepOfItsLimit) {
  // M/M/1: 95 % of the sojourn times are below ln(20) / (service rate - arrival rate).
  const double service_per_s = 7, limit_s = 2;
  const auto found = find_highest_step(RateGrid::nearest(3), -99, [&](int step) -> Result<bool> {
    const double rate = RateGrid::rate_per_s(step);
    return rate < service_per_s && std::log(20.0) / (service_per_s - rate) <= limit_s;
  });
  ASSERT_TRUE(found && *found);
  const double exact = service_per_s - std::log(20.0) / limit_s;
  EXPECT_LE(RateGrid::rate_per_s(**found), exact);
  EXPECT_GT(RateGrid::rate_per_s(**found + 1), exact);
}

TEST(RateGrid, NearestStepOfItsOwnRates) {
  for (int step = -50; step <= 150; ++step)
    EXPECT_EQ(RateGrid::nearest(RateGrid::rate_per_s(step)), step);
}

TEST(Loads, SessionsAreChosenEvenlyAndKeepTheirHistory) {
  const Load* turns = find_load("turns");
  ASSERT_NE(turns, nullptr);
  constexpr std::uint32_t kSessions = 5;
  const PromptSeeds seeds{.history = 1, .draws = 2, .ids = 3};
  const auto prompts = make_prompts(*turns, kSessions, 1650, seeds);
  const auto others = make_prompts(*turns, kSessions, 1650, {.history = 1, .draws = 2, .ids = 4});
  ASSERT_TRUE(prompts && others);
  std::map<std::uint32_t, bench::TokenIds> histories;
  std::map<std::uint32_t, int> n_turns;
  for (std::size_t i = 0; i < 1000; ++i) {
    const auto ids = std::get<bench::TokenIds>(prompts->prompt(i).input);
    const auto other = std::get<bench::TokenIds>(others->prompt(i).input);
    ASSERT_EQ(ids.size(), other.size()) << "lengths are the draws', whatever the ids";
    EXPECT_NE(ids, other);
    EXPECT_GE(ids.size(), 1525U);
    EXPECT_LE(ids.size() + prompts->prompt(i).n_generated_max, 1650U);
    const std::uint32_t session = prompts->prefix_of(i);
    ASSERT_LT(session, kSessions);
    EXPECT_EQ(session, others->prefix_of(i));
    const bench::TokenIds history(ids.begin(), ids.begin() + 1500);
    EXPECT_EQ(histories.try_emplace(session, history).first->second, history);
    ++n_turns[session];
  }
  for (const auto& [session, n] : n_turns)
    EXPECT_NEAR(n, 200, 60) << session;
  EXPECT_NE(histories.at(0), histories.at(1));
}

TEST(Loads, LengthsSpreadByHalfRoundTheirMeans) {
  const Load* load = find_load("long");
  ASSERT_NE(load, nullptr);
  const auto prompts = make_prompts(*load, 1, 1U << 20U, {.history = 1, .draws = 2, .ids = 3});
  ASSERT_TRUE(prompts);
  double n_prompt = 0, n_generated = 0;
  constexpr int kRequests = 500;
  for (int i = 0; i < kRequests; ++i) {
    const bench::Prompt prompt = prompts->prompt(static_cast<std::size_t>(i));
    const auto n = std::get<bench::TokenIds>(prompt.input).size();
    EXPECT_TRUE(n >= 512 && n <= 1536) << n;
    EXPECT_TRUE(prompt.n_generated_max >= 256 && prompt.n_generated_max <= 768);
    n_prompt += static_cast<double>(n) / kRequests;
    n_generated += static_cast<double>(prompt.n_generated_max) / kRequests;
  }
  EXPECT_NEAR(n_prompt, 1024, 50);
  EXPECT_NEAR(n_generated, 512, 25);
}

TEST(Loads, WhatIsTooLongShrinksInBothParts) {
  const Load* load = find_load("long");
  const auto prompts = make_prompts(*load, 1, 900, {.history = 1, .draws = 2, .ids = 3});
  ASSERT_TRUE(prompts);
  for (std::size_t i = 0; i < 200; ++i) {
    const bench::Prompt prompt = prompts->prompt(i);
    const auto n = std::get<bench::TokenIds>(prompt.input).size();
    EXPECT_LE(n + prompt.n_generated_max, 900U);
    EXPECT_GE(prompt.n_generated_max, 100U);
  }
}

RunFigures a_run() {
  RunFigures run;
  run.rate_per_s = 2.5;
  for (int i = 1; i <= 100; ++i)
    run.e2e_ms.push_back(10.0 * i);
  run.seconds = 40;
  run.window_s = 38;
  run.busy_s = {30, 20};
  run.n_steps = 50;
  run.n_step_seqs = 200;
  run.n_prompt_tokens = 1000;
  run.n_cached_tokens = 600;
  run.n_output_tokens = 800;
  return run;
}

TEST(Loads, MeanRequestsShrinkAsTheOthersDo) {
  const PromptSeeds seeds{.history = 1, .draws = 1, .ids = 1};
  const auto sizes = [&](std::uint32_t n_max) {
    const auto prompts = make_mean_prompts(*find_load("long"), n_max, seeds);
    EXPECT_TRUE(prompts);
    const bench::Prompt prompt = prompts->prompt(0);
    return std::pair(std::get<bench::TokenIds>(prompt.input).size(),
                     std::size_t{prompt.n_generated_max});
  };
  EXPECT_EQ(sizes(4096), std::pair(std::size_t{1024}, std::size_t{512}));
  const auto [n_prompt, n_generated] = sizes(1440);
  EXPECT_EQ(n_prompt + n_generated, 1440U);
  EXPECT_EQ(n_prompt, 960U);
}

TEST(RunFigures, P95CountsFailedRequestsAsNeverEnded) {
  RunFigures run = a_run();
  EXPECT_EQ(run.p95_ms(), 950);
  EXPECT_TRUE(run.is_within(950));
  EXPECT_FALSE(run.is_within(949));
  run.n_failed = 5;
  EXPECT_EQ(run.p95_ms(), 1000);
  run.n_failed = 50;
  EXPECT_TRUE(std::isinf(run.p95_ms()));
}

TEST(RunFigures, GivenUpRunTellsOfItsLimitAndLowerOnesOnly) {
  RunFigures run = a_run();
  run.is_given_up = true;
  run.limit_ms = 500;
  EXPECT_FALSE(run.is_within(5000));
  EXPECT_TRUE(run.tells(500));
  EXPECT_FALSE(run.tells(501));
}

TEST(RunFigures, SlicesAddUp) {
  RunFigures sum;
  sum.add(a_run());
  sum.add(a_run());
  EXPECT_EQ(sum.p95_ms(), 950);
  EXPECT_EQ(sum.hit_ratio(), 0.6);
  EXPECT_EQ(sum.output_tokens_per_s(), 20);
  EXPECT_EQ(sum.seqs_per_step(), 4);
  EXPECT_NEAR(sum.busy_ratio(2), 50.0 / 76, 1e-9);
}

TEST(Journal, GivesBackWhatWasKeptAndRefusesOtherFiles) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("luna-journal-" + std::to_string(getpid()) + ".json");
  {
    auto journal = Journal::open(path);
    ASSERT_TRUE(journal) << journal.error().message();
    EXPECT_EQ(journal->find_run("a"), nullptr);
    ASSERT_TRUE(journal->add_run("a", a_run()));
    ASSERT_TRUE(journal->add_number("alone", 12.5));
  }
  const auto again = Journal::open(path);
  ASSERT_TRUE(again) << again.error().message();
  ASSERT_NE(again->find_run("a"), nullptr);
  EXPECT_EQ(again->find_run("a")->e2e_ms, a_run().e2e_ms);
  EXPECT_EQ(again->find_run("a")->busy_s, a_run().busy_s);
  EXPECT_EQ(again->find_run("a")->n_cached_tokens, 600U);
  EXPECT_EQ(again->find_number("alone"), 12.5);
  for (const char* text : {"",
                           "{",
                           "[]",
                           "{\"runs\": {}}",
                           "{\"runs\": {\"a\": {}}, \"numbers\": {}}",
                           "{\"runs\": {}, \"numbers\": {\"a\": \"b\"}}"}) {
    std::ofstream(path) << text;
    const auto refused = Journal::open(path);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code(), Code::corrupt) << text;
  }
  std::filesystem::remove(path);
}

TEST(LateWatch, CountsWhatEndedLateAndWhatIsLateAlready) {
  LateWatch watch(milliseconds(100), 1);
  for (std::size_t i = 0; i < 3; ++i)
    watch.began(i, milliseconds(10 * i));
  EXPECT_FALSE(watch.is_lost(milliseconds(90)));
  watch.ended(0, milliseconds(105), false);  // in time is 100
  EXPECT_FALSE(watch.is_lost(milliseconds(106)));
  EXPECT_TRUE(watch.is_lost(milliseconds(111))) << "the second runs and is late";
  watch.ended(1, milliseconds(109), false);
  EXPECT_FALSE(watch.is_lost(milliseconds(111)));
  watch.ended(2, milliseconds(50), true);
  EXPECT_TRUE(watch.is_lost(milliseconds(50))) << "refused is late";
}

TEST(TimeBox, LetsTheFirstThrough) {
  TimeBox over(std::chrono::seconds(0));
  EXPECT_TRUE(over.begin(1000));
  const auto second = over.begin(1000);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Code::timeout);
  TimeBox endless(std::nullopt);
  EXPECT_TRUE(endless.begin(1e6) && endless.begin(1e6));
}

TEST(Results, RowHasTheRatioAndBothSides) {
  PointResult point;
  point.load = "turns";
  point.n_devices = 2;
  point.limit_factor = 10;
  point.alone_ms = 300;
  point.n_parallel = point.n_cores = 2;
  point.sol = SideResult{.rate_per_s = 2, .routing = Routing::sticky, .rounds = {a_run()}};
  EXPECT_FALSE(point.ratio());
  point.luna =
      SideResult{.rate_per_s = 7, .routing = Routing::sticky, .rounds = {a_run(), a_run()}};
  const auto row = to_json(point);
  EXPECT_EQ(row.at("ratio").to_number<double>(), 3.5);
  EXPECT_EQ(row.at("p95_limit_ms").to_number<double>(), 3000);
  EXPECT_EQ(row.at("sol").at("hit_ratio").to_number<double>(), 0.6);
  EXPECT_THAT(to_text(point), HasSubstr("3.5 x"));
}

TEST(Results, ARowTellsWhatThePredictionThoughtOfHitsAndSteps) {
  PointResult point;
  point.load = "turns";
  EXPECT_TRUE(to_json(point).at("predicted_ratio").is_null());
  point.predicted.sol = {.rps = 1, .hit_ratio = 0.6, .step_seqs = 1.2, .recomputed_tokens = 7};
  point.predicted.luna = {.rps = 8, .hit_ratio = 0.95, .step_seqs = 3, .recomputed_tokens = 0};
  point.predicted.choice = model::Layout::pipeline;
  const auto row = to_json(point);
  EXPECT_EQ(row.at("predicted_ratio").to_number<double>(), 8);
  EXPECT_EQ(row.at("predicted_sol").at("hit_ratio").to_number<double>(), 0.6);
  EXPECT_EQ(row.at("predicted_sol").at("recomputed_tokens_a_request").to_number<double>(), 7);
  EXPECT_EQ(row.at("predicted_luna").at("sequences_a_step").to_number<double>(), 3);
  EXPECT_THAT(to_text(point), HasSubstr("predicted 8 x, auto takes pipeline"));
  EXPECT_THAT(to_text(point), HasSubstr("model says: Sol    1/s, hits 60 %"));
}

TEST(Results, AutoIsHeldAgainstTheBetterOfSolAndPipeline) {
  PointResult point;
  point.alone_ms = 300;
  point.limit_factor = 10;
  point.n_parallel = point.n_cores = 2;
  const auto at = [](double rate_per_s) {
    return SideResult{.rate_per_s = rate_per_s, .routing = Routing::sticky, .rounds = {a_run()}};
  };
  point.sol = at(4);
  point.luna = at(5);
  point.predicted.choice = model::Layout::tensor;
  EXPECT_FALSE(point.auto_ratio());  // its rate is not known
  EXPECT_FALSE(point.tensor_ratio());
  point.tensor = at(6);
  EXPECT_DOUBLE_EQ(*point.auto_ratio(), 1.2);
  EXPECT_DOUBLE_EQ(*point.tensor_ratio(), 1.5);
  const auto row = to_json(point);
  EXPECT_EQ(row.at("tensor_rps").to_number<double>(), 6);
  EXPECT_TRUE(row.at("tensor").is_object());
  EXPECT_THAT(to_text(point), HasSubstr("as a tensor split 1.5 x, auto takes tensor (1.2 of"));
  point.predicted.choice = model::Layout::replicas;
  EXPECT_DOUBLE_EQ(*point.auto_ratio(), 0.8);
}

TEST(CurvePlot, DrawsEveryPointAndEscapesNames) {
  Picture picture;
  picture.title = "a < b & c";
  picture.curves = {{"Sol", {{1, 100}, {2, 400}}}, {"Luna", {{1, 50}, {4, 300}}}};
  picture.levels = {{200, "10 x"}};
  const std::string svg = draw(picture);
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; c"));
  std::size_t n_dots = 0;
  for (std::size_t at = svg.find("<circle"); at != std::string::npos;
       at = svg.find("<circle", at + 1))
    ++n_dots;
  EXPECT_EQ(n_dots, 4U);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace luna::sol_against_luna
