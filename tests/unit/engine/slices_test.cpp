// Sequences whose KV lies in several groups: nobody can tell from an answer.
#include "support/slicing_policy.hpp"
#include "support/varied_requests.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>

namespace luna::test {
namespace {

constexpr std::uint32_t kPartitionBlocks = LUNA_PARTITION_TOKENS / 32;

FakeModelOptions group_of(std::uint32_t n_blocks, std::uint32_t n_lanes = 1) {
  FakeModelOptions options;
  options.n_kv_blocks = n_blocks;
  options.n_lanes = n_lanes;
  options.n_shards = n_lanes;
  options.n_positions_max = 4096;
  options.completion = Completion::deferred;
  return options;
}

EngineOptions inline_copies() {
  EngineOptions options;
  options.copies_at_once = true;
  return options;
}

std::uint64_t n_slots_served(EngineRig& rig) {
  std::uint64_t n = 0;
  for (FakeDevice& device : rig.fake.devices)
    n += device.n_slots_served;
  for (const auto& other : rig.others)
    for (FakeDevice& device : other->devices)
      n += device.n_slots_served;
  return n;
}

TEST(EngineSlices, ARequestLargerThanItsGroupAnswersAsOnOneDevice) {
  for (const std::uint32_t n_lanes : {1U, 2U}) {
    EngineRig one(group_of(128));
    const Asked expected = one.submit(EngineRig::request(some_prompt(3000, 5), 60));
    one.run();
    EngineRig rig(group_of(30, n_lanes),
                  slicing_scheduler(),
                  inline_copies(),
                  {group_of(30, n_lanes), group_of(25, n_lanes), group_of(40, n_lanes)});
    EXPECT_TRUE(rig.engine->can_fit(3000, 60, 1));
    // 24 + 24 + 24 + 40 blocks in whole partitions.
    EXPECT_TRUE(rig.engine->can_fit(112 * 32 - 60, 60, 1));
    EXPECT_FALSE(rig.engine->can_fit(112 * 32 - 59, 60, 1));
    const Asked asked = rig.submit(EngineRig::request(some_prompt(3000, 5), 60));
    rig.run();
    EXPECT_EQ(asked.tokens(), expected.tokens()) << n_lanes;
    EXPECT_GT(n_slots_served(rig), 100'000U);
    EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
    EXPECT_EQ(rig.stats.n_preempted.load(), 0U);
    rig.expect_empty();
  }
}

TEST(EngineSlices, ManyBesideEachOtherAnswerAsAlone) {
  EngineRig one(group_of(512));
  EngineRig rig(group_of(62), slicing_scheduler(), inline_copies(), {group_of(62), group_of(110)});
  const auto ask = [](EngineRig& server) {
    std::vector<Asked> asked;
    for (std::uint32_t i = 0; i < 12; ++i) {
      auto request = varied_request(i);
      request->prompt = some_prompt(i % 4 == 0 ? 1500 : 20 + 30 * i, i);
      asked.push_back(server.submit(std::move(request)));
    }
    server.run();
    return asked;
  };
  const std::vector<Asked> expected = ask(one);
  const std::vector<Asked> asked = ask(rig);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same(asked[i], expected[i]);
  }
  EXPECT_GT(n_slots_served(rig), 1000U);
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
  rig.expect_empty();
}

/// The snapshot and plan of each turn go through the test.
struct Script {
  std::vector<luna_action> actions;  // of the next plan
  std::vector<luna_slice_row> slices;
  std::vector<luna_req_row> rows;
  bool is_alone = false;  // nothing else is planned beside them
  SlicingPolicy rest{0};  // runs what is not scripted

  PlanFunction policy() {
    return [this](const luna_snapshot& snapshot, luna_plan& plan) {
      EXPECT_TRUE(Snapshot(&snapshot).takes(LUNA_VERB_SLICE));
      rows.assign(snapshot.reqs, snapshot.reqs + snapshot.n_reqs);
      slices.assign(snapshot.slices, snapshot.slices + snapshot.n_slices);
      const luna_status status = rest(snapshot, plan);
      if (std::exchange(is_alone, false)) plan.n_actions = 0;
      for (const luna_action& action : std::exchange(actions, {}))
        plan.actions[plan.n_actions++] = action;
      return status;
    };
  }
  static luna_action slice(std::uint32_t device, std::uint32_t first, std::uint32_t n) {
    return {0, LUNA_VERB_SLICE, 0, device, first, {n}, {0}};
  }
};

/// A rig with one long row that decodes.
struct Decoding {
  Script script;
  EngineRig one{group_of(128)};
  EngineRig rig;
  Asked expected;
  Asked asked;

