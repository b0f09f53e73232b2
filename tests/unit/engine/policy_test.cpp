// What becomes of requests under policies that err, wait, or are a few lines long.
#include "support/engine_fixture.hpp"
#include "support/few_line_policies.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luna::engine {
namespace {

using test::EngineRig;

luna_action action(std::uint32_t row, std::uint16_t verb, std::uint32_t n_tokens) {
  luna_action made{};
  made.row = row;
  made.verb = verb;
  made.n_tokens = n_tokens;
  return made;
}

TEST(KvReserve, AWaitingRowLeavesItToThoseThatHoldKv) {
  const auto run_alone_and_beside = [](std::uint32_t percent) {
    // Ten blocks; the first sequence grows to two, the second would take seven.
    test::FakeModelOptions model;
    model.n_kv_blocks = 10;
    EngineRig rig(model, std::nullopt, {.kv_reserve_percent = percent});
    auto first = rig.submit(EngineRig::request(test::some_prompt(20, 1), 40));
    rig.engine->advance();
    auto second = rig.submit(EngineRig::request(test::some_prompt(180, 2), 4));
    std::uint64_t n_together = 0;
    for (int turn = 0; turn < 8; ++turn) {
      rig.engine->advance();
      n_together = std::max(n_together, rig.stats.n_running.load());
    }
    rig.run();
    EXPECT_NE(first.end().reason, pipeline::FinishReason::failed);
    EXPECT_NE(second.end().reason, pipeline::FinishReason::failed);
    EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
    rig.expect_empty();
    return n_together;
  };
  EXPECT_EQ(run_alone_and_beside(0), 2U);
  EXPECT_EQ(run_alone_and_beside(50), 1U);  // five stay free while the first one runs
}

TEST(Engine, OneIllegalPlanCostsNothingButItself) {
  const auto inner =
      std::make_shared<plugin::Instance<luna_scheduler_if>>(test::static_scheduler());
  const auto n_calls = std::make_shared<int>(0);
  EngineRig rig({}, test::scheduler_of([inner, n_calls](const luna_snapshot& s, luna_plan& plan) {
                  luna_err err = make_err();
                  const luna_status status = inner->table().plan(inner->self(), &s, &plan, &err);
                  if (++*n_calls % 3 == 0) plan.actions[0].n_tokens += 1000;
                  return status;
                }));
  EngineRig plain;
  const auto asked = rig.submit(EngineRig::request(test::some_prompt(100, 1), 30));
  const auto expected = plain.submit(EngineRig::request(test::some_prompt(100, 1), 30));
  rig.run();
  plain.run();
  EXPECT_GT(rig.stats.n_plans_rejected.load(), 5U);
  EXPECT_EQ(asked.tokens(), expected.tokens());
  rig.expect_empty();
}

TEST(Engine, PolicyThatNeverGivesALegalPlanFailsRequestsInsteadOfHanging) {
  for (const bool is_silent : {true, false}) {
    EngineRig rig({}, test::scheduler_of([is_silent](const luna_snapshot&, luna_plan& plan) {
                    if (is_silent) return LUNA_OK;
                    plan.actions[0] = action(77, LUNA_VERB_RUN, 1);
                    plan.n_actions = 1;
                    return LUNA_OK;
                  }));
    const auto asked = rig.submit(EngineRig::request(test::some_prompt(10, 1), 30), 2);
    rig.run(100);
    ASSERT_TRUE(asked.ended());
    EXPECT_EQ(asked.end(1).reason, pipeline::FinishReason::failed);
    EXPECT_THAT(std::string(asked.end().error), ::testing::HasSubstr("no legal plan"));
    rig.expect_empty();
  }
}

TEST(Engine, RejectedRequestEndsWithAnError) {
  EngineRig rig({}, test::scheduler_of([](const luna_snapshot&, luna_plan& plan) {
                  plan.actions[0] = action(0, LUNA_VERB_REJECT, 0);
                  plan.n_actions = 1;
                  return LUNA_OK;
                }));
  const auto asked = rig.submit(EngineRig::request(test::some_prompt(10, 1), 30), 2);
  rig.run();
  EXPECT_EQ(asked.end(1).code, Code::exhausted);
  rig.expect_empty();
}

TEST(Engine, PolicyMayWaitUntilATimeItNames) {
  const auto inner =
      std::make_shared<plugin::Instance<luna_scheduler_if>>(test::static_scheduler());
  EngineRig rig({}, test::scheduler_of([inner](const luna_snapshot& s, luna_plan& plan) {
                  luna_err err = make_err();
                  if (s.now_ns >= 500'000'000)
                    return inner->table().plan(inner->self(), &s, &plan, &err);
                  plan.wake_at_ns = 500'000'000;
                  return LUNA_OK;
                }));
  const auto asked = rig.submit(EngineRig::request(test::some_prompt(10, 1), 5));
  EXPECT_TRUE(rig.engine->advance());
  EXPECT_FALSE(rig.engine->advance());
  EXPECT_EQ(rig.stats.n_plan_calls.load(), 1U);
  ASSERT_TRUE(rig.engine->next_wake());
  rig.engine->wait();  // the submit's signal is still set
  rig.engine->wait();
  EXPECT_EQ(rig.clock.now(), std::chrono::milliseconds(500));
  rig.run();
  EXPECT_EQ(asked.tokens().size(), 5U);
}

TEST(Engine, PolicyOfAFewLinesNeverStandsStill) {
  EngineRig rig({.n_kv_blocks = 8}, test::instance_of<test::ShortestFirst>());
  std::vector<test::Asked> asked;
  for (std::uint32_t i = 0; i < 20; ++i)
    asked.push_back(
        rig.submit(EngineRig::request(test::some_prompt(10 + i * 5, i), 60), 1 + i % 3));
  rig.run();
  for (const auto& one : asked)
    EXPECT_TRUE(one.ended());
  rig.expect_empty();
}

}  // namespace
}  // namespace luna::engine
