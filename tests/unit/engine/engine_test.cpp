// The step loop: batching, chunks, pre-emption, choices, ends.
#include "core/engine/kv_pruning.hpp"
#include "support/engine_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luna::test {
namespace {

using engine::KvPruning;
using pipeline::FinishReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What a request gives when it has the whole engine for itself.
std::vector<TokenId> tokens_alone(const SequenceRequest& asked,
                                  const FakeModelOptions& options = {}) {
  EngineRig rig(options);
  auto copy = std::make_unique<SequenceRequest>(asked);
  const Asked handle = rig.submit(std::move(copy));
  rig.run();
  rig.expect_empty();
  return handle.tokens();
}

TEST(Engine, GreedyRequestRunsToItsLimit) {
  EngineRig rig;
  const Asked asked = rig.submit(EngineRig::request(some_prompt(10, 1), 5));
  rig.run();
  ASSERT_TRUE(asked.ended());
  EXPECT_EQ(asked.tokens().size(), 5U);
  EXPECT_EQ(asked.end().reason, FinishReason::length);
  EXPECT_GT(rig.n_notified, 0U);
  rig.expect_empty();
}

TEST(Engine, BatchEqualsAlone) {
  EngineRig rig({.n_kv_blocks = 256});
  std::vector<std::unique_ptr<SequenceRequest>> kept;
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 24; ++i) {
    auto request = EngineRig::request(some_prompt(1 + i * 9 % 100, i), 10 + i);
    if (i % 3 == 1) {
      request->sampling.temperature = 0.8F;
      request->sampling.seed = i;
    }
    kept.push_back(std::make_unique<SequenceRequest>(*request));
    asked.push_back(rig.submit(std::move(request)));
  }
  rig.run();
  for (std::size_t i = 0; i < kept.size(); ++i) {
    ASSERT_TRUE(asked[i].ended());
    EXPECT_EQ(asked[i].tokens(), tokens_alone(*kept[i])) << i;
  }
  rig.expect_empty();
}

TEST(Engine, ChunkedPromptEqualsWhole) {
  const auto request = EngineRig::request(some_prompt(200, 3), 20);
  const auto whole = tokens_alone(*request, {.n_rows_max = 256});
  for (const std::uint32_t n_rows : {1U, 7U, 32U, 33U, 64U}) {
    EXPECT_EQ(tokens_alone(*request, {.n_rows_max = n_rows, .n_seqs_max = 1}), whole) << n_rows;
  }
}

TEST(Engine, ShardsGiveWhatOneDeviceGives) {
  const auto request = EngineRig::request(some_prompt(50, 4), 20);
  EXPECT_EQ(tokens_alone(*request, {.n_shards = 3}), tokens_alone(*request));
}

TEST(Engine, DeferredCompletionEqualsImmediate) {
  const auto request = EngineRig::request(some_prompt(50, 4), 20);
  EXPECT_EQ(tokens_alone(*request, {.n_shards = 2, .completion = Completion::deferred}),
            tokens_alone(*request));
}

TEST(Engine, PreemptedEqualsUninterrupted) {
  // 12 blocks of 32: three sequences of 150 tokens need 15.
  EngineRig rig({.n_kv_blocks = 12});
  std::vector<std::unique_ptr<SequenceRequest>> kept;
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 5; ++i) {
    auto request = EngineRig::request(some_prompt(50, i), 100);
    request->stop.ignore_eos = true;
    request->sampling.temperature = i % 2 == 0 ? 0.0F : 1.0F;
    request->sampling.repetition_penalty = 1.1F;
    kept.push_back(std::make_unique<SequenceRequest>(*request));
    asked.push_back(rig.submit(std::move(request)));
  }
  rig.run();
  EXPECT_GT(rig.stats.n_preempted.load(), 0U);
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    ASSERT_TRUE(asked[i].ended());
    EXPECT_EQ(asked[i].tokens().size(), 100U);
    EXPECT_EQ(asked[i].tokens(), tokens_alone(*kept[i])) << i;
  }
  rig.expect_empty();
}

