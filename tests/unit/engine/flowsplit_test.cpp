// The policy `flowsplit` in the real engine: requests larger than any group, and rows that move.
// Nobody can tell from an answer, whatever goes wrong meanwhile.
#include "support/engine_fixture.hpp"
#include "support/flowsplit_scheduler.hpp"
#include "support/test_seed.hpp"
#include "support/varied_requests.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <thread>

namespace luna::test {
namespace {

using engine::GroupId;
using engine::RetireMode;
using pipeline::FinishReason;

FakeModelOptions group_of(std::uint32_t n_blocks, std::uint32_t n_lanes = 1) {
  FakeModelOptions options;
  options.n_kv_blocks = n_blocks;
  options.n_lanes = n_lanes;
  options.n_shards = n_lanes;
  options.n_positions_max = 8192;
  options.n_draft_rows_max = 16;
  options.completion = Completion::deferred;
  return options;
}

EngineOptions inline_copies() {
  EngineOptions options;
  options.copies_at_once = true;
  options.speculation = {.n_draft_max = 4, .lengths = {.n_min = 1, .n_max = 3}};
  return options;
}

/// Prompts of so many tokens, drawn from in every way.
std::unique_ptr<SequenceRequest> request_of(std::uint32_t n_prompt,
                                            std::uint32_t n_generated,
                                            std::uint32_t i) {
  auto request = varied_request(i);
  request->prompt = some_prompt(n_prompt, i);
  request->stop.n_generated_max = n_generated;
  return request;
}

/// An engine of groups under flowsplit, turned with devices that end their steps in any order.
class Fleet {
 public:
  Fleet(const std::vector<FakeModelOptions>& groups,
        std::uint64_t seed,
        const EngineOptions& options = inline_copies(),
        bool watches_groups = false)
      : rig(groups.front(),
            flowsplit_scheduler(),
            options,
            {groups.begin() + 1, groups.end()},
            watches_groups),
        random_(seed) {}

