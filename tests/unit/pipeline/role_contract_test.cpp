// Roles that break the contract fail their request, never the pipeline.
#include "support/pipeline_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luna::test {
namespace {

using ::testing::HasSubstr;

/// The error of a request whose only stage is this role.
std::string error_of(FunctionRole::Function function) {
  PipelineRig rig;
  rig.stage(function_role(std::move(function)), true).make();
  auto client = rig.start(PipelineRig::completion("abc"));
  for (int i = 0; i < 3 && !client.sink->end; ++i) {
    rig.turn();
    for (ScriptedRun& run : rig.runner.runs)
      if (!run.asked().streams[0]->view().end) run.end();
  }
  rig.turn();
  EXPECT_TRUE(client.sink->end) << "the request hangs";
  EXPECT_EQ(rig.pipeline->n_live(), 0U);
  if (!client.sink->end || !client.sink->end->error) return "";
  return client.sink->end->error->message();
}

FunctionRole::Function on_request(std::vector<std::pair<ItemKind, std::string>> answers) {
  return [answers = std::move(answers)](const Item& item, ItemSink& out) {
    if (item.kind != ItemKind::request) return;
    for (const auto& [kind, text] : answers)
      out.emit(item.request, kind, text);
  };
}

TEST(RoleContract, BreachesEndTheRequestAndSayWhatWasBroken) {
  EXPECT_EQ(error_of(on_request({{ItemKind::text, "x"}, {ItemKind::end, "stop"}})), "");
  EXPECT_THAT(error_of(on_request({{ItemKind::end, "because"}})), HasSubstr("'because'"));
  EXPECT_THAT(error_of(on_request({{ItemKind::end, "stop"}, {ItemKind::end, "stop"}})),
              HasSubstr("went on after its END"));
  EXPECT_THAT(error_of(on_request({{ItemKind::update, "[]"}})), HasSubstr("UPDATE: not a JSON"));
  EXPECT_THAT(error_of(on_request({{ItemKind::update, R"({"n":1})"}})), HasSubstr("n cannot be"));
  EXPECT_THAT(error_of(on_request({{ItemKind::model_request, "x"}})),
              HasSubstr("MODEL_REQUEST: not JSON"));
  EXPECT_THAT(
      error_of(on_request({{ItemKind::model_request, "{}"}, {ItemKind::model_request, "{}"}})),
      HasSubstr("asked for its model while it runs"));
  EXPECT_THAT(error_of(on_request({{ItemKind::model_text, "x"}})), HasSubstr("item of kind 5"));
  EXPECT_EQ(error_of(on_request({{ItemKind::error, "my own reason"}})), "my own reason");
}

TEST(RoleContract, UpdateAfterOutputIsRefused) {
  PipelineRig rig;
  rig.stage(function_role(on_request({{ItemKind::text, "x"}, {ItemKind::update, "{}"}})))
      .generate()
      .make();
  auto client = rig.start(PipelineRig::completion("abc"));
  rig.turn();
  ASSERT_TRUE(client.sink->end);
  EXPECT_THAT(client.sink->end->error->message(), HasSubstr("after its output had begun"));
}

TEST(RoleContract, RoleThatAsksForItsModelWithoutEndIsStopped) {
  PipelineRig rig;
  rig.stage(function_role([](const Item& item, ItemSink& out) {
              if (item.kind == ItemKind::request || item.kind == ItemKind::model_end) {
                out.emit(item.request, ItemKind::model_request, "{}");
              }
            }),
            true)
      .make();
  rig.runner.is_full = true;  // each run fails at once
  auto client = rig.start(PipelineRig::completion("abc"));
  rig.turn();
  ASSERT_TRUE(client.sink->end);
  EXPECT_THAT(client.sink->end->error->message(), HasSubstr("more than 64 times"));
}

TEST(RoleContract, RoleThatThrowsFailsItsBatchAndNothingElse) {
  PipelineRig rig;
  bool throws = true;
  rig.stage(function_role([&throws](const Item& item, ItemSink& out) {
              if (throws) throw std::runtime_error("broken role");
              if (item.kind == ItemKind::request) out.emit(item.request, ItemKind::end, "stop");
            }),
            true)
      .make();
  auto client = rig.start(PipelineRig::completion("abc"));
  rig.turn();
  ASSERT_TRUE(client.sink->end);
  EXPECT_THAT(client.sink->end->error->message(), HasSubstr("broken role"));
  throws = false;
  auto next = rig.start(PipelineRig::completion("abc"));
  rig.turn();
  ASSERT_TRUE(next.sink->end);
  EXPECT_FALSE(next.sink->end->error);
}

TEST(RoleContract, ChoicesThatNeverRanStillEnd) {
  PipelineRig rig;
  rig.stage(function_role(on_request({{ItemKind::end, "stop"}})), true).make();
  auto request = PipelineRig::completion("abc");
  request.n_choices = 3;
  auto client = rig.start(request);
  rig.turn();
  ASSERT_TRUE(client.sink->end);
  EXPECT_EQ(client.sink->finishes.size(), 3U);
  EXPECT_EQ(client.sink->finishes[2], pipeline::FinishReason::stop);
}

TEST(RoleContract, RolesOwnPromptStartsFromNeutralSettings) {
  PipelineRig rig;
  rig.stage(function_role(on_request(
                {{ItemKind::model_request,
                  R"({"messages":[{"role":"user","content":"<|im_end|>"}],"max_tokens":4})"}})),
            true)
      .make();
  auto request = PipelineRig::completion("abc");
  request.stop.stop_strings = {"x"};
  request.sampling.logit_bias = {{5, 3.0F}};
  request.n_choices = 2;
  auto client = rig.start(request);
  rig.turn();
  const auto& asked = rig.run().asked();
  EXPECT_TRUE(asked.stop.stop_strings.empty());
  EXPECT_TRUE(asked.sampling.logit_bias.empty());
  EXPECT_EQ(asked.streams.size(), 1U) << "only the client's own prompt has n choices";
  EXPECT_EQ(std::count(asked.prompt.begin(), asked.prompt.end(), kEndOfTurnToken), 1);
}

}  // namespace
}  // namespace luna::test