TEST(Engine, PrunedPromptsGiveTheSameWhateverTheChunksAndPreemptions) {
  const FakeModelOptions pruning{.prune_keep_percent = 50};
  auto asked = EngineRig::request(some_prompt(190, 3), 40);
  asked->stop.ignore_eos = true;
  const auto whole = tokens_alone(*asked, pruning);
  EXPECT_NE(whole, tokens_alone(*asked));
  for (const std::uint32_t n_rows : {7U, 32U, 33U, 64U}) {
    FakeModelOptions options = pruning;
    options.n_rows_max = n_rows;
    EXPECT_EQ(tokens_alone(*asked, options), whole) << n_rows;
  }
  // 8 blocks: one whole prompt beside one that has been pruned.
  FakeModelOptions tight = pruning;
  tight.n_kv_blocks = 8;
  EngineRig rig(tight);
  std::vector<Asked> answers;
  for (std::uint32_t i = 0; i < 4; ++i)
    answers.push_back(rig.submit(std::make_unique<SequenceRequest>(*asked)));
  rig.run();
  for (const Asked& answer : answers)
    EXPECT_EQ(answer.tokens(), whole);
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
  rig.expect_empty();
}

TEST(Engine, ChoicesOfAPrunedPromptShareWhatIsLeft) {
  const FakeModelOptions pruning{.prune_keep_percent = 50};
  auto asked = EngineRig::request(some_prompt(190, 3), 40);
  asked->stop.ignore_eos = true;
  const auto alone = tokens_alone(*asked, pruning);
  EngineRig rig(pruning);
  const Asked answer = rig.submit(std::move(asked), 3);
  rig.run();
  for (std::size_t c = 0; c < 3; ++c)
    EXPECT_EQ(answer.tokens(c), alone) << c;
  rig.expect_empty();
}

TEST(KvPruning, LosesWholeBlocksAndLeavesBothEnds) {
  for (std::uint32_t n = 1; n < 2000; ++n) {
    for (const std::uint32_t percent : {1U, 30U, 70U, 99U, 100U}) {
      const std::uint32_t n_pruned = KvPruning{percent, 32}.n_pruned(n);
      ASSERT_EQ(n_pruned % 32, 0U);
      ASSERT_GE(100 * std::uint64_t{n - n_pruned}, std::uint64_t{n} * percent);
      ASSERT_TRUE(n_pruned == 0 || n - n_pruned >= LUNA_PRUNE_FIRST + LUNA_PRUNE_RECENT);
    }
  }
}

TEST(Engine, ChoicesShareOnePrefillAndDifferBySeed) {
  EngineRig rig;
  auto request = EngineRig::request(some_prompt(45, 9), 30);
  request->sampling.temperature = 1.0F;
  request->sampling.seed = 77;
  request->stop.ignore_eos = true;
  SequenceRequest kept = *request;
  const Asked asked = rig.submit(std::move(request), 4);
  rig.run();
  EXPECT_EQ(rig.stats.n_prompt_tokens.load(), 45U);
  EXPECT_EQ(asked.tokens(0), tokens_alone(kept));
  for (std::size_t c = 1; c < 4; ++c) {
    EXPECT_EQ(asked.tokens(c).size(), 30U);
    EXPECT_NE(asked.tokens(c), asked.tokens(0));
  }
  rig.expect_empty();
}

TEST(Engine, GreedyChoicesAreEqualWhateverIsPreempted) {
  // 6 blocks: four choices of 40 + 60 tokens need 2 shared + ... more than there are. (With a
  // prefix cache they are enough: equal choices share every block they have filled.)
  EngineRig rig({.n_kv_blocks = 6}, std::nullopt, {.prefix_cache = false});
  auto request = EngineRig::request(some_prompt(40, 9), 60);
  request->stop.ignore_eos = true;
  SequenceRequest kept = *request;
  const Asked asked = rig.submit(std::move(request), 4);
  rig.run();
  const auto alone = tokens_alone(kept);
  for (std::size_t c = 0; c < 4; ++c)
    EXPECT_EQ(asked.tokens(c), alone) << c;
  EXPECT_GT(rig.stats.n_preempted.load(), 0U);
  rig.expect_empty();
}