  void turn() {
    const bool worked = rig.engine->advance();
    ASSERT_EQ(rig.engine->audit_kv(), "");
    if (!worked || random_() % 2 == 0) complete_some(!worked);
    rig.clock.advance(std::chrono::milliseconds(1));
  }
  template <typename Condition>
  void until(Condition&& is_true) {
    for (int n = 0; n < 400'000 && !is_true() && !::testing::Test::HasFatalFailure(); ++n)
      turn();
    EXPECT_TRUE(is_true());
  }
  /// Until all have ended and what was being copied has come back.
  void finish(const std::vector<Asked>& asked) {
    until([&] { return std::ranges::all_of(asked, &Asked::ended); });
    rig.run();
    while (rig.stats.n_kv_blocks_used.load() > 0 && !::testing::Test::HasFatalFailure()) {
      rig.engine->advance();
      std::this_thread::yield();
    }
    rig.expect_empty();
    EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
  }
  FakeModel& group(std::size_t g) { return g == 0 ? rig.fake : *rig.others[g - 1]; }
  [[nodiscard]] std::size_t n_groups() const { return 1 + rig.others.size(); }

  EngineRig rig;

 private:
  void complete_some(bool all) {
    for (std::size_t g = 0; g < n_groups(); ++g)
      if (all || random_() % 2 == 0) group(g).complete();
  }
  std::mt19937_64 random_;
};

/// The answer of one group that holds everything.
Asked alone(std::unique_ptr<SequenceRequest> request) {
  EngineRig one(group_of(300));
  const Asked asked = one.submit(std::move(request));
  one.run();
  return asked;
}

TEST(FlowSplitEngine, RequestsLargerThanAGroupAnswerAsOnOneDeviceBesideShortOnes) {
  for (const std::uint32_t n_groups : {2U, 4U, 8U}) {
    const std::uint64_t seed = test_seed() + n_groups;
    SCOPED_TRACE("LUNA_TEST_SEED=" + std::to_string(test_seed()) + " groups " +
                 std::to_string(n_groups));
    std::mt19937_64 random(seed);
    std::vector<FakeModelOptions> groups;
    const auto n_lanes = 1 + static_cast<std::uint32_t>(random() % 2);
    std::uint32_t n_together = 0;
    for (std::uint32_t g = 0; g < n_groups; ++g) {
      groups.push_back(group_of(20 + static_cast<std::uint32_t>(random() % 24), n_lanes));
      n_together += groups.back().n_kv_blocks / 8 * 8 * 32;
    }
    Fleet fleet(groups, seed);
    std::vector<Asked> asked;
    std::vector<std::array<std::uint32_t, 2>> sizes;
    for (std::uint32_t i = 0; i < 16; ++i) {
      // Some are too large from the beginning, some become it while they decode.
      const std::uint32_t n_prompt = i % 4 == 0   ? n_together - 50 - 37 * i
                                     : i % 4 == 1 ? 1300 + 5 * i
                                                  : 5 + 21 * i;
      const std::uint32_t n_most = std::min({n_prompt, n_together - 160, 8000U});  // the context
      sizes.push_back({n_most, i % 4 == 1 ? 150U : 40U});
      asked.push_back(fleet.rig.submit(request_of(sizes[i][0], sizes[i][1], i)));
      for (std::uint64_t n = random() % 40; n > 0; --n)
        fleet.turn();
    }
    fleet.finish(asked);
    EXPECT_GT(fleet.rig.stats.n_kv_moves.load(), 3U);
    for (std::uint32_t i = 0; i < asked.size(); ++i) {
      SCOPED_TRACE(i);
      expect_same(asked[i], alone(request_of(sizes[i][0], sizes[i][1], i)));
    }
  }
}

TEST(FlowSplitEngine, CopiesOfAThreadChangeNoAnswer) {
  EngineOptions options = inline_copies();
  options.copies_at_once = false;
  Fleet fleet({group_of(30), group_of(30), group_of(30)}, test_seed(), options);
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 4; ++i)
    asked.push_back(fleet.rig.submit(request_of(1500 + 100 * i, 40, i)));
  fleet.finish(asked);
  for (std::uint32_t i = 0; i < 4; ++i)
    expect_same(asked[i], alone(request_of(1500 + 100 * i, 40, i)));
}

TEST(FlowSplitEngine, TwoThatCannotBothEndRunOneBehindTheOther) {
  Fleet fleet({group_of(30), group_of(30), group_of(30), group_of(30)}, test_seed());
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 3; ++i)
    asked.push_back(fleet.rig.submit(request_of(1700, 200, 7)));  // 60 of 96 blocks
  fleet.until([&] {
    EXPECT_LE(fleet.rig.stats.n_running.load(), 1U);
    return std::ranges::all_of(asked, &Asked::ended);
  });
  fleet.finish(asked);
  EXPECT_EQ(fleet.rig.stats.n_preempted.load(), 0U);
  for (const Asked& one : asked)
    EXPECT_EQ(one.tokens().size(), 200U);
}

TEST(FlowSplitEngine, ThoseThatFitTogetherRunTogether) {
  Fleet fleet({group_of(30), group_of(30), group_of(30), group_of(30)}, test_seed());
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 2; ++i)
    asked.push_back(fleet.rig.submit(request_of(1100, 200, 7)));  // 41 of 96 blocks
  std::uint64_t n_most = 0;
  fleet.until([&] {
    n_most = std::max(n_most, fleet.rig.stats.n_running.load());
    return std::ranges::all_of(asked, &Asked::ended);
  });
  EXPECT_EQ(n_most, 2U);
  fleet.finish(asked);
  EXPECT_EQ(fleet.rig.stats.n_preempted.load(), 0U);
}

TEST(FlowSplitEngine, ShortOnesPassLargeOnesThatWaitForEachOther) {
  Fleet fleet({group_of(34), group_of(34), group_of(34), group_of(34)}, test_seed());
  std::vector<Asked> large;
  for (std::uint32_t i = 0; i < 3; ++i)
    large.push_back(fleet.rig.submit(request_of(3500, 200, 7)));
  fleet.until([&] { return !large[0].tokens().empty(); });
  std::vector<Asked> small;
  for (std::uint32_t i = 0; i < 4; ++i)
    small.push_back(fleet.rig.submit(EngineRig::request(some_prompt(10, i), 20)));
  fleet.until([&] { return std::ranges::all_of(small, &Asked::ended); });
  EXPECT_FALSE(large[0].ended());
  EXPECT_TRUE(large[1].tokens().empty());
  fleet.finish(large);
  EXPECT_EQ(fleet.rig.stats.n_preempted.load(), 0U);
}

