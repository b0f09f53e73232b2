// What a layout will serve: memory, histories, few and many users, at costs made up here.
#include "core/model/layout_cost.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace luna::model {
namespace {

constexpr double kMs = 1e6;

/// 30 equal layers; a step of one row takes 2.5 ms on a device, 32 rows 20 ms.
LayoutProblem two_devices(double weight_share) {
  LayoutProblem problem;
  problem.model = {.n_layers = 30,
                   .n_kv_heads = 8,
                   .layer_bytes = 2'000'000,
                   .embedding_bytes = 20'000'000,
                   .head_bytes = 20'000'000,
                   .tied_head = true,
                   .output_bytes = 0,
                   .kv_token_bytes = 400,
                   .gather_row_bytes = 14'000,
                   .hidden_row_bytes = 2'304};
  LayoutDevice device;
  device.speed.layer = RowTimes({{1, 0.07 * kMs}, {32, 0.6 * kMs}, {256, 4.8 * kMs}});
  device.speed.head = RowTimes({{1, 0.4 * kMs}, {32, 2.0 * kMs}});
  device.speed.kv_token_ns = 20.0;
  device.speed.prompt_kv_token_ns = 10.0;
  device.memory_bytes = static_cast<std::uint64_t>(80'000'000 / weight_share);
  device.n_cores = 1;
  problem.devices = {device, device};
  problem.devices[1].first_core = 1;
  problem.link = {.latency_ns = 3'000.0, .bytes_per_ns = 4.0, .gather_ns = 0.0};
  problem.bounds.n_sequences_max = 128;
  problem.bounds.step_tokens_max = 512;
  problem.bounds.n_devices_at_once = 2.0;
  problem.bounds.n_cores = 2;
  problem.bounds.host_step_ns = 20'000.0;
  problem.bounds.host_row_ns = 2'000.0;
  return problem;
}

double rate(const LayoutProblem& problem, Layout layout) {
  return forecast_layout(problem, layout, kP95LimitFactor * time_alone_ns(problem))
      .best.requests_per_s;
}

TEST(LoadForecast, WhoDoesNotWaitSendsMoreThanThereAreUsers) {
  LayoutProblem problem = two_devices(0.4);
  problem.load = {.prompt = 64, .reused = 256, .output = 64, .users = 2};
  const double rate_per_s = 4.0 * 1e9 / time_alone_ns(problem);
  const LayoutForecast waiting = forecast_layout_at(problem, Layout::pipeline, rate_per_s);
  problem.load.users_wait = false;
  const LayoutForecast open = forecast_layout_at(problem, Layout::pipeline, rate_per_s);
  EXPECT_LT(waiting.best.batch_mean, 2.01);
  EXPECT_GT(open.best.batch_mean, 3.0);
  EXPECT_GT(open.best.requests_per_s, 1.2 * waiting.best.requests_per_s);
}

TEST(LoadForecast, ALightLoadTakesWhatARequestAloneTakes) {
  LayoutProblem problem = two_devices(0.4);
  problem.load = {.prompt = 64, .reused = 0, .output = 64, .users = 1'000};
  const double alone_ns = time_alone_ns(problem);
  const LayoutForecast made = forecast_layout_at(problem, Layout::replicas, 0.02 * 1e9 / alone_ns);
  EXPECT_NEAR(made.best.mean_ns / alone_ns, 1.0, 0.08);
  EXPECT_NEAR(made.best.requests_per_s / (0.02 * 1e9 / alone_ns), 1.0, 0.1);
}

TEST(LoadForecast, IsTheSameEveryTime) {
  LayoutProblem problem = two_devices(0.8);
  problem.load = {.prompt = 50, .reused = 1'000, .output = 50, .users = 60};
  const LayoutForecast a = forecast_layout_at(problem, Layout::pipeline, 5.0);
  const LayoutForecast b = forecast_layout_at(problem, Layout::pipeline, 5.0);
  EXPECT_EQ(a.best.p95_ns, b.best.p95_ns);
  EXPECT_EQ(a.best.requests_per_s, b.best.requests_per_s);
}

TEST(LoadForecast, TheHighestRateKeepsTheLimitAndALittleMoreBreaksIt) {
  LayoutProblem problem = two_devices(0.6);
  problem.load = {.prompt = 64, .reused = 0, .output = 256, .users = 10'000};
  const double limit_ns = 10.0 * time_alone_ns(problem);
  const LayoutForecast best = forecast_layout(problem, Layout::pipeline, limit_ns);
  EXPECT_LE(best.best.p95_ns, limit_ns);
  const LayoutForecast more =
      forecast_layout_at(problem, Layout::pipeline, 1.2 * best.best.requests_per_s);
  EXPECT_GT(more.best.p95_ns, limit_ns);
}

TEST(LayoutCost, RoomIsWhatWeightsLeaveInWholeBlocks) {
  LayoutProblem problem = two_devices(0.8);
  // A copy takes 80 MB of 100; half of the layers 50 MB with the embedding or the head.
  EXPECT_EQ(kv_tokens_of(problem, Layout::replicas), 20'000'000 / (32 * 12'000) * 32);
  EXPECT_EQ(kv_tokens_of(problem, Layout::pipeline), 50'000'000 / (32 * 6'000) * 32);
  problem.bounds.kv_tokens_max = 1'000;
  EXPECT_EQ(kv_tokens_of(problem, Layout::pipeline), 992U);
}

TEST(LayoutCost, CopiesPayForTheirOwnScratchAndForSlicesAndPartsForMessages) {
  LayoutProblem problem = two_devices(0.8);
  problem.devices[1].part_fixed_bytes = 12'000'000;
  EXPECT_EQ(kv_tokens_of(problem, Layout::replicas), 20'000'000 / (32 * 12'000) * 32);
  EXPECT_EQ(kv_tokens_of(problem, Layout::pipeline), 38'000'000 / (32 * 6'000) * 32);
  problem.devices[0].copy_fixed_bytes = 2'000'000;
  problem.devices[0].slice_bytes = 6'000'000;
  EXPECT_EQ(kv_tokens_of(problem, Layout::replicas), 12'000'000 / (32 * 12'000) * 32);
  problem.devices[0].layer_fixed_bytes = 100'000;
  EXPECT_EQ(kv_tokens_of(problem, Layout::replicas), 9'000'000 / (32 * 12'000) * 32);
  problem.devices[0].layer_fixed_bytes = 0;
  EXPECT_EQ(kv_tokens_of(problem, Layout::pipeline), 38'000'000 / (32 * 6'000) * 32);
}

TEST(LayoutCost, RequestsThatNoCopyHoldsAreLate) {
  LayoutProblem problem = two_devices(0.8);
  problem.load = {.prompt = 1'600, .reused = 0, .output = 64, .users = 1'000};
  const double limit_ns = kP95LimitFactor * time_alone_ns(problem);
  const LayoutForecast made = forecast_layout(problem, Layout::replicas, limit_ns);
  EXPECT_EQ(made.best.requests_per_s, 0.0);
  EXPECT_GT(made.best.refused_ratio, 0.3);
  const auto choice = choose_layout(problem);
  ASSERT_TRUE(choice);
  EXPECT_NE(choice->layout, Layout::replicas) << choice->reason;
  problem.load.request_tokens_max = 1'600;
  EXPECT_GT(rate(problem, Layout::replicas), 0.0) << "shortened, they fit";
}

TEST(LayoutCost, LongHistoriesInLittleRoomFavourThePipeline) {
  LayoutProblem problem = two_devices(0.8);
  problem.load = {.prompt = 50, .reused = 1'000, .output = 50, .users = 6};
  const double replicas = rate(problem, Layout::replicas);
  const double pipeline = rate(problem, Layout::pipeline);
  EXPECT_GT(pipeline, 1.5 * replicas) << replicas;
  const auto choice = choose_layout(problem);
  ASSERT_TRUE(choice);
  EXPECT_NE(choice->layout, Layout::replicas) << choice->reason;
  EXPECT_NE(choice->reason.find("% of histories found"), std::string::npos) << choice->reason;
}

TEST(LayoutCost, ShortPromptsThatShareNothingFavourReplicas) {
  LayoutProblem problem = two_devices(0.4);
  problem.load = {.prompt = 200, .reused = 0, .output = 64, .users = 1'000};
  const auto choice = choose_layout(problem);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->layout, Layout::replicas) << choice->reason;
}

TEST(LayoutCost, AFewUsersFavourTheTensorSplit) {
  LayoutProblem problem = two_devices(0.4);
  problem.load = {.prompt = 64, .reused = 0, .output = 128, .users = 1};
  const auto choice = choose_layout(problem);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->layout, Layout::tensor) << choice->reason;
}

TEST(LayoutCost, WhatDoesNotFitIsNotChosenAndSaysWhy) {
  LayoutProblem problem = two_devices(0.8);
  for (LayoutDevice& device : problem.devices)
    device.memory_bytes = 70'000'000;
  problem.model.n_kv_heads = 1;
  const auto choice = choose_layout(problem);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->layout, Layout::pipeline);
  EXPECT_NE(choice->forecasts[1].impossible.find("no room for KV"), std::string::npos);
  EXPECT_NE(choice->forecasts[2].impossible.find("2 devices share 1 KV heads"), std::string::npos);
  for (LayoutDevice& device : problem.devices)
    device.memory_bytes = 10'000'000;
  EXPECT_FALSE(choose_layout(problem));
}

TEST(LayoutCost, DevicesThatShareACoreGainNoTime) {
  LayoutProblem problem = two_devices(0.4);
  problem.load = {.prompt = 64, .reused = 0, .output = 64, .users = 1'000};
  const double apart = rate(problem, Layout::replicas);
  problem.bounds.n_devices_at_once = 1.0;
  problem.devices[1].first_core = 0;
  // Less than half: the limit is still that of a device with a core to itself.
  EXPECT_NEAR(rate(problem, Layout::replicas) / apart, 0.45, 0.1);
  EXPECT_LT(rate(problem, Layout::pipeline), 0.65 * apart);
}

}  // namespace
}  // namespace luna::model