TEST(Engine, EndTokenStopsWithoutText) {
  EngineRig rig;
  auto request = EngineRig::request(some_prompt(5, 2), 20);
  request->sampling.logit_bias = {{kTheToken, 50.0F}};
  request->stop.n_generated_max = 20;
  auto ending = std::make_unique<SequenceRequest>(*request);
  ending->sampling.logit_bias = {{kEndToken, 50.0F}};
  ending->stop.n_generated_min = 3;
  const Asked asked = rig.submit(std::move(request));
  const Asked ended = rig.submit(std::move(ending));
  rig.run();
  EXPECT_EQ(asked.tokens().size(), 20U);
  EXPECT_EQ(ended.end().reason, FinishReason::stop);
  EXPECT_EQ(ended.tokens().size(), 4U);  // three that had to come, and the end token
  EXPECT_EQ(ended.tokens().back(), kEndToken);
  rig.expect_empty();
}

TEST(Engine, StopStringOverTokenBordersIsNeverSent) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"the the"}, " "},
      {{"e t"}, " th"},
      {{"xyz", "he th"}, " t"},
      {{"the the", " the t"}, ""},
      {{"the"}, " "},
      {{" "}, ""}};
  for (const auto& [stops, text] : cases) {
    EngineRig rig;
    auto request = EngineRig::request(some_prompt(5, 2), 12);
    request->sampling.logit_bias = {{kTheToken, 100.0F}};
    request->stop.stop_strings = stops;
    const Asked asked = rig.submit(std::move(request));
    rig.run();
    EXPECT_EQ(asked.text(), text) << stops[0];
    EXPECT_EQ(asked.end().reason, FinishReason::stop);
    EXPECT_LE(asked.tokens().size(), 2U);
    rig.expect_empty();
  }
}

TEST(Engine, TextHeldBackIsSentAtTheEnd) {
  EngineRig rig;
  auto request = EngineRig::request(some_prompt(5, 2), 4);
  request->sampling.logit_bias = {{kTheToken, 100.0F}};
  request->stop.stop_strings = {" the the the the the the the"};
  const Asked asked = rig.submit(std::move(request));
  rig.run();
  EXPECT_EQ(asked.text(), " the the the the");
  EXPECT_EQ(asked.end().reason, FinishReason::length);
  EXPECT_EQ(asked.tokens().size(), 4U);
}

TEST(Engine, TokensAfterAnUndecidedStopAreNotCounted) {
  EngineRig rig;
  auto request = EngineRig::request(some_prompt(5, 2), 12);
  request->sampling.logit_bias = {{kTheToken, 100.0F}};
  // The second is whole after one token, the first could still begin before it, and does not come.
  request->stop.stop_strings = {" the the thx", "the"};
  const Asked asked = rig.submit(std::move(request));
  rig.run();
  EXPECT_EQ(asked.text(), " ");
  EXPECT_EQ(asked.tokens().size(), 1U);
  EXPECT_EQ(asked.end().reason, FinishReason::stop);
}

TEST(Engine, LogprobsComeInOrderThoughTextIsHeldBack) {
  EngineRig rig;
  auto request = EngineRig::request(some_prompt(5, 2), 6);
  request->logprobs = {.enabled = true, .n_top = 5};
  request->stop.stop_strings = {"zzzzzz never"};
  const Asked asked = rig.submit(std::move(request));
  rig.run();
  const auto view = asked.streams[0]->view();
  ASSERT_FALSE(view.tokens.empty());
  for (std::size_t i = 0; i < view.tokens.size(); ++i) {
    ASSERT_EQ(view.tokens[i].n_top, 5U);
    EXPECT_LE(view.tokens[i].logprob, 0.0F);
    EXPECT_EQ(view.top[i * 5].token_id, view.tokens[i].token_id);  // greedy
    EXPECT_EQ(view.top[i * 5].logprob, view.tokens[i].logprob);
    for (std::size_t k = 1; k < 5; ++k)
      EXPECT_LE(view.top[i * 5 + k].logprob, view.top[i * 5 + k - 1].logprob);
  }
}

