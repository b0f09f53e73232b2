// Several steps in flight: every device works, and nobody can tell from an answer.
#include "core/engine/step_lane.hpp"
#include "support/timed_pipeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace luna::test {
namespace {

using pipeline::FinishReason;
using std::chrono::milliseconds;

FakeModelOptions pipeline_of(std::uint32_t n_devices, std::uint32_t n_lanes) {
  FakeModelOptions options;
  options.n_shards = n_devices;
  options.n_lanes = n_lanes;
  options.n_kv_blocks = 256;
  options.n_seqs_max = 32;
  options.busy_ns_fixed = 1'000'000;
  options.busy_ns_per_row = 100'000;
  return options;
}

std::unique_ptr<SequenceRequest> endless(std::uint32_t n_prompt, std::uint32_t seed) {
  auto request = EngineRig::request(some_prompt(n_prompt, seed), 200);
  request->stop.ignore_eos = true;
  return request;
}

std::vector<TokenId> tokens_alone(const SequenceRequest& asked) {
  EngineRig rig;
  const Asked handle = rig.submit(std::make_unique<SequenceRequest>(asked));
  rig.run();
  return handle.tokens();
}

/// Every sequence has so many tokens.
bool have_tokens(const std::vector<Asked>& asked, std::size_t n) {
  return std::ranges::all_of(asked, [n](const Asked& one) { return one.tokens().size() >= n; });
}

/// Decodes n sequences and returns the least busy share of a device, and the time of a token.
struct Decoded {
  double busy_share = 1.0;
  double ms_per_token = 0.0;
};
Decoded decode(std::uint32_t n_devices, std::uint32_t n_lanes, std::uint32_t n_seqs) {
  TimedPipeline devices(pipeline_of(n_devices, n_lanes));
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < n_seqs; ++i)
    asked.push_back(devices.rig.submit(endless(10, i)));
  devices.run_until([&] { return have_tokens(asked, 20); });
  const Nanoseconds from = devices.now();
  const std::size_t n_from = asked[0].tokens().size();
  std::vector<Nanoseconds> busy;
  for (std::uint32_t d = 0; d < n_devices; ++d)
    busy.push_back(devices.busy(d));
  devices.run_until([&] { return have_tokens(asked, 150); });
  const double ns = static_cast<double>((devices.now() - from).count());
  Decoded decoded;
  for (std::uint32_t d = 0; d < n_devices; ++d) {
    const double busy_ns = static_cast<double>((devices.busy(d) - busy[d]).count());
    decoded.busy_share = std::min(decoded.busy_share, busy_ns / ns);
  }
  decoded.ms_per_token = ns * 1e-6 / static_cast<double>(asked[0].tokens().size() - n_from);
  devices.run();
  EXPECT_EQ(devices.rig.stats.n_plans_rejected.load(), 0U);
  return decoded;
}

TEST(MicroBatches, EveryDeviceOfAPipelineWorksAllTheTime) {
  for (const std::uint32_t n : {2U, 3U, 4U}) {
    SCOPED_TRACE(n);
    const Decoded one = decode(n, 1, 24);
    const Decoded several = decode(n, n, 24);
    EXPECT_NEAR(one.busy_share, 1.0 / n, 0.02);
    EXPECT_GT(several.busy_share, 0.97);
    // n devices take 1 ms and 0.1 ms a row each: all 24 rows at once, or an n-th of them n times.
    EXPECT_NEAR(one.ms_per_token, n * 3.4, 0.2);
    EXPECT_NEAR(several.ms_per_token, n * (1.0 + 2.4 / n), 0.2);
  }
}

TEST(MicroBatches, ALoneSequenceAndTwoDoNotWaitForCompany) {
  const double alone = decode(2, 1, 1).ms_per_token;
  EXPECT_NEAR(decode(2, 2, 1).ms_per_token, alone, 1e-6);
  EXPECT_NEAR(decode(2, 2, 2).ms_per_token, alone, 0.03);
  EXPECT_GT(decode(2, 1, 2).ms_per_token, alone);
}

