// Several groups of devices in one engine: nobody can tell from an answer which one gave it.
#include "support/few_line_policies.hpp"
#include "support/varied_requests.hpp"

#include <luna/group_choice.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace luna::test {
namespace {

using scheduler_static::StaticOptions;
using scheduler_static::StaticPolicy;
using ::testing::HasSubstr;

FakeModelOptions group_of(std::uint32_t n_shards, std::uint32_t n_lanes, std::uint32_t n_blocks) {
  FakeModelOptions options;
  options.n_shards = n_shards;
  options.n_lanes = n_lanes;
  options.n_kv_blocks = n_blocks;
  options.n_draft_rows_max = 16;
  options.completion = Completion::deferred;
  return options;
}

StaticOptions default_options() {
  return {.target_itl_ms = 100,
          .ageing_ms = 1000,
          .max_queue_ms = 0,
          .fair_tenants = true,
          .adaptive_batch = true};
}

plugin::Instance<luna_scheduler_if> routed_by(const char* router) {
  static constexpr luna_scheduler_if kTable = make_scheduler_table<StaticPolicy>({});
  return {&kTable,
          new SchedulerInstance<StaticPolicy>(std::make_unique<StaticPolicy>(default_options()),
                                              GroupRouter(router, 200.0)),
          "static"};
}

EngineOptions with_drafts() {
  EngineOptions options;
  options.speculation = {.n_draft_max = 4, .lengths = {.n_min = 1, .n_max = 3}};
  return options;
}

/// Answers of varied requests, with pre-emptions, choices and drafts, beside those of one device.
void expect_answers_of_one_device(std::vector<FakeModelOptions> groups,
                                  plugin::Instance<luna_scheduler_if> policy) {
  EngineRig one(group_of(1, 1, 64));
  const Answers expected = ask_all(one, 40);
  const FakeModelOptions first = groups.front();
  groups.erase(groups.begin());
  EngineRig rig(first, std::move(policy), with_drafts(), groups);
  const Answers answers = ask_all(rig, 40);
  for (std::size_t i = 0; i < answers.asked.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same(answers.asked[i], expected.asked[i]);
  }
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
  for (std::size_t g = 0; g <= groups.size(); ++g)
    EXPECT_GT(rig.stats.groups[g].n_steps.load(), 10U) << g;
  rig.expect_empty();
}

TEST(Groups, AnswersAreThoseOfOneDeviceWhateverTheRouter) {
  for (const char* router : {"round_robin", "least_outstanding", "sticky"}) {
    SCOPED_TRACE(router);
    expect_answers_of_one_device({group_of(1, 1, 14), group_of(1, 1, 14)}, routed_by(router));
    expect_answers_of_one_device({group_of(2, 2, 20), group_of(1, 1, 14), group_of(3, 2, 12)},
                                 routed_by(router));
  }
}

TEST(Groups, PoliciesThatKnowNothingOfThemRunThemAll) {
  expect_answers_of_one_device({group_of(1, 1, 14), group_of(1, 1, 14)},
                               instance_of<ShortestFirst>());
  expect_answers_of_one_device({group_of(1, 1, 14), group_of(2, 2, 14)},
                               instance_of<ShortestOfAll>());
}

TEST(Groups, PrunedPromptsAnswerAsOnOneDevice) {
  FakeModelOptions group = group_of(1, 1, 40);
  group.prune_keep_percent = 40;
  EngineRig one(group);
  EngineRig two(group, std::nullopt, {}, {group});
  std::vector<Asked> expected;
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 12; ++i) {
    expected.push_back(one.submit(EngineRig::request(some_prompt(100 + 10 * i, i), 20)));
    asked.push_back(two.submit(EngineRig::request(some_prompt(100 + 10 * i, i), 20)));
  }
  one.run();
  two.run();
  for (std::size_t i = 0; i < asked.size(); ++i)
    expect_same(asked[i], expected[i]);
  EXPECT_GT(two.stats.groups[1].n_steps.load(), 10U);
  two.expect_empty();
}