TEST(FlowSplitEngine, ALargeOneComesToItsTurnHoweverManyShortOnesCome) {
  Fleet fleet({group_of(34), group_of(34), group_of(34)}, test_seed());
  std::vector<Asked> all;
  std::uint32_t n = 0;
  const auto add_short = [&] {
    all.push_back(fleet.rig.submit(EngineRig::request(some_prompt(100, ++n), 100)));
  };
  for (int i = 0; i < 16; ++i)
    add_short();
  for (int i = 0; i < 50; ++i)
    fleet.turn();
  const Asked large = fleet.rig.submit(request_of(2500, 50, 7));
  std::size_t n_ended = 0;
  fleet.until([&] {
    // Who ends comes again.
    const auto ended = static_cast<std::size_t>(std::ranges::count_if(all, &Asked::ended));
    for (; n_ended < ended && !large.ended(); ++n_ended)
      add_short();
    return large.ended();
  });
  EXPECT_LT(n_ended, 120U);
  fleet.finish(all);
}

TEST(FlowSplitEngine, StreamingModeRefusesWhatNoGroupHoldsAndSlicesNothing) {
  auto options = shipped_flow_options();
  options.streaming_mode = true;
  EngineRig rig(
      group_of(30), flowsplit_scheduler(options), inline_copies(), {group_of(30), group_of(30)});
  EXPECT_TRUE(rig.engine->can_fit(900, 60, 1));
  const auto refused = rig.engine->can_fit(950, 60, 1);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("there are 30"));
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 12; ++i)
    asked.push_back(rig.submit(request_of(i % 3 == 0 ? 800 : 50, 60, i)));
  rig.run();
  for (std::uint32_t i = 0; i < 12; ++i)
    expect_same(asked[i], alone(request_of(i % 3 == 0 ? 800 : 50, 60, i)));
  EXPECT_EQ(rig.stats.n_kv_moves.load(), 0U);
  EXPECT_EQ(rig.stats.n_moves.load(), 0U);
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
  rig.expect_empty();
}

TEST(FlowSplitEngine, TwentyOfEightThousandTokensOverEightSmallGroupsLeaveNothingBehind) {
  const std::vector<FakeModelOptions> groups(8, group_of(34));
  Fleet fleet(groups, test_seed());
  EXPECT_TRUE(fleet.rig.engine->can_fit(8172, 20, 1));
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 20; ++i)
    asked.push_back(
        fleet.rig.submit(EngineRig::request(some_prompt(7900 + 272 * (i % 2), i % 4), 20)));
  fleet.finish(asked);
  EXPECT_EQ(fleet.rig.stats.n_preempted.load(), 0U);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const Asked expected = alone(EngineRig::request(some_prompt(7900 + 272 * (i % 2), i), 20));
    for (std::uint32_t k = i; k < asked.size(); k += 4)
      EXPECT_EQ(asked[k].tokens(), expected.tokens());
  }
}

/// Groups whose steps take the time of their rows, so that costs are fitted.
void work(EngineRig& rig) {
  if (rig.engine->advance()) return;
  for (std::size_t g = 0; g <= rig.others.size(); ++g) {
    FakeModel& group = g == 0 ? rig.fake : *rig.others[g - 1];
    const luna_step* const step = group.devices[0].pending();
    if (step == nullptr) continue;
    rig.clock.advance(std::chrono::microseconds(1000 + 2000 * step->n_rows));
    group.complete();
  }
  rig.clock.advance(std::chrono::milliseconds(1));
}