  explicit Decoding(const EngineOptions& options = inline_copies())
      : rig(group_of(64),
            slicing_scheduler(script.policy()),
            options,
            {group_of(64), group_of(20)}) {
    auto prompt = some_prompt(900, 3);
    auto request = EngineRig::request(prompt, 400);
    request->stop.ignore_eos = true;
    asked = rig.submit(std::move(request));
    request = EngineRig::request(prompt, 400);
    request->stop.ignore_eos = true;
    expected = one.submit(std::move(request));
    one.run();
    until([this] { return asked.tokens().size() > 10; });
    home = script.rows.at(0).device;
  }
  template <typename Condition>
  void until(Condition&& is_true) {
    for (int turn = 0; turn < 5000 && !is_true(); ++turn) {
      if (!rig.engine->advance()) complete();
      rig.clock.advance(std::chrono::milliseconds(1));
      ASSERT_EQ(rig.engine->audit_kv(), "");
    }
    EXPECT_TRUE(is_true());
  }
  void complete() {
    rig.fake.complete();
    for (const auto& other : rig.others)
      other->complete();
  }
  /// Whether exactly these lie away, as {device, first, n, is_copying}.
  [[nodiscard]] bool lies(const std::vector<std::array<std::uint32_t, 4>>& wanted) const {
    if (script.slices.size() != wanted.size()) return false;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const luna_slice_row& row = script.slices[i];
      if (std::array{row.device, row.first_token, row.n_tokens, row.is_copying} != wanted[i])
        return false;
    }
    return true;
  }
  void finish() {
    rig.run();
    EXPECT_EQ(asked.tokens(), expected.tokens());
    rig.expect_empty();
  }

