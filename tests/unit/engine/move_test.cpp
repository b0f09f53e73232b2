// Sequences that change groups with their KV while they run: nobody can tell from an answer.
#include "core/engine/kv_copier.hpp"
#include "support/moving_policy.hpp"
#include "support/test_seed.hpp"
#include "support/varied_requests.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <random>
#include <string>
#include <thread>

namespace luna::test {
namespace {

using engine::GroupId;
using engine::RetireMode;
using pipeline::FinishReason;

FakeModelOptions group_of(std::uint32_t n_shards, std::uint32_t n_lanes) {
  FakeModelOptions options;
  options.n_shards = n_shards;
  options.n_lanes = n_lanes;
  options.n_kv_blocks = 48;
  options.n_seqs_max = 16;
  options.n_draft_rows_max = 16;
  options.completion = Completion::deferred;
  return options;
}

EngineOptions at_once() {
  EngineOptions options;
  options.copies_at_once = true;
  options.speculation = {.n_draft_max = 4, .lengths = {.n_min = 1, .n_max = 3}};
  return options;
}

/// Turns until all have ended, with devices and copies that take their time.
void run_to_end(EngineRig& rig, const std::vector<Asked>& asked) {
  const auto all_ended = [&] { return std::ranges::all_of(asked, &Asked::ended); };
  for (std::size_t turn = 0; turn < 2'000'000 && !all_ended(); ++turn) {
    if (!rig.engine->advance()) rig.complete();
    rig.clock.advance(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(all_ended());
  rig.run();
  // The thread may still copy for a sequence that has ended: its blocks are free when it is done.
  for (std::size_t turn = 0; turn < 2'000'000 && rig.stats.n_kv_blocks_used.load() != 0; ++turn) {
    std::this_thread::yield();
    rig.engine->advance();
  }
}

void expect_answers_of_one_device(std::vector<FakeModelOptions> groups,
                                  const EngineOptions& options,
                                  std::uint32_t one_in) {
  EngineRig one(group_of(1, 1));
  const Answers expected = ask_all(one, 32);
  const FakeModelOptions first = groups.front();
  groups.erase(groups.begin());
  EngineRig rig(first, mover(at_times(one_in, one_in)), options, groups);
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 32; ++i)
    asked.push_back(rig.submit(varied_request(i), 1 + i % 3));
  run_to_end(rig, asked);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same(asked[i], expected.asked[i]);
  }
  // How many there are depends on how fast a thread copies.
  EXPECT_GT(rig.stats.n_moves.load(), options.copies_at_once ? 20U : 0U);
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
  rig.expect_empty();
}

TEST(Moves, ChangeNoAnswer) {
  for (const std::uint32_t one_in : {3U, 20U}) {
    expect_answers_of_one_device({group_of(1, 1), group_of(1, 1)}, at_once(), one_in);
    expect_answers_of_one_device(
        {group_of(2, 2), group_of(2, 2), group_of(2, 1)}, at_once(), one_in);
  }
}

TEST(Moves, CopiedByAThreadChangeNoAnswer) {
  EngineOptions options = at_once();
  options.copies_at_once = false;
  expect_answers_of_one_device({group_of(2, 2), group_of(2, 2)}, options, 5);
}

TEST(Moves, OfPrunedSequencesChangeNoAnswer) {
  FakeModelOptions group = group_of(1, 1);
  group.prune_keep_percent = 40;
  EngineRig one(group);
  EngineRig rig(group, mover(at_times(1, 4)), at_once(), {group});
  std::vector<Asked> expected;
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 8; ++i) {
    expected.push_back(one.submit(EngineRig::request(some_prompt(100 + 10 * i, i), 40)));
    asked.push_back(rig.submit(EngineRig::request(some_prompt(100 + 10 * i, i), 40)));
  }
  one.run();
  run_to_end(rig, asked);
  for (std::size_t i = 0; i < asked.size(); ++i)
    expect_same(asked[i], expected[i]);
  EXPECT_GT(rig.stats.n_moves.load(), 10U);
  rig.expect_empty();
}

TEST(Moves, HoldASequenceForTwoStepsAtMost) {
  EngineRig rig(group_of(1, 1),
                mover([](Row row) { return row->n_generated % 20 == 10; }),
                at_once(),
                {group_of(1, 1)});
  // Another keeps each group at work: its steps are the clock.
  std::vector<Asked> others;
  for (std::uint32_t i = 0; i < 2; ++i) {
    others.push_back(rig.submit(EngineRig::request(some_prompt(10, i), 200)));
  }
  const Asked asked = rig.submit(EngineRig::request(some_prompt(100, 7), 100));
  std::size_t n_tokens = 0;
  std::uint64_t last_step = 0;
  std::uint64_t gap_max = 0;
  while (!asked.ended()) {
    if (!rig.engine->advance()) rig.complete();
    rig.clock.advance(std::chrono::milliseconds(1));
    if (asked.tokens().size() == n_tokens) continue;
    const std::uint64_t now = rig.stats.n_steps.load();
    if (n_tokens > 0) gap_max = std::max(gap_max, now - last_step);
    n_tokens = asked.tokens().size();
    last_step = now;
  }
  EXPECT_GT(rig.stats.n_moves.load(), 3U);
  EXPECT_LE(gap_max, 2U * (1 + 2)) << "two groups step side by side";
  rig.run();
  rig.expect_empty();
}

TEST(Moves, WhatIsInTheOtherPrefixCacheIsNotCopied) {
  bool moves = false;
  EngineRig rig(group_of(1, 1),
                mover([&](Row row) { return moves && row.is_decoding(); }),
                at_once(),
                {group_of(1, 1)});
  // The first leaves its prompt in one group, the second moves there with the same prompt.
  rig.submit(EngineRig::request(some_prompt(130, 5), 4));
  rig.run();
  const Asked asked = rig.submit(EngineRig::request(some_prompt(130, 5), 60));
  const auto turn = [&rig] {
    if (!rig.engine->advance()) rig.complete();
    rig.clock.advance(std::chrono::milliseconds(1));
  };
  while (asked.tokens().size() < 3)
    turn();
  moves = true;
  while (rig.stats.n_moves.load() == 0 && !asked.ended())
    turn();
  moves = false;
  EXPECT_EQ(rig.stats.n_moved_blocks.load(), 1U) << "four of five were there";
  rig.run();
  EXPECT_EQ(asked.tokens().size(), 60U);
  rig.expect_empty();
}

TEST(Moves, ACopyThatFailsLeavesTheSequenceWhereItIs) {
  EngineRig one(group_of(1, 1));
  const Asked expected = one.submit(EngineRig::request(some_prompt(100, 3), 60));
  one.run();
  EngineRig rig(group_of(2, 1), mover(at_times(2, 4)), at_once(), {group_of(2, 1)});
  std::vector<Asked> asked = {rig.submit(EngineRig::request(some_prompt(100, 3), 60))};
  for (int turn = 0; turn < 20'000 && !asked[0].ended(); ++turn) {
    rig.fake.devices[1].fail_next_export = true;
    rig.others[0]->devices[0].fail_next_export = true;
    if (!rig.engine->advance()) rig.complete();
    rig.clock.advance(std::chrono::milliseconds(1));
    ASSERT_EQ(rig.engine->audit_kv(), "");
  }
  rig.run();
  expect_same(asked[0], expected);
  EXPECT_GT(rig.stats.n_moves_failed.load(), 5U);
  EXPECT_EQ(rig.stats.n_moves.load(), 0U);
  rig.expect_empty();
}

TEST(Moves, OfASequenceThatEndsStopCopying) {
  bool moves = false;
  EngineOptions options = at_once();
  options.copies_at_once = false;
  EngineRig rig(group_of(2, 1),
                mover([&](Row row) { return moves && row.is_decoding(); }),
                options,
                {group_of(2, 1)});
  std::atomic<int> n_exports = 0;
  std::atomic<bool> may_go_on = false;
  for (FakeModel* group : {&rig.fake, rig.others[0].get()}) {
    for (FakeDevice& device : group->devices) {
      device.on_export = [&] {
        ++n_exports;
        while (!may_go_on)
          std::this_thread::yield();
      };
    }
  }
  const Asked asked = rig.submit(EngineRig::request(some_prompt(100, 3), 30));
  const auto turn = [&rig] {
    if (!rig.engine->advance()) rig.complete();
    rig.clock.advance(std::chrono::milliseconds(1));
  };
  while (asked.tokens().size() < 3)
    turn();
  moves = true;
  while (n_exports == 0) {
    turn();
    // The request ends in fewer turns than a busy machine needs to wake the copying thread.
    for (int i = 0; i < 100 && n_exports == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  rig.engine->cancel(asked.id);
  while (!asked.ended())
    turn();
  may_go_on = true;
  run_to_end(rig, {asked});
  EXPECT_EQ(n_exports, 1) << "of two devices";
  EXPECT_EQ(rig.stats.n_moves_failed.load(), 0U);
  rig.expect_empty();
}

TEST(Moves, TheLastBlocksOfASequenceGoAheadOfOthersAndBetween) {
  std::vector<std::string> order;  // of the copying thread, until all have ended
  std::atomic<bool> has_begun = false;
  std::atomic<bool> may_go_on = false;
  FakeModel to(group_of(2, 1));
  std::deque<FakeModel> from;
  for (const std::string name : {"running", "waiting", "urgent"}) {
    FakeModel& model = from.emplace_back(group_of(2, 1));
    for (FakeDevice& device : model.devices) {
      device.on_export = [&, name] {
        order.push_back(name);
        has_begun = true;
        while (!may_go_on)
          std::this_thread::yield();
      };
    }
  }
  const RealClock clock;
  WakeSignal wake;
  std::array<engine::KvCopy, 3> copies;
  engine::KvCopier copier(clock, wake, copies.size(), true);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    copies[i].from = &from[i].compiled;
    copies[i].to = &to.compiled;
    copies[i].from_blocks = copies[i].to_blocks = {1, 2};
    copies[i].is_urgent = i == 2;
    copier.start(copies[i]);
    while (!has_begun)
      std::this_thread::yield();
  }
  may_go_on = true;
  for (const engine::KvCopy& copy : copies)
    while (!copy.has_ended())
      std::this_thread::yield();
  EXPECT_THAT(
      order,
      ::testing::ElementsAre("running", "urgent", "urgent", "running", "waiting", "waiting"));
}

TEST(Moves, WhatIsComputedFasterThanCopiedIsComputed) {
  EngineRig one(group_of(1, 1));
  const Asked expected = one.submit(EngineRig::request(some_prompt(100, 3), 60));
  one.run();
  EngineRig rig(group_of(1, 1), mover(at_times(3, 10)), at_once(), {group_of(1, 1)});
  for (FakeModel* group : {&rig.fake, rig.others[0].get()})
    group->devices[0].on_export = [&rig] { rig.clock.advance(std::chrono::seconds(10)); };
  std::vector<Asked> asked = {rig.submit(EngineRig::request(some_prompt(100, 3), 60))};
  run_to_end(rig, asked);
  expect_same(asked[0], expected);
  EXPECT_LE(rig.stats.n_moves.load(), 2U) << "the first shows what a copy costs";
  EXPECT_GE(rig.stats.n_moves_recomputed.load(), 1U);
  rig.expect_empty();
}

/// Moves, cancels, failures and groups that leave, at random, with copies that take their time.
void expect_conservation(std::uint32_t seed) {
  SCOPED_TRACE("LUNA_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  EngineOptions options = at_once();
  options.copies_at_once = random() % 2 == 0;
  options.n_groups_max = 3;
  const std::uint32_t n_shards = 1 + static_cast<std::uint32_t>(random() % 2);
  const auto random_group = [&] {
    FakeModelOptions group = group_of(n_shards, 1 + static_cast<std::uint32_t>(random() % 2));
    group.n_kv_blocks = 14 + static_cast<std::uint32_t>(random() % 20);
    return group;
  };
  EngineRig rig(random_group(), mover(at_times(seed, 6)), options, {random_group()}, true);
  std::vector<std::pair<std::uint32_t, Asked>> asked;
  std::size_t n_added = 2;
  for (int turn = 0; turn < 700; ++turn) {
    if (random() % 10 == 0) {
      const auto i = static_cast<std::uint32_t>(random() % 40);
      asked.emplace_back(i, rig.submit(varied_request(i), 1 + i % 3));
    }
    if (!asked.empty() && random() % 40 == 0)
      rig.engine->cancel(asked[random() % asked.size()].second.id);
    FakeModel& group = rig.others.empty() || random() % 3 == 0
                           ? rig.fake
                           : *rig.others[random() % rig.others.size()];
    if (random() % 150 == 0) group.devices[0].fail_next_step = true;
    if (random() % 50 == 0) group.devices[0].fail_next_export = true;
    if (random() % 150 == 0)
      rig.engine->retire_group(GroupId{static_cast<std::uint32_t>(random() % n_added)},
                               random() % 2 == 0 ? RetireMode::at_once : RetireMode::when_idle);
    if (n_added - rig.gone.size() < 3 && random() % 30 == 0) {
      rig.add_group(random_group());
      ++n_added;
    }
    rig.engine->advance();
    ASSERT_EQ(rig.engine->audit_kv(), "") << turn;
    if (random() % 2 == 0) rig.complete();
    rig.clock.advance(std::chrono::milliseconds(1));
  }
  for (std::size_t id = 0; id < n_added; ++id)
    rig.engine->retire_group(GroupId{static_cast<std::uint32_t>(id)}, RetireMode::at_once);
  while (rig.gone.size() < n_added)
    if (!rig.engine->advance()) rig.complete();
  rig.add_group(group_of(n_shards, 1));
  std::vector<Asked> all;
  for (const auto& [i, handle] : asked)
    all.push_back(handle);
  run_to_end(rig, all);
  rig.expect_empty();
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
  for (const auto& [i, handle] : asked) {
    EngineRig alone(group_of(1, 1));
    const Asked expected = alone.submit(varied_request(i), 1 + i % 3);
    alone.run();
    const bool was_cancelled = std::ranges::any_of(handle.streams, [](const auto& stream) {
      return stream->view().end->reason == FinishReason::cancelled;
    });
    if (!was_cancelled) expect_same(handle, expected);
  }
}

TEST(Moves, ConserveBlocksUnderAnySeed) {
  const std::uint32_t seed = test_seed();
  for (std::uint32_t i = 0; i < 12; ++i)
    expect_conservation(seed + i);
}

}  // namespace
}  // namespace luna::test
