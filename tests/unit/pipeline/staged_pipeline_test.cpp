// Requests through the stages, with the shipped roles and a model that the test plays.
#include "support/pipeline_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <new>
#include <thread>

namespace luna::test {
namespace {

using pipeline::FinishReason;
using pipeline::Request;
using pipeline::StreamEnd;
using ::testing::HasSubstr;
using List = std::vector<std::string>;

TEST(StagedPipeline, ClientHearsTheModelsTextOnceATurnAndTheUsageAtTheEnd) {
  PipelineRig rig;
  rig.generate().make();
  auto client = rig.start(PipelineRig::completion("abc"));
  rig.turn();
  rig.run().say("He");
  rig.run().say("llo");
  rig.turn();
  EXPECT_EQ(client.sink->text(), "Hello");
  EXPECT_EQ(client.sink->n_calls, 1);
  rig.turn();
  EXPECT_EQ(client.sink->n_calls, 1) << "nothing new, nothing told";
  rig.run().say("!");
  rig.run().end({FinishReason::length, 2});
  rig.turn();
  EXPECT_EQ(client.sink->text(), "Hello!");
  EXPECT_EQ(client.sink->finish(), FinishReason::length);
  ASSERT_TRUE(client.sink->end);
  EXPECT_FALSE(client.sink->end->error);
  EXPECT_EQ(client.sink->end->usage.n_prompt, 3U);
  EXPECT_EQ(client.sink->end->usage.n_generated, 6U);
  EXPECT_EQ(client.sink->end->usage.n_cached, 2U);
  EXPECT_EQ(rig.pipeline->n_live(), 0U);
}

TEST(StagedPipeline, EachRoleRunsOnceATurnHoweverManyRequestsWait) {
  PipelineRig rig;
  rig.generate().stage(load_role("postprocess")).make();
  std::vector<PipelineRig::Client> clients;
  for (int i = 0; i < 20; ++i)
    clients.push_back(rig.start(PipelineRig::completion("abc")));
  rig.turn();
  EXPECT_EQ(rig.stats.n_role_runs, 1U);
  for (std::size_t i = 0; i < 20; ++i)
    rig.run(i).say("many bytes of text");
  rig.turn();
  EXPECT_EQ(rig.stats.n_role_runs, 3U);
  for (std::size_t i = 0; i < 20; ++i)
    rig.run(i).end();
  rig.turn();
  EXPECT_EQ(rig.stats.n_role_runs, 5U);
  for (const auto& client : clients)
    EXPECT_EQ(client.sink->text(), "many bytes of text");
}

TEST(StagedPipeline, IntentSetsLimitsAndSamplingAndPostprocessHasTheLastWord) {
  PipelineRig rig;
  rig.stage(load_role("intent",
                      {{"labels", List{"code", "talk"}},
                       {"updates", List{"code", R"({"max_tokens": 20, "temperature": 0.25})"}}}),
            true)
      .generate()
      .stage(load_role("postprocess", {{"trim", true}}))
      .make();
  auto client = rig.start(PipelineRig::chat_request("write code"));
  rig.turn();
  const auto& question = rig.run(0).asked();
  EXPECT_EQ(question.stop.n_generated_max, 1U);
  EXPECT_EQ(question.sampling.temperature, 0.0F);
  EXPECT_EQ(question.sampling.allowed_tokens, (std::vector<pipeline::TokenId>{'c', 't'}));
  EXPECT_FALSE(question.logprobs.enabled);
  rig.run(0).say("c");
  rig.run(0).end({FinishReason::length});
  rig.turn();
  const auto& answer = rig.run(1).asked();
  EXPECT_EQ(answer.stop.n_generated_max, 20U);
  EXPECT_EQ(answer.sampling.temperature, 0.25F);
  EXPECT_TRUE(answer.sampling.allowed_tokens.empty());
  EXPECT_EQ(answer.stage, 1U);
  rig.run(1).say(" \n```\nx ");
  rig.run(1).end();
  rig.turn();
  EXPECT_EQ(client.sink->text(), "```\nx\n```");
  EXPECT_EQ(client.sink->end->usage.n_generated, 8U) << "the question's token is not the client's";
  EXPECT_EQ(client.sink->end->usage.n_prompt, answer.prompt.size());
  EXPECT_EQ(rig.stats.intents().at("code"), 1U);
}

TEST(StagedPipeline, ClientsLimitIsKeptWhenAnIntentAllowsMore) {
  PipelineRig rig;
  rig.stage(load_role("intent",
                      {{"labels", List{"a", "b"}},
                       {"method", std::string("regex")},
                       {"patterns", List{"a", "."}},
                       {"updates", List{"a", R"({"max_tokens": 20})"}}}))
      .generate()
      .make();
  Request request = PipelineRig::chat_request("x");
  request.n_generated_max = 5;
  auto client = rig.start(request);
  rig.turn();
  EXPECT_EQ(rig.run().asked().stop.n_generated_max, 5U);
}

TEST(StagedPipeline, LabelsThatTheModelCannotTellApartStopTheStart) {
  PipelineRig rig;
  rig.stage(load_role("intent", {{"labels", List{"code", "chat"}}}), true).generate();
  const auto made = rig.try_make();
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(),
              HasSubstr("stage 0 (intent): 'code' and 'chat' begin with the same token 99 ('c')"));
}

TEST(StagedPipeline, StagesAndModelsThatDoNotFitStopTheStart) {
  PipelineRig without_model;
  EXPECT_THAT(without_model.stage(load_role("postprocess")).try_make().error().message(),
              HasSubstr("no stage of the pipeline has a model"));
  PipelineRig without_stage;
  EXPECT_FALSE(without_stage.try_make());
  PipelineRig intent_without;
  intent_without.stage(load_role("intent", {{"labels", List{"a", "b"}}})).generate();
  EXPECT_THAT(intent_without.try_make().error().message(), HasSubstr("needs a model"));
}

TEST(StagedPipeline, ChoicesShareOneRunAndPassLaterStagesOnTheirOwn) {
  PipelineRig rig;
  rig.generate().stage(load_role("postprocess", {{"trim", true}})).make();
  Request request = PipelineRig::completion("abc");
  request.n_choices = 3;
  auto client = rig.start(request);
  rig.turn();
  ASSERT_EQ(rig.runner.runs.size(), 1U);
  ASSERT_EQ(rig.run().asked().streams.size(), 3U);
  for (std::size_t c : {2U, 0U, 1U}) {
    rig.run().say(" choice " + std::to_string(c) + " ", c);
    rig.turn();
  }
  rig.run().end({FinishReason::length}, 1);
  rig.turn();
  EXPECT_FALSE(client.sink->end);
  rig.run().end({}, 0);
  rig.run().end({}, 2);
  rig.turn();
  EXPECT_EQ(client.sink->texts, (List{"choice 0", "choice 1", "choice 2"}));
  EXPECT_EQ(client.sink->finishes[1], FinishReason::length);
  EXPECT_EQ(client.sink->finishes[2], FinishReason::stop);
  EXPECT_EQ(client.sink->end->usage.n_generated, 30U);
  EXPECT_EQ(client.sink->end->usage.n_prompt, 3U);
}

TEST(StagedPipeline, StageThatHasEnoughEndsTheModelsRun) {
  PipelineRig rig;
  rig.generate().stage(load_role("postprocess", {{"max_chars", std::int64_t{3}}})).make();
  auto client = rig.start(PipelineRig::completion("abc"));
  rig.turn();
  rig.run().say("abcdef");
  rig.turn();
  EXPECT_EQ(client.sink->text(), "abc");
  EXPECT_EQ(client.sink->finish(), FinishReason::length);
  EXPECT_TRUE(client.sink->end);
  EXPECT_TRUE(rig.run().is_cancelled());
}

TEST(StagedPipeline, CancelledRequestIsGoneAfterATurnAtEveryPoint) {
  for (int point = 0; point < 6; ++point) {
    PipelineRig rig;
    rig.stage(load_role("intent", {{"labels", List{"code", "talk"}}}), true)
        .generate()
        .stage(load_role("postprocess"))
        .make();
    auto client = rig.start(PipelineRig::chat_request("x"));
    const std::vector<std::function<void()>> steps = {
        [&] { rig.turn(); },
        [&] { rig.run(0).say("t"); },
        [&] { rig.run(0).end({FinishReason::length}), rig.turn(); },
        [&] { rig.run(1).say("hello"), rig.turn(); },
        [&] { rig.run(1).end(); },
    };
    for (int i = 0; i < point && i < 5; ++i)
      steps[static_cast<std::size_t>(i)]();
    client.running.reset();
    rig.turn();
    ASSERT_TRUE(client.sink->end) << "point " << point;
    EXPECT_EQ(client.sink->end->error->code(), Code::cancelled);
    EXPECT_EQ(rig.pipeline->n_live(), 0U);
    const bool runs = point >= 1 && point < 5;
    EXPECT_EQ(!rig.runner.runs.empty() && rig.runner.runs.back().is_cancelled(), runs)
        << "point " << point;
    rig.turn();
    auto next = rig.start(PipelineRig::chat_request("y"));  // nothing is left behind
    rig.turn();
    rig.runner.runs.back().say("c");
    rig.runner.runs.back().end({FinishReason::length});
    rig.turn();
    rig.runner.runs.back().say("fine");
    rig.runner.runs.back().end();
    rig.turn();
    EXPECT_EQ(next.sink->text(), "fine");
  }
}

TEST(StagedPipeline, RunThatFailsEndsTheRequestWithItsCode) {
  PipelineRig rig;
  rig.generate().make();
  auto client = rig.start(PipelineRig::completion("abc"));
  rig.turn();
  rig.run().say("par");
  rig.run().fail(Code::timeout, "the deadline has passed");
  rig.turn();
  ASSERT_TRUE(client.sink->end);
  EXPECT_EQ(client.sink->end->error->code(), Code::timeout);
  EXPECT_EQ(client.sink->end->error->message(), "the deadline has passed");
  EXPECT_EQ(client.sink->text(), "par");
  rig.runner.is_full = true;
  auto late = rig.start(PipelineRig::completion("abc"));
  rig.turn();
  ASSERT_TRUE(late.sink->end);
  EXPECT_EQ(late.sink->end->error->code(), Code::exhausted);
}

TEST(StagedPipeline, IntentThatCannotBeAskedGetsTheDefaultAndTheAnswerComes) {
  PipelineRig rig;
  rig.stage(load_role("intent", {{"labels", List{"code", "talk"}}}), true).generate().make();
  rig.runner.n_kv_tokens = 60;  // the question does not fit, the prompt does
  auto client = rig.start(PipelineRig::chat_request("a fairly long text, but not too long"));
  rig.turn();
  EXPECT_EQ(rig.stats.intents().at("talk"), 0U + 1U);
}

TEST(StagedPipeline, TooManyRequestsAreRefused) {
  PipelineRig rig;
  rig.n_requests_max = 3;
  rig.generate().make();
  std::vector<PipelineRig::Client> clients;
  for (int i = 0; i < 3; ++i)
    clients.push_back(rig.start(PipelineRig::completion("abc")));
  EXPECT_EQ(rig.refusal(PipelineRig::completion("abc")).code(), Code::exhausted);
  rig.turn();
  rig.run(0).end();
  rig.turn();
  auto next = rig.start(PipelineRig::completion("abc"));
  EXPECT_EQ(rig.pipeline->n_live(), 3U);
}

TEST(StagedPipeline, LogprobTokensLeaveWithTheirTextAndStopWhereTheTextWasChanged) {
  Request request = PipelineRig::completion("abc");
  request.logprobs = {true, 0};
  const auto tokens = [&](const SettingValues& rules, const std::string& text) {
    PipelineRig rig;
    rig.generate().stage(load_role("postprocess", rules)).make();
    auto client = rig.start(request);
    rig.turn();
    for (const char byte : text) {
      rig.run().say(std::string(1, byte));
      rig.turn();
    }
    rig.run().end();
    rig.turn();
    const auto& ids = client.sink->tokens[0];
    return std::string(ids.begin(), ids.end());
  };
  EXPECT_EQ(tokens({}, "ab c "), "ab c ");
  EXPECT_EQ(tokens({{"trim", true}}, "ab c "), "ab c");
  EXPECT_EQ(tokens({{"trim", true}}, " ab"), "");
  EXPECT_EQ(tokens({}, "```x"), "```x");
  EXPECT_EQ(tokens({{"json_repair", true}}, "[1,]"), "[1");
}

TEST(StagedPipeline, DrainLetsRequestsEndAndRefusesNewOnes) {
  PipelineRig rig;
  rig.generate().make();
  rig.pipeline->launch();
  auto client = rig.start(PipelineRig::completion("abc"));
  std::thread drainer([&] { rig.pipeline->drain(std::chrono::hours(1)); });
  while (rig.pipeline->start(PipelineRig::completion("abc"), std::make_shared<RecordingSink>()))
    std::this_thread::yield();
  client.running.reset();
  drainer.join();
  EXPECT_TRUE(client.sink->end);
  EXPECT_EQ(rig.refusal(PipelineRig::completion("abc")).code(), Code::unavailable);
}

TEST(StagedPipeline, DrainWithoutGraceEndsWhatRuns) {
  PipelineRig rig;
  rig.generate().make();
  rig.pipeline->launch();
  auto client = rig.start(PipelineRig::completion("abc"));
  rig.pipeline->drain(std::chrono::nanoseconds(0));
  ASSERT_TRUE(client.sink->end);
  EXPECT_EQ(client.sink->end->error->code(), Code::unavailable);
}

TEST(StagedPipeline, NamesAndSizesAreTheModels) {
  PipelineRig rig;
  rig.generate().make();
  EXPECT_EQ(rig.pipeline->model_names(), (List{"main"}));
  EXPECT_EQ(rig.pipeline->context_length("main"), 500U);
  EXPECT_EQ(rig.pipeline->vocab_size("main"), rig.tokenizer.vocab_size());
  EXPECT_EQ(rig.pipeline->token_bytes("main", 'x'), "x");
  EXPECT_EQ(rig.pipeline->context_length("other"), 0U);
}

/// Throws at the first text, as a library does that finds no memory.
class ThrowingSink final : public pipeline::OutputSink {
 public:
  void on_output(std::span<pipeline::OutputEvent>, std::optional<pipeline::OutputEnd>) override {
    throw std::bad_alloc();
  }
};

TEST(StagedPipeline, WhatIsThrownOnItsThreadEndsTheRequestsAndNotTheProcess) {
  PipelineRig rig;
  rig.generate().make();
  auto bystander = rig.start(PipelineRig::completion("abc"));
  auto thrower =
      rig.pipeline->start(PipelineRig::completion("abc"), std::make_shared<ThrowingSink>());
  ASSERT_TRUE(thrower);
  rig.turn();
  rig.run(1).say("x");
  EXPECT_FALSE(rig.pipeline->has_failed());
  rig.pipeline->launch();
  rig.pipeline->drain(std::chrono::hours(1));
  EXPECT_TRUE(rig.pipeline->has_failed());
  ASSERT_TRUE(bystander.sink->end);
  ASSERT_TRUE(bystander.sink->end->error);
  EXPECT_EQ(bystander.sink->end->error->code(), Code::internal);
  EXPECT_TRUE(rig.run(0).is_cancelled());
  EXPECT_EQ(rig.pipeline->n_live(), 0U);
  EXPECT_EQ(rig.refusal(PipelineRig::completion("abc")).code(), Code::unavailable);
}

TEST(StagedPipeline, EveryReasonHasItsWord) {
  for (const FinishReason reason :
       {FinishReason::stop, FinishReason::length, FinishReason::cancelled, FinishReason::failed})
    EXPECT_EQ(pipeline::parse_finish_reason(pipeline::finish_reason_name(reason)), reason);
  EXPECT_EQ(pipeline::finish_reason_name(FinishReason::cancelled), "cancelled");
  EXPECT_FALSE(pipeline::parse_finish_reason("stopped"));
}

}  // namespace
}  // namespace luna::test
