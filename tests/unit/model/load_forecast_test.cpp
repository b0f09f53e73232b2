// A load in virtual time against what queueing theory and arithmetic say of it.
#include "core/model/load_forecast.hpp"

#include "core/model/virtual_copy.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace luna::model {
namespace {

constexpr double kMs = 1e6;
constexpr double kNsPerS = 1e9;

/// Every step takes a millisecond, whatever is in it.
CopyForecast steps_of_a_millisecond(std::uint32_t n_devices = 1) {
  CopyForecast copy;
  StageCost stage;
  stage.speed.layer = RowTimes({{1, kMs}, {512, kMs}});
  stage.n_layers = 1.0;
  copy.cost.stages.assign(n_devices, stage);
  copy.kv_tokens = 1'000'000;
  copy.n_sequences_max = 64;
  copy.step_tokens_max = 512;
  return copy;
}

/// A small model's speed: a row takes 2.5 ms alone and 20 ms among 32.
CopyForecast usual_copy(std::uint64_t kv_tokens) {
  CopyForecast copy = steps_of_a_millisecond();
  StageCost& stage = copy.cost.stages.front();
  stage.n_layers = 30.0;
  stage.head_share = 1.0;
  stage.speed.layer = RowTimes({{1, 0.07 * kMs}, {32, 0.6 * kMs}, {256, 4.8 * kMs}});
  stage.speed.head = RowTimes({{1, 0.4 * kMs}, {32, 2.0 * kMs}});
  stage.speed.kv_token_ns = 20.0;
  stage.speed.prompt_kv_token_ns = 10.0;
  copy.kv_tokens = kv_tokens;
  return copy;
}

LoadForecast run(const CopyForecast& copy,
                 const ExpectedLoad& load,
                 double rate_per_s,
                 ForecastOptions options = {}) {
  return run_load({&copy, 1}, load, rate_per_s, options);
}

TEST(RowTimes, GoesThroughItsPointsAndOnBeyond) {
  const RowTimes times({{1, 10}, {3, 20}, {5, 50}});
  EXPECT_EQ(times.at(0), 0.0);
  EXPECT_EQ(times.at(0.5), 10.0);
  EXPECT_EQ(times.at(1), 10.0);
  EXPECT_EQ(times.at(2), 15.0);
  EXPECT_EQ(times.at(4), 35.0);
  EXPECT_EQ(times.at(7), 80.0);
}

// Pollaczek and Khinchine: the mean wait is rate * E[S^2] / (2 (1 - rate * E[S])).
TEST(LoadForecast, OneAfterTheOtherWaitsAsASingleServerQueueDoes) {
  CopyForecast copy = steps_of_a_millisecond();
  copy.n_sequences_max = 1;
  // 5 to 15 steps: the outer lengths half as often as those between.
  const ExpectedLoad load{
      .prompt = 1, .reused = 0, .output = 10, .users = 1'000, .users_wait = false};
  double square_ms2 = 0.05 * (25.0 + 225.0);
  for (int n = 6; n <= 14; ++n)
    square_ms2 += 0.1 * n * n;
  for (const double busy : {0.3, 0.6, 0.8}) {
    const double rate_per_ms = busy / 10.0;
    const double wait_ms = rate_per_ms * square_ms2 / (2.0 * (1.0 - busy));
    const LoadForecast made = run(copy, load, 1e3 * rate_per_ms, {.n_requests = 40'000});
    EXPECT_NEAR(made.mean_ns / kMs, 10.0 + wait_ms, 0.05 * (10.0 + wait_ms)) << busy;
    EXPECT_NEAR(made.busy_ratio, busy, 0.03);
    EXPECT_NEAR(made.requests_per_s, 1e3 * rate_per_ms, 0.03 * 1e3 * rate_per_ms);
  }
}

TEST(LoadForecast, WhatRunsTogetherDoesNotWait) {
  const ExpectedLoad load{
      .prompt = 1, .reused = 0, .output = 10, .users = 1'000, .users_wait = false};
  const LoadForecast made = run(steps_of_a_millisecond(), load, 500.0);
  // 500 a second for 10 ms each, one of them for the prompt; before, each waits for the half of a
  // step, as a rule.
  EXPECT_NEAR(made.batch_mean, 4.5, 0.3);
  EXPECT_NEAR(made.step_seqs_mean, 5.0, 0.3);
  EXPECT_NEAR(made.mean_ns / kMs, 10.5, 0.3);
}

TEST(LoadForecast, ARowOfDevicesServesNearlyAsManyTimesAsManyAsOne) {
  const ExpectedLoad load{
      .prompt = 1, .reused = 0, .output = 10, .users = 1'000, .users_wait = false};
  CopyForecast one = steps_of_a_millisecond();
  one.n_sequences_max = 1;
  CopyForecast three = steps_of_a_millisecond(3);
  three.n_sequences_max = 3;
  // A token takes three devices a millisecond each, and three sequences are on their way.
  const double one_per_s = highest_rate({&one, 1}, load, 100.0 * kMs, {}).requests_per_s;
  const double three_per_s = highest_rate({&three, 1}, load, 120.0 * kMs, {}).requests_per_s;
  EXPECT_NEAR(three_per_s / one_per_s, 1.0, 0.08) << "as long in the queue, three times in work";
  three.n_sequences_max = 512;
  const LoadForecast many = run(three, load, 2'000.0);
  // Lanes hold a third each, so that a row of 60 sequences takes what one takes.
  EXPECT_NEAR(many.batch_mean, 2'000.0 * 0.030, 10.0);
  EXPECT_NEAR(many.step_seqs_mean, many.batch_mean / 3.0, 3.0);
}

TEST(LoadForecast, StationsThatShareACoreTakeAsManyTimesAsLong) {
  const ExpectedLoad load{
      .prompt = 1, .reused = 0, .output = 10, .users = 1'000, .users_wait = false};
  std::vector<CopyForecast> two(2, steps_of_a_millisecond());
  for (CopyForecast& copy : two)
    copy.cost.stages.front().n_cores = 1;
  const LoadForecast shared = run_load(two, load, 2'000.0, {.n_cores = 2});
  two[1].cost.stages.front().first_core = 3;  // of two: the second
  const LoadForecast apart = run_load(two, load, 2'000.0, {.n_cores = 2});
  EXPECT_NEAR(shared.mean_ns / apart.mean_ns, 2.0, 0.05);
  const LoadForecast unbound = run_load(two, load, 2'000.0, {});
  EXPECT_EQ(apart.mean_ns, unbound.mean_ns);
}

TEST(LoadForecast, ACoreWhoseDevicesRestHelpsNoOther) {
  // Two sessions, whose histories are on the first and the second of four copies.
  const ExpectedLoad load{.prompt = 1, .reused = 32, .output = 10, .users = 2, .users_wait = false};
  const auto mean_ns = [&](std::uint32_t first_core_of_second) {
    std::vector<CopyForecast> four(4, steps_of_a_millisecond());
    for (std::uint32_t d = 0; d < 4; ++d) {
      four[d].cost.stages.front().n_cores = 1;
      four[d].cost.stages.front().first_core = d == 1 ? first_core_of_second : d;
    }
    return run_load(four, load, 2'000.0, {.n_cores = 2}).mean_ns;
  };
  EXPECT_NEAR(mean_ns(0) / mean_ns(1), 2.0, 0.05);
}

TEST(LoadForecast, AMeanRequestAloneShrinksAsTheOthersDo) {
  ExpectedLoad load{.prompt = 100, .reused = 0, .output = 100, .users_wait = false};
  const CopyForecast copy = steps_of_a_millisecond();
  const double whole_ns = time_alone_ns(copy, load);
  load.request_tokens_max = 100;
  EXPECT_NEAR(time_alone_ns(copy, load) / whole_ns, 0.5, 0.01);
}

TEST(LoadForecast, HistoriesAreFoundAsFarAsTheRoomReaches) {
  CopyForecast copy = usual_copy(16 * 32);
  ExpectedLoad load{.prompt = 1,
                    .reused = 320,
                    .output = 1,
                    .users = 2,
                    .users_wait = false,
                    .histories_differ = false};
  // A turn takes 11 blocks of 16: it leaves 5 of the 10 that the other session's history has.
  const double alone_ns = time_alone_ns(copy, load);
  const double rare_per_s = 0.01 * kNsPerS / alone_ns;
  EXPECT_NEAR(run(copy, load, rare_per_s).found_ratio, 0.75, 0.02);
  copy.kv_tokens = 21 * 32;
  EXPECT_NEAR(run(copy, load, rare_per_s).found_ratio, 1.0, 0.01);
  copy.kv_tokens = 11 * 32;
  EXPECT_NEAR(run(copy, load, rare_per_s).found_ratio, 0.5, 0.02);
  const LoadForecast made = run(copy, load, rare_per_s);
  EXPECT_NEAR(made.hit_ratio, made.found_ratio * 320.0 / 321.0, 1e-9);
  EXPECT_EQ(made.refused_ratio, 0.0);
  copy.kv_tokens = 10 * 32;
  EXPECT_EQ(run(copy, load, rare_per_s).refused_ratio, 1.0);
}

TEST(LoadForecast, SequencesThatGrowBeyondTheRoomAreComputedAgain) {
  const ExpectedLoad load{
      .prompt = 64, .reused = 0, .output = 256, .users = 1'000, .users_wait = false};
  const CopyForecast tight = usual_copy(896);
  const double rate_per_s = 1.8 * kNsPerS / time_alone_ns(tight, load);
  EXPECT_GT(run(tight, load, rate_per_s).recomputed_mean, 5.0);
  EXPECT_EQ(run(usual_copy(100'000), load, rate_per_s).recomputed_mean, 0.0);
}

TEST(LoadForecast, MoreRequestsTakeLongerAndMoreRoomServesMore) {
  const ExpectedLoad load{
      .prompt = 64, .reused = 0, .output = 128, .users = 1'000, .users_wait = false};
  const double alone_ns = time_alone_ns(usual_copy(1'024), load);
  double last_ns = 0.0;
  for (const double busy : {0.2, 0.5, 0.9, 1.3, 1.8}) {
    const double mean_ns = run(usual_copy(1'024), load, busy * kNsPerS / alone_ns).mean_ns;
    EXPECT_GT(mean_ns, last_ns) << busy;
    last_ns = mean_ns;
  }
  double last_per_s = 0.0;
  for (const std::uint64_t kv_tokens : {512U, 1'024U, 2'048U, 8'192U}) {
    const CopyForecast copy = usual_copy(kv_tokens);
    const double per_s = highest_rate({&copy, 1}, load, 10.0 * alone_ns, {}).requests_per_s;
    EXPECT_GT(per_s, 0.98 * last_per_s) << kv_tokens;
    last_per_s = per_s;
  }
}

TEST(LoadForecast, ATightLimitLeavesALowRateAndATighterOneNone) {
  CopyForecast copy = usual_copy(100'000);
  copy.n_sequences_max = 1;
  const ExpectedLoad load{
      .prompt = 64, .reused = 0, .output = 64, .users = 1'000, .users_wait = false};
  const double alone_ns = time_alone_ns(copy, load);
  // The longest take one and a half times as long as the mean.
  const LoadForecast made = highest_rate({&copy, 1}, load, 1.55 * alone_ns, {});
  EXPECT_GT(made.requests_per_s, 0.0);
  EXPECT_LT(made.requests_per_s, 0.2 * kNsPerS / alone_ns);
  EXPECT_EQ(highest_rate({&copy, 1}, load, 0.9 * alone_ns, {}).requests_per_s, 0.0);
}

/// Runs the copy's steps until all is done.
void drain(VirtualCopy& copy, std::size_t n_requests, std::uint32_t n_blocks) {
  std::vector<std::uint32_t> finished;
  std::vector<std::uint32_t> lanes;  // in flight
  for (int i = 0; finished.size() < n_requests; ++i) {
    ASSERT_LT(i, 1'000'000);
    if (const auto begun = copy.begin_step()) {
      lanes.push_back(begun->lane);
    } else {
      ASSERT_FALSE(lanes.empty()) << "nothing runs, and nothing can";
    }
    ASSERT_LE(copy.n_blocks_used() + copy.n_blocks_cached(), n_blocks);
    if (lanes.size() < copy.cost().n_lanes() && i % 3 != 0) continue;
    copy.end_step(lanes.front(), finished);
    lanes.erase(lanes.begin());
  }
}

TEST(VirtualCopy, EveryBlockComesBack) {
  for (const std::uint32_t n_devices : {1U, 2U, 4U}) {
    CopyForecast forecast = steps_of_a_millisecond(n_devices);
    forecast.kv_tokens = 24 * 32;
    std::vector<VirtualRequest> requests;
    for (std::uint32_t i = 0; i < 200; ++i) {
      VirtualRequest request;
      request.session = i % 7;
      request.n_history = i % 2 == 0 ? 0 : 40 * (1 + i % 7);
      request.n_prompt = 1 + (i * 37) % 90;
      request.n_output = 1 + (i * 53) % 200;
      requests.push_back(request);
    }
    VirtualCopy copy(forecast, requests);
    for (std::uint32_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(copy.has_room_ever(requests[i]));
      copy.add(i);
    }
    drain(copy, requests.size(), 24);
    EXPECT_EQ(copy.n_blocks_used(), 0U) << n_devices;
    EXPECT_EQ(copy.n_tokens_outstanding(), 0U);
    EXPECT_GT(copy.totals().n_recomputed, 0.0);
  }
}

TEST(BlockCache, GivesWhatWasUsedLongestAgoAwayFromItsEnd) {
  BlockCache cache;
  cache.put(1, 4);
  cache.put(2, 4);
  cache.shrink(6);
  EXPECT_EQ(cache.take(1), 2U);
  EXPECT_EQ(cache.take(1), 0U);
  cache.put(1, 2);
  cache.shrink(3);
  EXPECT_EQ(cache.take(2), 1U);
  EXPECT_EQ(cache.take(1), 2U);
  EXPECT_EQ(cache.n_blocks(), 0U);
}

}  // namespace
}  // namespace luna::model