TEST(MicroBatches, BecomeEqualWheneverSequencesCome) {
  TimedPipeline devices(pipeline_of(2, 2));
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 15; ++i) {
    asked.push_back(devices.rig.submit(endless(10 + i, i)));
    for (std::uint32_t n = 0; n < i % 4; ++n)
      devices.step();
  }
  devices.run_until([&] { return have_tokens(asked, 30); });
  const auto records = devices.rig.stats.steps.last(20);
  for (const telemetry::StepRecord& record : records) {
    EXPECT_GE(record.n_seqs, 7U);
    EXPECT_LE(record.n_seqs, 8U);
    EXPECT_EQ(record.n_in_flight, 2U);
    EXPECT_EQ(record.lane, (record.step - 1) % 2);
    ASSERT_EQ(record.n_devices, 2U);
    EXPECT_EQ(record.device_busy_ns[0], record.device_busy_ns[1]);
  }
  devices.run();
}

TEST(MicroBatches, PromptsThatComeTogetherAreSpreadOverTheStepsInFlight) {
  TimedPipeline devices(pipeline_of(2, 2));
  for (std::uint32_t i = 0; i < 4; ++i)
    devices.rig.submit(endless(20, i));
  devices.step();
  EXPECT_EQ(devices.rig.stats.n_steps_in_flight.load(), 2U);
  devices.run();
  const auto records = devices.rig.stats.steps.last(telemetry::StepTrace::kRecords);
  EXPECT_EQ(records[0].n_rows, 40U);
  EXPECT_EQ(records[1].n_rows, 40U);
}

TEST(MicroBatches, TokensAreThoseOfASequenceAlone) {
  for (const std::uint32_t n_lanes : {2U, 3U, 5U}) {
    SCOPED_TRACE(n_lanes);
    FakeModelOptions options = pipeline_of(3, n_lanes);
    options.n_kv_blocks = 40;
    TimedPipeline devices(options);
    std::vector<std::unique_ptr<SequenceRequest>> kept;
    std::vector<Asked> asked;
    for (std::uint32_t i = 0; i < 24; ++i) {
      auto request = EngineRig::request(some_prompt(1 + i * 9 % 100, i), 10 + i);
      request->sampling.temperature = i % 3 == 1 ? 0.8F : 0.0F;
      request->sampling.seed = i;
      kept.push_back(std::make_unique<SequenceRequest>(*request));
      asked.push_back(devices.rig.submit(std::move(request)));
      if (i % 4 == 3) devices.step();
    }
    devices.run();
    EXPECT_EQ(devices.rig.stats.n_plans_rejected.load(), 0U);
    std::uint32_t n_beside_max = 0;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      ASSERT_TRUE(asked[i].ended());
      EXPECT_EQ(asked[i].tokens(), tokens_alone(*kept[i])) << i;
      n_beside_max = std::max(n_beside_max, asked[i].end().trace.n_steps_beside_max);
    }
    EXPECT_EQ(n_beside_max, n_lanes - 1);
  }
}

/// A model for long prompts.
FakeModelOptions long_pipeline_of(std::uint32_t n_devices, std::uint32_t n_lanes) {
  FakeModelOptions options = pipeline_of(n_devices, n_lanes);
  options.n_rows_max = 512;
  options.n_positions_max = 2048;
  return options;
}

TEST(MicroBatches, ALonePromptKeepsEveryDeviceAtWork) {
  const auto ms_to_first_token = [](std::uint32_t n_devices, std::uint32_t n_lanes) {
    TimedPipeline devices(long_pipeline_of(n_devices, n_lanes));
    const Asked asked = devices.rig.submit(EngineRig::request(some_prompt(1024, 1), 1));
    devices.run();
    EXPECT_TRUE(asked.ended());
    return static_cast<double>(devices.now().count()) * 1e-6;
  };
  // At a time: two chunks of 512, each on one device after the other.
  EXPECT_NEAR(ms_to_first_token(2, 1), 4 * (1 + 51.2), 0.1);
  EXPECT_LT(ms_to_first_token(2, 2), 0.65 * ms_to_first_token(2, 1));
  EXPECT_LT(ms_to_first_token(4, 4), 0.4 * ms_to_first_token(4, 1));
}