TEST(Groups, AStepOfOneDoesNotWaitForAnothers) {
  EngineRig rig(group_of(1, 1, 64), std::nullopt, {}, {group_of(1, 1, 64)});
  const Asked first = rig.submit(EngineRig::request(some_prompt(10, 1), 30));
  const Asked second = rig.submit(EngineRig::request(some_prompt(10, 2), 30));
  for (int turn = 0; turn < 200; ++turn) {
    rig.engine->advance();
    rig.others[0]->complete();  // the first group's device stands still
  }
  EXPECT_FALSE(first.ended());
  EXPECT_TRUE(second.ended());
  rig.run();
  EXPECT_TRUE(first.ended());
  rig.expect_empty();
}

TEST(Groups, TheRoomiestSaysWhatFitsAndGetsIt) {
  EngineRig rig(group_of(1, 1, 3), std::nullopt, {}, {group_of(1, 1, 7)});
  EXPECT_TRUE(rig.engine->can_fit(200, 20, 1));
  EXPECT_FALSE(rig.engine->can_fit(220, 20, 1));
  const Asked asked = rig.submit(EngineRig::request(some_prompt(200, 1), 20));
  rig.run();
  EXPECT_EQ(asked.tokens().size(), 20U);
  EXPECT_EQ(rig.stats.groups[0].n_steps.load(), 0U);
  EXPECT_GT(rig.stats.groups[1].n_steps.load(), 0U);
  rig.expect_empty();
}

TEST(Groups, StickyRequestsFindWhatTheirBeginningLeft) {
  EngineRig rig(group_of(1, 1, 64), routed_by("sticky"), {}, {group_of(1, 1, 64)});
  for (std::uint32_t round = 0; round < 4; ++round) {
    for (std::uint32_t i = 0; i < 4; ++i)
      rig.submit(EngineRig::request(some_prompt(100, i), 5));
    rig.run();
  }
  EXPECT_EQ(rig.stats.n_prefix_misses.load(), 4U);
  EXPECT_EQ(rig.stats.n_prefix_hits.load(), 12U);
  EXPECT_GT(rig.stats.groups[0].n_steps.load(), 0U);
  EXPECT_GT(rig.stats.groups[1].n_steps.load(), 0U);
  rig.expect_empty();
}

TEST(Groups, ARowMayBeAssignedAndRunByOnePlan) {
  std::size_t n_prefixes = 0;
  EngineRig rig(group_of(1, 1, 64),
                scheduler_of([&](const luna_snapshot& s, luna_plan& plan) {
                  for (std::uint32_t i = 0; i < s.n_reqs; ++i) {
                    const luna_req_row& row = s.reqs[i];
                    luna_action action{};
                    action.row = i;
                    if (row.state == LUNA_REQ_WAITING) {
                      // To the second group, always: what it has in its cache is told.
                      EXPECT_EQ(row.device, LUNA_NO_DEVICE);
                      std::uint32_t n_found = 0;
                      for (std::uint32_t p = 0; p < s.n_prefixes; ++p) {
                        if (s.prefixes[p].row != i) continue;
                        EXPECT_EQ(s.prefixes[p].device, 1U);
                        n_found = s.prefixes[p].n_tokens;
                        ++n_prefixes;
                      }
                      action.verb = LUNA_VERB_ASSIGN;
                      action.device = 1;
                      plan.actions[plan.n_actions++] = action;
                      action.n_tokens = row.n_prompt - n_found;
                    } else {
                      EXPECT_EQ(row.device, 1U);
                      action.n_tokens = row.n_steps > 0 ? 0 : 1;
                    }
                    action.verb = LUNA_VERB_RUN;
                    if (action.n_tokens > 0) plan.actions[plan.n_actions++] = action;
                  }
                  return LUNA_OK;
                }),
                {},
                {group_of(1, 1, 64)});
  EngineRig one;
  for (int round = 0; round < 2; ++round) {
    const Asked asked = rig.submit(EngineRig::request(some_prompt(60, 3), 20));
    const Asked expected = one.submit(EngineRig::request(some_prompt(60, 3), 20));
    rig.run();
    one.run();
    expect_same(asked, expected);
  }
  EXPECT_EQ(n_prefixes, 1U);
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
  EXPECT_EQ(rig.stats.groups[0].n_steps.load(), 0U);
  rig.expect_empty();
}