TEST(Engine, CancelFreesBlocksAtTheNextStepBorder) {
  EngineRig rig({.completion = Completion::deferred});
  auto request = EngineRig::request(some_prompt(100, 2), 100);
  request->stop.ignore_eos = true;
  const Asked asked = rig.submit(std::move(request), 2);
  for (int i = 0; i < 8; ++i) {
    rig.engine->advance();
    rig.fake.complete();
  }
  rig.engine->advance();
  EXPECT_GT(rig.stats.n_kv_blocks_used.load(), 0U);
  rig.engine->cancel(asked.id);
  rig.engine->advance();  // the step still runs
  EXPECT_GT(rig.stats.n_kv_blocks_used.load(), 0U);
  rig.fake.complete();
  rig.engine->advance();
  rig.expect_empty();
  EXPECT_EQ(asked.end(0).reason, FinishReason::cancelled);
  EXPECT_EQ(asked.end(1).reason, FinishReason::cancelled);
}

TEST(Engine, CancelOfAWaitingRequestEndsAllChoices) {
  EngineRig rig;
  const Asked asked = rig.submit(EngineRig::request(some_prompt(100, 2), 100), 3);
  rig.engine->cancel(asked.id);
  rig.run();
  ASSERT_TRUE(asked.ended());
  rig.expect_empty();
}

TEST(Engine, DeadlineEndsARequestInTime) {
  EngineRig rig;
  auto request = EngineRig::request(some_prompt(100, 2), 100);
  request->stop.ignore_eos = true;
  request->deadline = rig.clock.now() + std::chrono::milliseconds(10);
  const Asked asked = rig.submit(std::move(request));
  rig.run();
  EXPECT_EQ(asked.end().reason, FinishReason::failed);
  EXPECT_EQ(asked.end().code, Code::timeout);
  EXPECT_LT(asked.tokens().size(), 10U);
  rig.expect_empty();
}

TEST(Engine, ARejectedRequestIsToldWhy) {
  const auto ended_for = [](std::uint16_t reason) {
    EngineRig rig({}, scheduler_of([reason](const luna_snapshot&, luna_plan& plan) {
                    plan.actions[0] = {.row = 0,
                                       .verb = LUNA_VERB_REJECT,
                                       .reason = reason,
                                       .device = 0,
                                       .first_token = 0,
                                       .n_tokens = 0,
                                       .arg = 0};
                    plan.n_actions = 1;
                    return LUNA_OK;
                  }));
    const Asked asked = rig.submit(EngineRig::request(some_prompt(10, 1), 5));
    rig.run();
    return asked.end();
  };
  EXPECT_EQ(ended_for(LUNA_REASON_DEADLINE).code, Code::timeout);
  EXPECT_EQ(ended_for(LUNA_REASON_QUEUE_LONG).code, Code::exhausted);
  EXPECT_THAT(std::string(ended_for(LUNA_REASON_QUEUE_LONG).error), HasSubstr("wait longer"));
  EXPECT_EQ(ended_for(1000).code, Code::exhausted);
}

TEST(Engine, TheQueueTellsHowLongItWillTakeToDrain) {
  EngineRig rig({.n_seqs_max = 1});
  for (std::uint32_t i = 0; i < 10; ++i) {
    auto request = EngineRig::request(some_prompt(20, i), 50);
    request->stop.ignore_eos = true;
    rig.submit(std::move(request));
  }
  EXPECT_EQ(rig.engine->queue_wait().count(), 0);
  // A request takes some 50 turns of a millisecond. After the third, seven wait.
  for (int i = 0; i < 160; ++i) {
    rig.engine->advance();
    rig.clock.advance(std::chrono::milliseconds(1));
  }
  const double wait_ms =
      std::chrono::duration<double, std::milli>(rig.engine->queue_wait()).count();
  EXPECT_NEAR(wait_ms, 6 * 50, 60);
  rig.run();
  EXPECT_EQ(rig.engine->queue_wait().count(), 0);
}