  std::uint32_t home = 0;
};

TEST(EngineSlices, PartitionsGoChangePlacesAndComeBackWhileTheRowRuns) {
  Decoding row;
  const std::uint32_t a = (row.home + 1) % 3;
  const std::uint32_t b = (row.home + 2) % 3;
  row.script.actions = {Script::slice(a, 0, 512), Script::slice(b, 512, 256)};
  row.until([&] { return row.lies({{a, 0, 512, 0}, {b, 512, 256, 0}}); });
  EXPECT_EQ(row.script.rows[0].slice_first_token, 0U);
  EXPECT_GE(row.script.rows[0].slice_end_token, 768U);
  row.script.actions = {Script::slice(b, 256, 256)};  // from guest to guest
  row.until([&] { return row.lies({{a, 0, 256, 0}, {b, 256, 512, 0}}); });
  row.script.actions = {Script::slice(row.home, 0, 256), Script::slice(row.home, 512, 256)};
  row.until([&] { return row.lies({{b, 256, 256, 0}}); });
  row.script.actions = {Script::slice(row.home, 256, 256)};
  row.until([&] { return row.lies({}); });
  EXPECT_EQ(row.rig.stats.n_plans_rejected.load(), 0U);
  row.finish();
}

TEST(EngineSlices, ThePolicyIsToldTheAttentionThatEachPartGets) {
  Decoding row;
  const std::uint32_t a = (row.home + 1) % 3;
  const std::uint32_t b = (row.home + 2) % 3;
  row.script.actions = {Script::slice(a, 0, 512), Script::slice(b, 512, 256)};
  row.until([&] { return row.lies({{a, 0, 512, 0}, {b, 512, 256, 0}}); });
  row.until([&] { return row.script.slices[0].mass > 0.0F; });
  // The fake devices pay every position the same.
  const auto n_seen = static_cast<float>(row.script.rows[0].n_computed);
  EXPECT_NEAR(row.script.slices[0].mass, 512.0F / n_seen, 1e-4F);
  EXPECT_NEAR(row.script.slices[1].mass, 256.0F / n_seen, 1e-4F);
  EXPECT_GT(row.rig.stats.groups[a].guest_attention.load(),
            row.rig.stats.groups[b].guest_attention.load());
  EXPECT_EQ(row.rig.stats.groups[row.home].guest_attention.load(), 0U);
  row.script.actions = {Script::slice(row.home, 0, 512), Script::slice(row.home, 512, 256)};
  row.until([&] { return row.lies({}); });
  row.script.actions = {Script::slice(a, 0, 256)};
  row.until([&] { return row.lies({{a, 0, 256, 0}}); });
  EXPECT_EQ(row.script.slices[0].mass, 0.0F) << "what was told of it before is not";
  row.finish();
}

TEST(EngineSlices, WhatIsIllegalIsRefusedWhole) {
  Decoding row;
  const std::uint32_t a = (row.home + 1) % 3;
  const auto refused = [&](std::vector<luna_action> actions) {
    const std::uint64_t before = row.rig.stats.n_plans_rejected.load();
    row.script.actions = std::move(actions);
    row.until([&] { return row.rig.stats.n_plans_rejected.load() > before; });
    const std::size_t n_tokens = row.asked.tokens().size();
    row.until([&] { return row.asked.tokens().size() > n_tokens; });  // it goes on
    EXPECT_TRUE(row.lies({}));
  };
  refused({Script::slice(99, 0, 256)});                             // no such device
  refused({Script::slice(row.home, 0, 256)});                       // lies there
  refused({Script::slice(a, 0, 100)});                              // no whole partition
  refused({Script::slice(a, 128, 256)});                            // likewise
  refused({Script::slice(a, 0, 0)});                                // nothing
  refused({Script::slice(a, 768, 256)});                            // not closed
  refused({Script::slice(a, 0, 512), Script::slice(a, 256, 256)});  // twice
  refused({Script::slice(a, 0, 768)});                              // too few blocks there
  row.finish();
}

TEST(EngineSlices, ASlicedRowDoesNotMoveBeforeItIsWholeAgain) {
  Decoding row;
  const std::uint32_t a = (row.home + 2) % 3;  // the one that has room for all of it
  row.script.actions = {Script::slice(a, 0, 256)};
  row.until([&] { return row.lies({{a, 0, 256, 0}}); });
  const luna_action move{0, LUNA_VERB_MOVE, 0, a, 0, {0}, {0}};
  row.script.actions = {move};
  row.until([&] { return row.rig.stats.n_plans_rejected.load() == 1; });
  row.script.actions = {Script::slice(row.home, 0, 256)};
  row.until([&] { return row.lies({}); });
  row.script.actions = {move};
  row.until([&] { return row.rig.stats.n_moves.load() == 1; });
  EXPECT_EQ(row.rig.stats.n_plans_rejected.load(), 1U);
  row.finish();
}

TEST(EngineSlices, ACopyUnderWayEndsWithItsRow) {
  EngineOptions options;  // on a thread: it may be anywhere
  Decoding row(options);
  row.script.actions = {Script::slice((row.home + 2) % 3, 0, 768)};
  row.until([&] { return row.script.actions.empty(); });
  row.rig.engine->cancel(row.asked.id);
  row.rig.run();
  while (row.rig.stats.n_kv_blocks_used.load() > 0) {
    row.rig.engine->advance();
    ASSERT_EQ(row.rig.engine->audit_kv(), "");
    std::this_thread::yield();
  }
  row.rig.expect_empty();
}

TEST(EngineSlices, APreemptedRowGivesAllBackAndIsComputedAgain) {
  Decoding row;
  const std::uint32_t a = (row.home + 1) % 3;
  row.script.actions = {Script::slice(a, 0, 512)};
  row.until([&] { return row.lies({{a, 0, 512, 0}}); });
  row.script.actions = {{0, LUNA_VERB_PREEMPT, 0, 0, 0, {0}, {0}}};
  row.script.is_alone = true;
  row.until([&] { return row.rig.stats.n_preempted.load() == 1 && row.lies({}); });
  EXPECT_EQ(row.rig.stats.n_plans_rejected.load(), 0U);
  row.finish();
}

TEST(EngineSlices, ACopyThatFailsLeavesTheRowAtHome) {
  Decoding row;
  const std::uint32_t a = (row.home + 1) % 3;
  FakeModel& at_home = row.home == 0 ? row.rig.fake : *row.rig.others[row.home - 1];
  at_home.devices[0].fail_next_export = true;
  row.script.actions = {Script::slice(a, 0, 512)};
  row.until([&] { return row.script.actions.empty(); });
  row.until([&] { return row.lies({}); });
  row.finish();
}

TEST(EngineSlices, APrefixThatIsSlicedIsSharedNoMore) {
  Script script;
  EngineRig rig(
      group_of(100), slicing_scheduler(script.policy()), inline_copies(), {group_of(100)});
  EngineRig one(group_of(200));
  const auto prompt = some_prompt(800, 9);
  auto ask = [&](EngineRig& engine, std::uint32_t n) {
    auto request = EngineRig::request(prompt, n);
    request->stop.ignore_eos = true;
    return engine.submit(std::move(request));
  };
  const Asked expected = ask(one, 200);
  one.run();
  const Asked first = ask(rig, 200);
  const auto turn_until = [&](auto&& is_true) {
    for (int turn = 0; turn < 5000 && !is_true(); ++turn) {
      if (!rig.engine->advance()) {
        rig.fake.complete();
        rig.others[0]->complete();
      }
      rig.clock.advance(std::chrono::milliseconds(1));
      ASSERT_EQ(rig.engine->audit_kv(), "");
    }
    ASSERT_TRUE(is_true());
  };
  turn_until([&] { return first.tokens().size() > 5; });
  const std::uint32_t home = script.rows[0].device;
  script.actions = {Script::slice(1 - home, 256, 256)};
  turn_until([&] { return !script.slices.empty() && script.slices[0].is_copying == 0; });
  // Two more of the same prompt, one in each group: the first partition is still found at home.
  const Asked second = ask(rig, 200);
  const Asked third = ask(rig, 200);
  rig.run();
  for (const Asked* asked : {&first, &second, &third})
    EXPECT_EQ(asked->tokens(), expected.tokens());
  rig.expect_empty();
}

// ---- The choice

struct ChoiceRig {
  std::vector<luna_slice_row> slices;
  luna_req_row row{};
  luna_snapshot snapshot{};
  SliceChoice choice;