TEST(Groups, ThatAreNoCopiesOfOneModelAreRefused) {
  const auto refusal = [](const FakeModelOptions& other, const EngineOptions& options = {}) {
    FakeModel first(group_of(1, 1, 16));
    FakeModel second(other);
    const text::Tokenizer tokenizer = tiny_tokenizer();
    const auto scheduler = static_scheduler();
    VirtualClock clock;
    telemetry::EngineStats stats;
    const auto engine = Engine::create({{&first.compiled, &second.compiled},
                                        scheduler,
                                        tokenizer,
                                        clock,
                                        stats,
                                        [](void*) {},
                                        nullptr},
                                       options);
    return engine ? std::string() : engine.error().message();
  };
  FakeModelOptions other = group_of(1, 1, 99);
  EXPECT_EQ(refusal(other), "");
  other.vocab_size = 200;
  EXPECT_THAT(refusal(other), HasSubstr("differ in vocabulary: 264 and 200"));
  other = group_of(1, 1, 16);
  other.kv_block_tokens = 64;
  EXPECT_THAT(refusal(other), HasSubstr("differ in tokens of a KV block: 32 and 64"));
  other = group_of(1, 1, 16);
  other.n_positions_max = 128;
  EXPECT_THAT(refusal(other), HasSubstr("differ in context"));
  FakeModel draft;
  EngineOptions options;
  options.speculation = {.n_draft_max = 4, .draft_model = &draft.compiled};
  EXPECT_THAT(refusal(group_of(1, 1, 16), options),
              HasSubstr("it drafts for one group of devices"));
  options = {};
  options.n_groups_max = 65;
  EXPECT_THAT(refusal(group_of(1, 1, 16), options), HasSubstr("at most 64 are served"));
}

TEST(GroupRouters, EachInItsTurnLeavesOutThoseThatAreClosed) {
  RoundRobin router;
  const std::vector<GroupLoad> closed = {{}, {.is_open = false}, {}};
  EXPECT_EQ(router.choose(closed), 0U);
  EXPECT_EQ(router.choose(closed), 2U);
  EXPECT_EQ(router.choose(closed), 0U);
  EXPECT_EQ(router.choose(std::vector<GroupLoad>(2, {.is_open = false})), std::nullopt);
  EXPECT_EQ(router.choose({}), std::nullopt);
}

TEST(GroupRouters, TheLeastLoadedOfEqualOnesIsTheFirst) {
  const std::vector<GroupLoad> loads = {{.n_tokens = 9}, {.n_tokens = 4}, {.n_tokens = 4}};
  EXPECT_EQ(LeastOutstanding::choose(loads), 1U);
  EXPECT_EQ(LeastOutstanding::choose({}), std::nullopt);
}

TEST(GroupRouters, StickyFollowsThePrefixAsFarAsTheLeadGoes) {
  const StickyPrefix router(100.0);
  std::vector<GroupLoad> loads = {
      {.n_tokens = 150, .n_found = 64}, {.n_tokens = 50}, {.n_tokens = 90, .n_found = 32}};
  EXPECT_EQ(router.choose(loads), 0U);
  loads[0].n_tokens = 151;
  EXPECT_EQ(router.choose(loads), 2U);
  loads[2].n_found = 0;
  EXPECT_EQ(router.choose(loads), 1U);
  loads[0] = {.n_tokens = 60, .n_found = 64};
  loads[2] = {.n_tokens = 55, .n_found = 64};
  EXPECT_EQ(router.choose(loads), 2U) << "of equal prefixes the less loaded";
}

}  // namespace
}  // namespace luna::test