TEST(Engine, WhatCanNeverFitIsRefusedWithTheNumbers) {
  EngineRig rig({.n_kv_blocks = 4});
  EXPECT_TRUE(rig.engine->can_fit(100, 28, 1));
  const auto blocks = rig.engine->can_fit(100, 29, 1);
  ASSERT_FALSE(blocks);
  EXPECT_EQ(blocks.error().code(), Code::invalid_argument);
  EXPECT_THAT(blocks.error().message(), HasSubstr("need 5 KV blocks"));
  EXPECT_THAT(blocks.error().message(), HasSubstr("there are 4"));
  const auto context = rig.engine->can_fit(200, 100, 1);
  ASSERT_FALSE(context);
  EXPECT_THAT(context.error().message(), HasSubstr("300, the context is 256"));
}

TEST(Engine, RequestThatFillsTheWholeCacheIsServed) {
  EngineRig rig({.n_kv_blocks = 4});
  auto request = EngineRig::request(some_prompt(100, 1), 28);
  request->stop.ignore_eos = true;
  const Asked asked = rig.submit(std::move(request));
  const Asked behind = rig.submit(EngineRig::request(some_prompt(10, 1), 4));
  rig.run();
  EXPECT_EQ(asked.tokens().size(), 28U);
  EXPECT_TRUE(behind.ended());
  rig.expect_empty();
}

TEST(Engine, WrongValuesAreRefusedAtTheDoor) {
  EngineRig rig;
  const auto refused = [&](const std::function<void(SequenceRequest&)>& spoil) {
    auto request = EngineRig::request(some_prompt(5, 1), 5);
    rig.add_streams(*request, 1);
    spoil(*request);
    const auto result = rig.engine->submit(std::move(request));
    return !result && result.error().code() == Code::invalid_argument;
  };
  EXPECT_FALSE(refused([](auto&) {}));
  EXPECT_TRUE(refused([](auto& r) { r.prompt.clear(); }));
  EXPECT_TRUE(refused([](auto& r) { r.prompt[0] = 264; }));
  EXPECT_TRUE(refused([](auto& r) { r.stop.n_generated_max = 0; }));
  EXPECT_TRUE(refused([](auto& r) { r.stop.n_generated_max = 6; }));  // the stream has 5 places
  EXPECT_TRUE(refused([](auto& r) { r.streams.clear(); }));
  EXPECT_TRUE(refused([](auto& r) { r.streams[0] = nullptr; }));
  EXPECT_TRUE(refused([](auto& r) { r.sampling.logit_bias = {{264, 1.0F}}; }));
  EXPECT_TRUE(refused([](auto& r) { r.sampling.logit_bias = {{1, NAN}}; }));
  EXPECT_TRUE(refused([](auto& r) { r.sampling.temperature = -1.0F; }));
  EXPECT_TRUE(refused([](auto& r) { r.sampling.temperature = NAN; }));
  EXPECT_TRUE(refused([](auto& r) { r.sampling.top_p = 1.5F; }));
  EXPECT_TRUE(refused([](auto& r) { r.sampling.allowed_tokens = {999}; }));
  EXPECT_TRUE(refused([](auto& r) { r.stop.stop_strings.assign(17, "x"); }));
  EXPECT_TRUE(refused([](auto& r) { r.logprobs = {.enabled = true, .n_top = 3}; }));
}

TEST(Engine, QueueFullIsAnAnswer) {
  EngineRig rig({}, std::nullopt, {.n_waiting_max = 3});
  std::vector<Asked> asked;
  for (int i = 0; i < 3; ++i)
    asked.push_back(rig.submit(EngineRig::request(some_prompt(5, 1), 5)));
  auto request = EngineRig::request(some_prompt(5, 1), 5);
  rig.add_streams(*request, 1);
  const auto result = rig.engine->submit(std::move(request));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), Code::exhausted);
  rig.run();
  rig.submit(EngineRig::request(some_prompt(5, 1), 5));
  rig.run();
  rig.expect_empty();
}

