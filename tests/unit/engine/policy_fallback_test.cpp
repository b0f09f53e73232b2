// Policies that keep failing under live requests: they are replaced where a fallback is written,
// and what runs goes on as if nothing had been.
#include "core/plugin/catalog.hpp"
#include "support/engine_fixture.hpp"
#include "support/slicing_policy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luna::engine {
namespace {

using test::Asked;
using test::EngineRig;
using Policy = plugin::Instance<luna_scheduler_if>;
using ::testing::HasSubstr;

/// Plans well for a while, and then as another policy does.
Policy turning_bad(std::shared_ptr<Policy> bad, int n_good) {
  const auto good = std::make_shared<Policy>(test::static_scheduler());
  const auto n_calls = std::make_shared<int>(0);
  return test::scheduler_of([=](const luna_snapshot& s, luna_plan& plan) {
    const Policy& asked = (*n_calls)++ < n_good ? *good : *bad;
    luna_err err = make_err();
    return asked->plan(asked.self(), &s, &plan, &err);
  });
}

Policy standing_still() {
  return test::scheduler_of([](const luna_snapshot&, luna_plan&) { return LUNA_OK; });
}

std::vector<Policy> fallbacks(Policy first) {
  std::vector<Policy> list;
  list.push_back(std::move(first));
  return list;
}

/// Ten requests, more than run at a time, of which one has two choices.
std::vector<Asked> submit_some(EngineRig& rig) {
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 10; ++i)
    asked.push_back(
        rig.submit(EngineRig::request(test::some_prompt(5 + i * 17, i), 25), i == 3 ? 2 : 1));
  return asked;
}

std::vector<std::string> texts(const std::vector<Asked>& asked) {
  std::vector<std::string> texts;
  for (const Asked& one : asked)
    for (std::size_t c = 0; c < one.streams.size(); ++c) {
      EXPECT_NE(one.end(c).reason, pipeline::FinishReason::failed) << one.end(c).error;
      texts.push_back(one.text(c));
    }
  return texts;
}

std::vector<std::string> undisturbed_texts() {
  EngineRig rig;
  const auto asked = submit_some(rig);
  rig.run();
  return texts(asked);
}

std::string fault_of(const testing::TestParamInfo<const char*>& zoo) {
  return zoo.param;
}

class ZooFallback : public testing::TestWithParam<const char*> {
 protected:
  Policy zoo_policy() {
    catalog_ = plugin::Catalog::scan({{std::string(LUNA_ZOO_DIR) + "/" + GetParam()}, &services_});
    auto made = catalog_->create<luna_scheduler_if>(
        "zoo", config::RawGroup{"t.toml", "scheduler.zoo", {1, 1}, {}, {}});
    EXPECT_TRUE(made) << made.error().message();
    return std::move(*made);
  }

 private:
  const RealClock clock_{};
  plugin::HostServices services_{{&clock_, 1, {}}};
  std::unique_ptr<plugin::Catalog> catalog_;
};

TEST_P(ZooFallback, TextsAreThoseOfTheUndisturbedRun) {
  const auto expected = undisturbed_texts();
  const auto bad = std::make_shared<Policy>(zoo_policy());
  for (const int n_good : {0, 1, 7, 40}) {
    EngineRig rig({.n_lanes = 2},
                  turning_bad(bad, n_good),
                  {},
                  {},
                  false,
                  fallbacks(test::static_scheduler()));
    const auto asked = submit_some(rig);
    rig.run();
    EXPECT_EQ(texts(asked), expected) << "after " << n_good;
    EXPECT_EQ(rig.stats.n_policies_replaced.load(), 1U) << "after " << n_good;
    EXPECT_GE(rig.stats.n_plans_rejected.load(), 8U);
    rig.expect_empty();
  }
}