TEST(MicroBatches, ACancelledPromptEndsWithTheStepsThatItIsIn) {
  TimedPipeline devices(long_pipeline_of(2, 2));
  const auto prompt = some_prompt(1800, 1);
  const Asked asked = devices.rig.submit(EngineRig::request(prompt, 5));
  for (int i = 0; i < 4; ++i)
    devices.step();
  while (devices.rig.engine->advance()) {}
  ASSERT_EQ(devices.rig.stats.n_steps_in_flight.load(), 2U);
  const std::uint64_t n_steps = devices.rig.stats.n_steps.load();
  devices.rig.engine->cancel(asked.id);
  devices.run();
  EXPECT_EQ(asked.end().reason, FinishReason::cancelled);
  EXPECT_LE(devices.rig.stats.n_steps.load(), n_steps + 1);  // one that was planned before it heard
  // What those steps computed is kept, and is right.
  const Asked again = devices.rig.submit(EngineRig::request(prompt, 5));
  devices.run();
  EXPECT_GT(again.end().n_cached, 0U);
  EXPECT_LT(again.end().n_cached, 1800U);
  TimedPipeline alone(long_pipeline_of(1, 1));
  const Asked expected = alone.rig.submit(EngineRig::request(prompt, 5));
  alone.run();
  EXPECT_EQ(again.tokens(), expected.tokens());
}

TEST(MicroBatches, APromptOfWhichAPartFailedEndsWithItsLastPart) {
  TimedPipeline devices(long_pipeline_of(1, 2));  // one device: what others run is not touched
  const Asked lost = devices.rig.submit(EngineRig::request(some_prompt(1800, 1), 5));
  while (devices.rig.engine->advance()) {}
  ASSERT_EQ(devices.rig.stats.n_steps_in_flight.load(), 2U);
  devices.rig.fake.devices[0].fail_next_step = true;
  devices.run();
  EXPECT_EQ(lost.end().code, Code::unavailable);
  EXPECT_FALSE(devices.rig.stats.is_lost.load());
  EXPECT_EQ(devices.rig.stats.n_kv_blocks_cached.load(), 0U) << "of a failed step nothing is kept";
  const Asked next = devices.rig.submit(EngineRig::request(some_prompt(10, 1), 5));
  devices.run();
  EXPECT_EQ(next.end().reason, FinishReason::length);
}

TEST(MicroBatches, PrunedPromptsGiveWhatTheyGiveAlone) {
  FakeModelOptions one = long_pipeline_of(1, 1);
  one.prune_keep_percent = 50;
  auto asked = EngineRig::request(some_prompt(700, 3), 40);
  asked->stop.ignore_eos = true;
  TimedPipeline alone(one);
  const Asked expected = alone.rig.submit(std::make_unique<SequenceRequest>(*asked));
  alone.run();
  FakeModelOptions several = long_pipeline_of(2, 3);
  several.prune_keep_percent = 50;
  TimedPipeline devices(several);
  std::vector<Asked> answers;
  for (int i = 0; i < 4; ++i)
    answers.push_back(devices.rig.submit(std::make_unique<SequenceRequest>(*asked)));
  devices.run();
  for (const Asked& answer : answers)
    EXPECT_EQ(answer.tokens(), expected.tokens());
}

TEST(MicroBatches, OnePlanAndOneSubmitADeviceEach) {
  for (const std::uint32_t n_tokens : {1U, 50U}) {
    TimedPipeline devices(pipeline_of(3, 3));
    for (std::uint32_t i = 0; i < 6; ++i)
      devices.rig.submit(EngineRig::request(some_prompt(n_tokens, i), n_tokens));
    devices.run();
    const auto& stats = devices.rig.stats;
    EXPECT_GT(stats.n_steps.load(), 0U);
    EXPECT_EQ(stats.n_plan_calls.load(), stats.n_steps.load());
    EXPECT_EQ(stats.n_submit_calls.load(), 3 * stats.n_steps.load());
    for (const FakeDevice& device : devices.rig.fake.devices)
      EXPECT_EQ(device.n_submits, stats.n_steps.load());
  }
}

TEST(MicroBatches, GapsStayWithinTheTargetBesideALongPrompt) {
  TimedPipeline devices(long_pipeline_of(2, 2), static_scheduler({.target_itl_ms = 20}));
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 16; ++i)
    asked.push_back(devices.rig.submit(endless(10 + i, i)));
  devices.run_until([&] { return have_tokens(asked, 20); });
  const Asked longer = devices.rig.submit(EngineRig::request(some_prompt(1800, 3), 1));
  std::vector<std::size_t> n_seen(asked.size());
  std::vector<Nanoseconds> last(asked.size(), devices.now());
  Nanoseconds gap_max{0};
  std::size_t n_gaps = 0;
  std::size_t n_over = 0;
  while (!longer.ended() && devices.step()) {
    for (std::size_t i = 0; i < asked.size(); ++i) {
      const std::size_t n = asked[i].tokens().size();
      if (std::exchange(n_seen[i], n) == n) continue;
      gap_max = std::max(gap_max, devices.now() - last[i]);
      if (devices.now() - last[i] > milliseconds(20)) ++n_over;
      last[i] = devices.now();
      ++n_gaps;
    }
  }
  // Where the prompt begins, steps that become longer stand before one that has just begun.
  EXPECT_LE(gap_max, milliseconds(25));
  EXPECT_LE(n_over, asked.size()) << "once a sequence";
  EXPECT_GT(gap_max, milliseconds(10)) << "the prompt gets what the target leaves";
  EXPECT_GT(n_gaps, 16U * 5U);
  devices.run();
}