TEST(Engine, StopEndsEverySequenceAndAnswersUnavailable) {
  EngineRig rig;
  const Asked running = rig.submit(EngineRig::request(some_prompt(100, 1), 50));
  rig.engine->advance();
  const Asked queued = rig.submit(EngineRig::request(some_prompt(5, 1), 5), 2);
  rig.engine->stop();
  EXPECT_EQ(running.end().reason, FinishReason::cancelled);
  EXPECT_EQ(queued.end(1).reason, FinishReason::cancelled);
  auto late = EngineRig::request(some_prompt(5, 1), 5);
  rig.add_streams(*late, 1);
  const auto result = rig.engine->submit(std::move(late));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), Code::unavailable);
  rig.expect_empty();
}

/// A step that a device refuses or fails, and the request after it.
void expect_end_of_step(std::uint32_t n_shards, std::size_t device, bool at_submit, bool is_last) {
  EngineRig rig({.n_shards = n_shards});
  const Asked lost = rig.submit(EngineRig::request(some_prompt(10, 1), 50));
  FakeDevice& failing = rig.fake.devices[device];
  (at_submit ? failing.refuse_next_submit : failing.fail_next_step) = true;
  rig.run();
  EXPECT_EQ(lost.end().reason, FinishReason::failed);
  EXPECT_EQ(lost.end().code, Code::unavailable);
  EXPECT_EQ(rig.stats.is_lost.load(), is_last);
  const Asked next = rig.submit(EngineRig::request(some_prompt(10, 1), 5));
  rig.run();
  EXPECT_EQ(next.end().reason, is_last ? FinishReason::failed : FinishReason::length);
  rig.expect_empty();
}

TEST(Engine, DeviceThatFailsAloneEndsItsStepAndNoOther) {
  expect_end_of_step(1, 0, true, false);
  expect_end_of_step(1, 0, false, false);
  expect_end_of_step(3, 0, true, false);  // the others have not been asked
}

TEST(Engine, DeviceThatFailsAmongOthersEndsTheirCommunication) {
  // Those before it have sent it what the next step would take for its own.
  expect_end_of_step(3, 1, true, true);
  expect_end_of_step(3, 1, false, true);
  expect_end_of_step(3, 2, false, true);
}

TEST(Engine, DeviceThatWaitsForAFailedOneIsLetGo) {
  EngineRig rig({.n_shards = 2});
  rig.fake.devices[0].stall_next_step = true;
  rig.fake.devices[1].fail_next_step = true;
  const Asked lost = rig.submit(EngineRig::request(some_prompt(10, 1), 50));
  rig.run();
  EXPECT_EQ(lost.end().code, Code::unavailable);
  EXPECT_FALSE(telemetry::is_alive(rig.stats, rig.clock.now(), std::chrono::seconds(30)))
      << "who was let go can wait for nobody any more";
  rig.expect_empty();
}

TEST(Engine, FirstStepAfterALongSilenceIsAlive) {
  EngineRig rig({.completion = Completion::deferred});
  constexpr std::chrono::seconds kSilenceMax(30);
  EXPECT_TRUE(telemetry::is_alive(rig.stats, rig.clock.now(), kSilenceMax));
  rig.clock.advance(std::chrono::hours(1));
  rig.submit(EngineRig::request(some_prompt(10, 1), 5));
  rig.engine->advance();
  ASSERT_EQ(rig.stats.n_running.load(), 1U);
  EXPECT_TRUE(telemetry::is_alive(rig.stats, rig.clock.now(), kSilenceMax));
  // A reader whose time is a moment old.
  const Nanoseconds before = rig.clock.now() - std::chrono::microseconds(1);
  EXPECT_TRUE(telemetry::is_alive(rig.stats, before, kSilenceMax));
  rig.clock.advance(kSilenceMax);
  EXPECT_FALSE(telemetry::is_alive(rig.stats, rig.clock.now(), kSilenceMax)) << "a stuck device";
  rig.run();
  EXPECT_TRUE(telemetry::is_alive(rig.stats, rig.clock.now(), kSilenceMax));
  rig.expect_empty();
}