INSTANTIATE_TEST_SUITE_P(Faults,
                         ZooFallback,
                         testing::Values("names_no_row",
                                         "names_a_row_twice",
                                         "unknown_verb",
                                         "more_than_it_wants",
                                         "counts_too_many",
                                         "fails_in_plan",
                                         "fails_silently_in_plan",
                                         "stands_still"),
                         fault_of);

class LateFault : public ZooFallback {};

// Their plans are illegal only where rows run, or more wait than a step holds.
TEST_P(LateFault, TextsAreThoseOfTheUndisturbedRun) {
  const auto expected = undisturbed_texts();
  const auto bad = std::make_shared<Policy>(zoo_policy());
  EngineRig rig({}, turning_bad(bad, 0), {}, {}, false, fallbacks(test::static_scheduler()));
  const auto asked = submit_some(rig);
  rig.run();
  EXPECT_EQ(texts(asked), expected);
  EXPECT_EQ(rig.stats.n_policies_replaced.load(), 1U);
  rig.expect_empty();
}

INSTANTIATE_TEST_SUITE_P(Faults,
                         LateFault,
                         testing::Values("assigns_running", "too_many_tokens"),
                         fault_of);

TEST(PolicyFallback, FaultsAmongLegalPlansCountToo) {
  // One in three is illegal: never so many in a row that requests would end.
  const auto inner = std::make_shared<Policy>(test::static_scheduler());
  const auto every_third = [inner](const std::shared_ptr<int>& n_calls) {
    return test::scheduler_of([inner, n_calls](const luna_snapshot& s, luna_plan& plan) {
      luna_err err = make_err();
      const luna_status status = inner->table().plan(inner->self(), &s, &plan, &err);
      if (++*n_calls % 3 == 0) plan.actions[0].n_tokens += 1000;
      return status;
    });
  };
  const auto n_calls = std::make_shared<int>(0);
  EngineRig rig({}, every_third(n_calls), {}, {}, false, fallbacks(test::static_scheduler()));
  const auto asked = submit_some(rig);
  rig.run();
  EXPECT_EQ(texts(asked), undisturbed_texts());
  EXPECT_EQ(rig.stats.n_policies_replaced.load(), 1U);
  EXPECT_EQ(*n_calls, 24);  // the eighth fault is in the 24th plan
}

TEST(PolicyFallback, FewerFaultsThanTheSettingReplaceNobody) {
  const auto inner = std::make_shared<Policy>(test::static_scheduler());
  const auto n_calls = std::make_shared<int>(0);
  const auto thrice = test::scheduler_of([inner, n_calls](const luna_snapshot& s, luna_plan& plan) {
    luna_err err = make_err();
    const luna_status status = inner->table().plan(inner->self(), &s, &plan, &err);
    if (++*n_calls > 5 && *n_calls <= 8) plan.actions[0].n_tokens += 1000;
    return status;
  });
  for (const std::uint32_t n_max : {3U, 4U}) {
    *n_calls = 0;
    EngineRig rig({},
                  test::scheduler_of([&](const luna_snapshot& s, luna_plan& plan) {
                    luna_err err = make_err();
                    return thrice->plan(thrice.self(), &s, &plan, &err);
                  }),
                  {.n_plan_faults_max = n_max},
                  {},
                  false,
                  fallbacks(test::static_scheduler()));
    const auto asked = submit_some(rig);
    rig.run();
    EXPECT_EQ(texts(asked), undisturbed_texts());
    EXPECT_EQ(rig.stats.n_policies_replaced.load(), n_max == 3 ? 1U : 0U);
    EXPECT_EQ(rig.stats.n_plans_rejected.load(), 3U);
  }
}

TEST(PolicyFallback, RequestsOutliveEightIllegalPlansInARowWhateverTheSetting) {
  EngineRig rig({},
                standing_still(),
                {.n_plan_faults_max = 64},
                {},
                false,
                fallbacks(test::static_scheduler()));
  const auto asked = submit_some(rig);
  rig.run();
  EXPECT_EQ(texts(asked), undisturbed_texts());
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 8U);
}