TEST(FlowSplitEngine, RowsThatMoveToAnIdleGroupAnswerAsOnOneDevice) {
  for (const bool at_once : {true, false}) {
    EngineOptions options = inline_copies();
    options.copies_at_once = at_once;
    options.n_groups_max = 2;
    EngineRig rig(group_of(64), flowsplit_scheduler(), options);
    std::vector<Asked> asked;
    for (std::uint32_t i = 0; i < 8; ++i)
      asked.push_back(rig.submit(request_of(100 + i, 200, 8 * i + 7)));
    // One group holds them all, then a second comes: it is idle.
    for (int n = 0; n < 4000 && rig.stats.n_kv_blocks_used.load() < 50; ++n)
      work(rig);
    rig.add_group(group_of(64));
    const auto all_ended = [&] { return std::ranges::all_of(asked, &Asked::ended); };
    for (int n = 0; n < 200'000 && !all_ended(); ++n)
      work(rig);
    EXPECT_TRUE(all_ended());
    rig.run();
    EXPECT_GT(rig.stats.n_moves.load() + rig.stats.n_moves_recomputed.load(), 0U);
    EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
    rig.expect_empty();
    for (std::uint32_t i = 0; i < 8; ++i)
      expect_same(asked[i], alone(request_of(100 + i, 200, 8 * i + 7)));
  }
}

TEST(FlowSplitEngine, AGroupThatIsLostAmidSlicesTakesNoRequestWithIt) {
  for (std::size_t lost = 0; lost < 4; ++lost) {
    SCOPED_TRACE("LUNA_TEST_SEED=" + std::to_string(test_seed()) + " lost " + std::to_string(lost));
    Fleet fleet(std::vector<FakeModelOptions>(4, group_of(34)), test_seed() + lost);
    std::vector<Asked> asked;
    for (std::uint32_t i = 0; i < 6; ++i)
      asked.push_back(fleet.rig.submit(request_of(i % 3 == 0 ? 2400 : 60, 60, i)));
    fleet.until([&] { return asked[0].tokens().size() > 10; });
    EXPECT_GT(fleet.rig.stats.n_kv_moves.load(), 0U);
    fleet.rig.engine->retire_group(GroupId{static_cast<std::uint32_t>(lost)},
                                   lost % 2 == 0 ? RetireMode::at_once : RetireMode::when_idle);
    fleet.finish(asked);
    for (std::uint32_t i = 0; i < 6; ++i)
      expect_same(asked[i], alone(request_of(i % 3 == 0 ? 2400 : 60, 60, i)));
  }
}

/// Requests of all sizes that come, are cancelled, and whose steps and copies fail.
void expect_nothing_left_behind(std::uint64_t seed) {
  SCOPED_TRACE("LUNA_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&random](std::uint32_t n) {
    return static_cast<std::uint32_t>(random() % n);
  };
  EngineOptions options = inline_copies();
  options.copies_at_once = below(2) == 0;
  const std::uint32_t n_lanes = 1 + below(2);
  std::vector<FakeModelOptions> groups(3 + below(2));
  for (FakeModelOptions& group : groups)
    group = group_of(18 + below(20), n_lanes);
  Fleet fleet(groups, seed, options);
  std::vector<Asked> asked;
  for (int turn = 0; turn < 1200; ++turn) {
    if (below(25) == 0) {
      const std::uint32_t n_prompt = below(3) == 0 ? 600 + below(600) : 1 + below(150);
      asked.push_back(
          fleet.rig.submit(request_of(n_prompt, 1 + below(90), below(40)), 1 + below(2)));
    }
    if (!asked.empty() && below(40) == 0)
      fleet.rig.engine->cancel(asked[below(static_cast<std::uint32_t>(asked.size()))].id);
    FakeDevice& device = fleet.group(below(static_cast<std::uint32_t>(groups.size()))).devices[0];
    // Devices of a row that failed once cannot tell whose message comes next: they are lost.
    if (n_lanes == 1 && below(200) == 0) device.fail_next_step = true;
    if (below(60) == 0) device.fail_next_export = true;
    fleet.turn();
  }
  for (std::size_t g = 0; g < groups.size(); ++g)
    fleet.group(g).devices[0].fail_next_step = false;
  for (const Asked& one : asked)
    if (below(3) == 0) fleet.rig.engine->cancel(one.id);
  fleet.finish(asked);
}

TEST(FlowSplitEngine, NothingIsLeftBehindUnderAnySeed) {
  for (std::uint64_t i = 0; i < 12; ++i)
    expect_nothing_left_behind(test_seed() + i);
}

}  // namespace
}  // namespace luna::test