TEST(Engine, RowThatIsNotANumberFailsItsRequestOnly) {
  for (const float temperature : {0.0F, 1.0F}) {
    EngineRig rig;
    auto request = EngineRig::request(some_prompt(10, 1), 50);
    request->sampling.temperature = temperature;
    rig.fake.devices[0].poison = NAN;
    const Asked lost = rig.submit(std::move(request));
    rig.run();
    EXPECT_EQ(lost.end().reason, FinishReason::failed);
    EXPECT_EQ(lost.end().code, Code::internal);
    rig.expect_empty();
  }
}

TEST(Engine, OnePlanAndOneSubmitADeviceWhateverTheTokens) {
  for (const std::uint32_t n_tokens : {1U, 50U}) {
    EngineRig rig({.n_shards = 3, .n_kv_blocks = 128});
    for (std::uint32_t i = 0; i < 6; ++i)
      rig.submit(EngineRig::request(some_prompt(n_tokens, i), n_tokens));
    rig.run();
    EXPECT_GT(rig.stats.n_steps.load(), 0U);
    EXPECT_EQ(rig.stats.n_plan_calls.load(), rig.stats.n_steps.load());
    EXPECT_EQ(rig.stats.n_submit_calls.load(), 3 * rig.stats.n_steps.load());
    for (const FakeDevice& device : rig.fake.devices)
      EXPECT_EQ(device.n_submits, rig.stats.n_steps.load());
  }
}

TEST(Engine, EarlierRequestIsLetInBeforeLaterOnes) {
  EngineRig rig({.n_kv_blocks = 8, .n_seqs_max = 4});
  // A long one amid short ones: it waits for those before it and for none after it.
  std::vector<Asked> before;
  for (std::uint32_t i = 0; i < 4; ++i)
    before.push_back(rig.submit(EngineRig::request(some_prompt(20, i), 20)));
  const Asked large = rig.submit(EngineRig::request(some_prompt(200, 1), 8));
  std::vector<Asked> after;
  std::size_t n_turns = 0;
  while (!large.ended()) {
    after.push_back(rig.submit(EngineRig::request(some_prompt(20, n_turns % 50), 20)));
    rig.engine->advance();
    rig.clock.advance(std::chrono::milliseconds(1));
    ASSERT_LT(++n_turns, 60U);  // 20 to finish those before, 5 chunks, 8 tokens, and slack
  }
  rig.run();
  rig.expect_empty();
}

TEST(Engine, HigherPriorityIsLetInFirst) {
  EngineRig rig({.n_seqs_max = 1});
  const Asked first = rig.submit(EngineRig::request(some_prompt(20, 1), 2));
  auto urgent_request = EngineRig::request(some_prompt(20, 2), 2);
  urgent_request->priority = 5;
  const Asked urgent = rig.submit(std::move(urgent_request));
  while (!urgent.ended()) {
    ASSERT_FALSE(first.ended());
    rig.engine->advance();
  }
  rig.run();
  EXPECT_TRUE(first.ended());
}

TEST(Engine, LatenciesCountFromArrivalAtTheDoor) {
  EngineRig rig;
  auto request = EngineRig::request(some_prompt(10, 1), 3);
  request->stop.ignore_eos = true;
  rig.submit(std::move(request));
  rig.clock.advance(std::chrono::seconds(2));
  rig.run();
  EXPECT_GE(rig.stats.ttft_seconds.sum(), 2.0);
  EXPECT_GE(rig.stats.queue_seconds.sum(), 2.0);
  EXPECT_NEAR(rig.stats.itl_seconds.sum(), 0.002, 1e-6);
  EXPECT_EQ(rig.stats.n_generated_tokens.load(), 3U);
  EXPECT_EQ(rig.stats.n_ended[static_cast<std::size_t>(telemetry::EndCode::length)].load(), 1U);
}

}  // namespace
}  // namespace luna::test