TEST(MicroBatches, TheFittedCostIsThatOfARoundOfSuchSteps) {
  for (const std::uint32_t n_lanes : {1U, 2U}) {
    luna_device_row seen{};
    const auto inner = std::make_shared<plugin::Instance<luna_scheduler_if>>(static_scheduler());
    TimedPipeline devices(pipeline_of(2, n_lanes),
                          scheduler_of([&seen, inner](const luna_snapshot& s, luna_plan& plan) {
                            seen = s.devices[0];
                            luna_err err = make_err();
                            return inner->table().plan(inner->self(), &s, &plan, &err);
                          }));
    for (std::uint32_t i = 0; i < 20; ++i) {
      devices.rig.submit(EngineRig::request(some_prompt(1 + i * 3, i), 10 + 5 * i));
      devices.step();
    }
    devices.run();
    // One step at a time passes both devices; two pass each of them, one behind the other.
    EXPECT_NEAR(seen.step_ns_fixed, 2e6, 1e5);
    EXPECT_NEAR(seen.step_ns_per_row, 2e5, 1e4);
  }
}

/// Four sequences in two steps in flight on two devices, after two tokens each.
struct TwoInFlight {
  TwoInFlight() {
    for (std::uint32_t i = 0; i < 4; ++i)
      asked.push_back(devices.rig.submit(endless(10, i)));
    devices.run_until([this] {
      return have_tokens(asked, 2) && devices.rig.stats.n_steps_in_flight.load() == 2;
    });
    while (devices.rig.engine->advance()) {}
    EXPECT_EQ(devices.rig.stats.n_steps_in_flight.load(), 2U);
  }
  TimedPipeline devices{pipeline_of(2, 2)};
  std::vector<Asked> asked;
};

TEST(MicroBatches, ADeviceThatFailsEndsAllThatItsPeersToldIt) {
  TwoInFlight two;
  EngineRig& rig = two.devices.rig;
  rig.fake.devices[1].fail_next_step = true;
  two.devices.run();
  for (const Asked& lost : two.asked) {
    EXPECT_EQ(lost.end().reason, FinishReason::failed);
    EXPECT_EQ(lost.end().code, Code::unavailable);
  }
  EXPECT_TRUE(rig.stats.is_lost.load());
  const Asked next = rig.submit(endless(10, 9));
  two.devices.run();
  EXPECT_EQ(next.end().code, Code::unavailable) << "nobody can tell whose message comes next";
}

TEST(MicroBatches, ADeviceThatFailsEndsStepsThatSeemToHaveSucceeded) {
  TwoInFlight two;
  EngineRig& rig = two.devices.rig;
  FakeDevice& last = rig.fake.devices[1];
  last.fail_next_step = true;
  while (rig.fake.devices[0].complete()) {}
  while (last.complete()) {}  // the second step too, before the engine hears of the first
  two.devices.run();
  for (const Asked& lost : two.asked)
    EXPECT_EQ(lost.end().code, Code::unavailable);
}

TEST(MicroBatches, ARefusalByTheFirstDeviceEndsItsStepAlone) {
  TwoInFlight two;
  EngineRig& rig = two.devices.rig;
  rig.fake.devices[0].refuse_next_submit = true;
  two.devices.run();
  const auto n_lost = std::ranges::count_if(
      two.asked, [](const Asked& one) { return one.end().reason == FinishReason::failed; });
  EXPECT_EQ(n_lost, 2);
  EXPECT_FALSE(rig.stats.is_lost.load());
}