  std::vector<std::array<std::uint32_t, 3>> choose(std::uint32_t n_blocks,
                                                   std::vector<SliceRoom> rooms) {
    snapshot.kv_block_tokens = 32;
    snapshot.req_stride = sizeof(luna_req_row);
    snapshot.slice_stride = sizeof(luna_slice_row);
    snapshot.reqs = &row;
    snapshot.n_reqs = 1;
    snapshot.slices = slices.data();
    snapshot.n_slices = static_cast<std::uint32_t>(slices.size());
    std::vector<std::array<std::uint32_t, 3>> chosen;
    for (const SliceShare& s : choice.choose(Snapshot(&snapshot), 0, n_blocks, rooms))
      chosen.push_back({s.device, s.first_token, s.n_tokens});
    return chosen;
  }
};
using Chosen = std::vector<std::array<std::uint32_t, 3>>;

TEST(SliceChoice, TheOldestGoToWhereMostIsFreeInUnequalShares) {
  ChoiceRig rig;
  rig.row.slice_end_token = 10 * LUNA_PARTITION_TOKENS;
  const std::vector<SliceRoom> rooms = {
      {1, 3 * kPartitionBlocks}, {2, 6 * kPartitionBlocks}, {3, 7}};
  EXPECT_EQ(rig.choose(5 * kPartitionBlocks, rooms), (Chosen{{1, 0, 256}, {2, 256, 1024}}));
  EXPECT_EQ(rig.choose(1, rooms), (Chosen{{2, 0, 256}}));
  EXPECT_EQ(rig.choose(1000, rooms), (Chosen{{1, 0, 768}, {2, 768, 1536}}));
  EXPECT_EQ(rig.choose(1, {{3, 7}}), Chosen{});
}

TEST(SliceChoice, WhatIsAwayOrOnItsWayOrSharedStaysOut) {
  ChoiceRig rig;
  rig.row.slice_first_token = 256;
  rig.row.slice_end_token = 5 * LUNA_PARTITION_TOKENS;
  rig.slices = {{0, 4, 512, 256, 0, 0.0F}, {7, 4, 256, 256, 0, 0.0F}, {0, 4, 1024, 256, 1, 0.0F}};
  EXPECT_EQ(rig.choose(100, {{1, 100}}), (Chosen{{1, 256, 256}, {1, 768, 256}}));
}

}  // namespace
}  // namespace luna::test