TEST(PolicyFallback, FallbacksFollowEachOther) {
  std::vector<Policy> two = fallbacks(standing_still());
  two.push_back(test::static_scheduler());
  EngineRig rig({}, standing_still(), {}, {}, false, std::move(two));
  const auto asked = submit_some(rig);
  rig.run();
  EXPECT_EQ(texts(asked), undisturbed_texts());
  EXPECT_EQ(rig.stats.n_policies_replaced.load(), 2U);
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 16U);
}

TEST(PolicyFallback, AfterTheLastOneRequestsFailInsteadOfHanging) {
  EngineRig rig({}, standing_still(), {}, {}, false, fallbacks(standing_still()));
  const auto asked = rig.submit(EngineRig::request(test::some_prompt(10, 1), 30));
  rig.run(200);
  ASSERT_TRUE(asked.ended());
  EXPECT_THAT(std::string(asked.end().error), HasSubstr("no legal plan"));
  EXPECT_EQ(rig.stats.n_policies_replaced.load(), 1U);
  rig.expect_empty();
}

/// Legal plans that take as long as said, by the engine's clock.
Policy taking(VirtualClock*& clock, std::chrono::milliseconds time) {
  const auto inner = std::make_shared<Policy>(test::static_scheduler());
  return test::scheduler_of([&clock, inner, time](const luna_snapshot& s, luna_plan& plan) {
    clock->advance(time);
    luna_err err = make_err();
    return inner->table().plan(inner->self(), &s, &plan, &err);
  });
}

TEST(PolicyFallback, LatePlansAreCarriedOutAndTheirPolicyReplaced) {
  for (const bool is_late : {false, true}) {
    VirtualClock* clock = nullptr;
    EngineRig rig({},
                  taking(clock, std::chrono::milliseconds(is_late ? 21 : 20)),
                  {.plan_budget = std::chrono::milliseconds(20)},
                  {},
                  false,
                  fallbacks(test::static_scheduler()));
    clock = &rig.clock;
    const auto asked = submit_some(rig);
    rig.run();
    EXPECT_EQ(texts(asked), undisturbed_texts());
    EXPECT_EQ(rig.stats.n_plans_late.load(), is_late ? 8U : 0U);
    EXPECT_EQ(rig.stats.n_policies_replaced.load(), is_late ? 1U : 0U);
    EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
  }
}

TEST(PolicyFallback, WithoutOneLatePlansAreCountedOnly) {
  VirtualClock* clock = nullptr;
  EngineRig rig({}, taking(clock, std::chrono::milliseconds(60)));
  clock = &rig.clock;
  const auto asked = submit_some(rig);
  rig.run();
  EXPECT_EQ(texts(asked), undisturbed_texts());
  EXPECT_EQ(rig.stats.n_plans_late.load(), rig.stats.n_plan_calls.load());
  EXPECT_EQ(rig.stats.n_policies_replaced.load(), 0U);
}

TEST(PolicyFallback, OneThatCannotSliceIsRefusedBesideOneThatDoes) {
  test::FakeModel first;
  test::FakeModel second;
  const std::array<test::FakeModel*, 2> both = {&first, &second};
  test::FakeModel::let_slice(both);
  const auto tokenizer = test::tiny_tokenizer();
  VirtualClock clock;
  telemetry::EngineStats stats;
  const Policy slicing = test::slicing_scheduler();
  const std::vector<Policy> none = fallbacks(test::static_scheduler());
  EngineParts parts{
      {&first.compiled, &second.compiled}, slicing, tokenizer, clock, stats, [](void*) {}, nullptr};
  parts.fallbacks = none;
  const auto refused = Engine::create(parts, {});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("scheduler.fallback: 'static' does not slice"));
  const std::vector<Policy> also = fallbacks(test::slicing_scheduler());
  parts.fallbacks = also;
  const auto made = Engine::create(parts, {});
  EXPECT_TRUE(made) << made.error().message();
}

}  // namespace
}  // namespace luna::engine