TEST(MicroBatches, ACancelledSequenceEndsWithItsStepAndNoOther) {
  TwoInFlight two;
  EngineRig& rig = two.devices.rig;
  rig.engine->cancel(two.asked[0].id);
  while (rig.engine->advance()) {}
  EXPECT_FALSE(two.asked[0].ended()) << "its step is in flight";
  two.devices.run();
  EXPECT_EQ(two.asked[0].end().reason, FinishReason::cancelled);
  EXPECT_LE(two.asked[0].tokens().size(), 4U);
  for (std::size_t i = 1; i < 4; ++i)
    EXPECT_EQ(two.asked[i].tokens(), tokens_alone(*endless(10, static_cast<std::uint32_t>(i))));
}

TEST(MicroBatches, ARequestThatWaitsIsCancelledWhileAStepIsInFlight) {
  FakeModelOptions options = pipeline_of(2, 2);
  options.n_seqs_max = 1;
  TimedPipeline devices(options);
  const Asked running = devices.rig.submit(endless(10, 1));
  const Asked waiting = devices.rig.submit(endless(10, 2));
  devices.step();
  EXPECT_EQ(devices.rig.stats.n_steps_in_flight.load(), 1U);
  devices.rig.engine->cancel(waiting.id);
  while (devices.rig.engine->advance()) {}
  EXPECT_EQ(waiting.end().reason, FinishReason::cancelled);
  EXPECT_FALSE(running.ended());
  EXPECT_EQ(devices.rig.stats.n_plans_rejected.load(), 0U) << "to wait for a step is legal";
  devices.run();
  EXPECT_EQ(running.tokens().size(), 200U);
}

TEST(MicroBatches, StopTakesEveryStepInFlight) {
  TwoInFlight two;
  EngineRig& rig = two.devices.rig;
  while (rig.fake.complete()) {}
  rig.engine->stop();
  for (const Asked& ended : two.asked)
    EXPECT_EQ(ended.end().reason, FinishReason::cancelled);
  rig.expect_empty();
}

TEST(MicroBatches, OnlyWhatIsComputedIsShared) {
  TimedPipeline devices(pipeline_of(2, 2));
  const auto prompt = some_prompt(60, 1);
  // One prompt in two steps at a time: the second cannot have what the first computes.
  const Asked first = devices.rig.submit(EngineRig::request(prompt, 40));
  const Asked beside = devices.rig.submit(EngineRig::request(prompt, 40));
  devices.step();
  ASSERT_EQ(devices.rig.stats.n_steps_in_flight.load(), 2U);
  devices.run();
  const Asked after = devices.rig.submit(EngineRig::request(prompt, 40));
  devices.run();
  EXPECT_EQ(first.end().n_cached, 0U);
  EXPECT_EQ(beside.end().n_cached, 0U);
  EXPECT_EQ(after.end().n_cached, 32U);
  EXPECT_EQ(beside.tokens(), first.tokens());
  EXPECT_EQ(after.tokens(), first.tokens());
}

TEST(MicroBatches, ARowShortOfBlocksWaitsForAStepRatherThanTakeASeniorsOwn) {
  FakeModelOptions options = pipeline_of(2, 2);
  options.n_kv_blocks = 12;
  TimedPipeline devices(options);
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 6; ++i) {
    auto request = EngineRig::request(some_prompt(20, i), 100);
    request->stop.ignore_eos = true;
    asked.push_back(devices.rig.submit(std::move(request)));
  }
  devices.run();
  EXPECT_GT(devices.rig.stats.n_preempted.load(), 0U);
  EXPECT_EQ(devices.rig.stats.n_plans_rejected.load(), 0U);
  EXPECT_EQ(asked[0].end().trace.n_preempted, 0U);
  for (std::uint32_t i = 0; i < 6; ++i) {
    auto request = EngineRig::request(some_prompt(20, i), 100);
    request->stop.ignore_eos = true;
    EXPECT_EQ(asked[i].tokens(), tokens_alone(*request)) << i;
  }
}

TEST(MicroBatches, ADraftModelAllowsOneStepInFlight) {
  FakeModel model(pipeline_of(2, 2));
  FakeModel draft;
  EngineOptions options;
  options.speculation = {.n_draft_max = 4, .draft_model = &draft.compiled};
  const text::Tokenizer tokenizer = tiny_tokenizer();
  const auto scheduler = static_scheduler();
  VirtualClock clock;
  telemetry::EngineStats stats;
  const auto engine = Engine::create(
      {{&model.compiled}, scheduler, tokenizer, clock, stats, [](void*) {}, nullptr}, options);
  ASSERT_FALSE(engine);
  EXPECT_THAT(engine.error().message(), ::testing::HasSubstr("2 steps in flight"));
}

}  // namespace
}  // namespace luna::test
