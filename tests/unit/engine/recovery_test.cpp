// Groups of devices that come, go and fail while requests run: their clients notice a pause only.
#include "support/test_seed.hpp"
#include "support/varied_requests.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <thread>

namespace luna::test {
namespace {

using engine::GroupId;
using engine::RetireMode;
using pipeline::FinishReason;
using ::testing::HasSubstr;

FakeModelOptions group_of(std::uint32_t n_shards, std::uint32_t n_lanes) {
  FakeModelOptions options;
  options.n_shards = n_shards;
  options.n_lanes = n_lanes;
  options.n_kv_blocks = 40;
  options.n_seqs_max = 16;
  options.n_draft_rows_max = 16;
  options.completion = Completion::deferred;
  return options;
}

EngineOptions options_of(std::uint32_t n_groups_max) {
  EngineOptions options;
  options.n_groups_max = n_groups_max;
  options.speculation = {.n_draft_max = 4, .lengths = {.n_min = 1, .n_max = 3}};
  return options;
}

/// Varied requests whose answers an engine that nothing happens to has given too: greedy and drawn,
/// with stop strings, penalties and choices.
class Streams {
 public:
  explicit Streams(std::uint32_t n) {
    EngineRig undisturbed(group_of(1, 1));
    expected_ = submit(undisturbed, n);
    undisturbed.run();
  }
  void begin(EngineRig& rig) { asked_ = submit(rig, static_cast<std::uint32_t>(expected_.size())); }
  [[nodiscard]] bool have_begun() const {
    return std::ranges::all_of(asked_, [](const Asked& one) { return !one.tokens().empty(); });
  }
  [[nodiscard]] bool have_ended() const {
    return std::ranges::all_of(asked_, [](const Asked& one) { return one.ended(); });
  }
  void expect_undisturbed() const {
    for (std::size_t i = 0; i < asked_.size(); ++i) {
      SCOPED_TRACE(i);
      expect_same(asked_[i], expected_[i]);
    }
  }
  [[nodiscard]] const std::vector<Asked>& asked() const { return asked_; }

 private:
  static std::vector<Asked> submit(EngineRig& rig, std::uint32_t n) {
    std::vector<Asked> all;
    for (std::uint32_t i = 0; i < n; ++i)
      all.push_back(rig.submit(varied_request(i), 1 + i % 3));
    return all;
  }
  std::vector<Asked> expected_;
  std::vector<Asked> asked_;
};

/// Turns until so many steps have begun.
void run_steps(EngineRig& rig, std::uint64_t n_steps) {
  while (rig.stats.n_steps.load() < n_steps) {
    if (!rig.engine->advance() && !rig.complete()) break;
    rig.clock.advance(std::chrono::milliseconds(1));
  }
  EXPECT_GE(rig.stats.n_steps.load(), n_steps);
}

TEST(Recovery, StreamsOfALostGroupGoOnInAnother) {
  Streams streams(32);
  for (const std::uint32_t device : {0U, 1U}) {
    for (const std::uint64_t n_steps : {3U, 20U, 60U}) {
      SCOPED_TRACE(std::to_string(device) + " after " + std::to_string(n_steps));
      EngineRig rig(group_of(2, 2), std::nullopt, options_of(2), {group_of(2, 2)}, true);
      streams.begin(rig);
      run_steps(rig, n_steps);
      rig.fake.devices[device].fail_next_step = true;
      rig.run();
      streams.expect_undisturbed();
      ASSERT_EQ(rig.gone.size(), 1U);
      EXPECT_EQ(rig.gone[0].group, GroupId{0});
      EXPECT_EQ(rig.gone[0].failed_device, device);
      EXPECT_FALSE(rig.stats.is_lost.load());
      EXPECT_EQ(rig.stats.n_steps_in_flight_max.load(), 2U);
      rig.expect_empty();
    }
  }
}

TEST(Recovery, NobodyNeedsToWatchWhileThereIsAnotherGroup) {
  Streams streams(12);
  EngineRig rig(group_of(2, 2), std::nullopt, options_of(2), {group_of(1, 1)});
  streams.begin(rig);
  run_steps(rig, 20);
  rig.fake.devices[1].fail_next_step = true;
  rig.run();
  streams.expect_undisturbed();
  // The last one is as the only one ever was.
  const Asked last = rig.submit(EngineRig::request(some_prompt(10, 1), 50));
  run_steps(rig, rig.stats.n_steps.load() + 5);
  rig.others[0]->devices[0].fail_next_step = true;
  rig.run();
  EXPECT_EQ(last.end().code, Code::unavailable);
  rig.expect_empty();
}

TEST(Recovery, ADeviceAloneMayFailOnceButNotTwiceInARow) {
  Streams streams(12);
  for (const int n_failures : {1, 2}) {
    EngineRig rig(group_of(1, 1), std::nullopt, options_of(2), {group_of(1, 1)}, true);
    streams.begin(rig);
    run_steps(rig, 20);
    for (int n = 0; n < n_failures; ++n) {
      rig.fake.devices[0].fail_next_step = true;
      while (rig.fake.devices[0].fail_next_step) {
        if (!rig.engine->advance()) rig.complete();
        rig.clock.advance(std::chrono::milliseconds(1));
      }
    }
    rig.run();
    streams.expect_undisturbed();
    EXPECT_EQ(rig.gone.size(), n_failures == 2 ? 1U : 0U);
    rig.expect_empty();
  }
}

TEST(Recovery, WithoutAnyGroupStreamsAreHeldUntilOneComes) {
  Streams streams(20);
  EngineRig rig(group_of(2, 2), std::nullopt, options_of(1), {}, true);
  streams.begin(rig);
  run_steps(rig, 25);
  rig.fake.devices[0].fail_next_step = true;
  rig.run();
  ASSERT_EQ(rig.gone.size(), 1U);
  EXPECT_FALSE(streams.have_ended());
  EXPECT_GT(rig.stats.n_held.load(), 0U);
  EXPECT_EQ(rig.stats.n_held.load(), rig.stats.n_waiting.load());
  EXPECT_TRUE(telemetry::is_alive(
      rig.stats, rig.clock.now() + std::chrono::hours(1), std::chrono::seconds(1)))
      << "it waits for devices, not for the engine";
  // What comes meanwhile waits too.
  const Asked late = rig.submit(EngineRig::request(some_prompt(10, 1), 5));
  rig.run();
  EXPECT_FALSE(late.ended());
  rig.add_group(group_of(3, 2));
  rig.run();
  streams.expect_undisturbed();
  EXPECT_EQ(late.tokens().size(), 5U);
  EXPECT_EQ(rig.stats.n_held.load(), 0U);
  rig.expect_empty();
}

TEST(Recovery, WhereNoneComesInTimeStreamsEndWithAnError) {
  EngineOptions options = options_of(1);
  options.recovery_timeout = std::chrono::seconds(5);
  EngineRig rig(group_of(2, 2), std::nullopt, options, {}, true);
  const Asked asked = rig.submit(EngineRig::request(some_prompt(10, 1), 100));
  run_steps(rig, 10);
  rig.fake.devices[1].fail_next_step = true;
  rig.run();
  EXPECT_FALSE(asked.ended());
  ASSERT_TRUE(rig.engine->next_wake());
  rig.engine->wait();
  rig.engine->wait();
  rig.run();
  EXPECT_EQ(asked.end().reason, FinishReason::failed);
  EXPECT_EQ(asked.end().code, Code::unavailable);
  EXPECT_THAT(std::string(asked.end().error), HasSubstr("none came in time"));
  EXPECT_GT(asked.tokens().size(), 0U) << "what it had stays";
  rig.expect_empty();
}

TEST(Recovery, WhatNoRemainingGroupCouldHoldIsHeldWhileOthersRun) {
  FakeModelOptions small = group_of(1, 1);
  small.n_kv_blocks = 3;
  EngineOptions options = options_of(2);
  options.recovery_timeout = std::chrono::seconds(1);
  EngineRig rig(small, std::nullopt, options, {group_of(1, 1)}, true);
  const Asked large = rig.submit(EngineRig::request(some_prompt(100, 1), 60));
  const Asked other = rig.submit(EngineRig::request(some_prompt(20, 2), 60));
  run_steps(rig, 10);
  rig.engine->retire_group(GroupId{1}, RetireMode::at_once);
  rig.run(600);
  EXPECT_TRUE(other.ended());
  EXPECT_FALSE(large.ended());
  EXPECT_FALSE(rig.engine->can_fit(100, 60, 1)) << "nobody else shall wait for that";
  rig.clock.advance(std::chrono::seconds(2));
  rig.run();
  EXPECT_EQ(large.end().code, Code::unavailable);
  rig.expect_empty();
}

TEST(Recovery, AGroupThatRetiresAtOnceLeavesWhatItHeldToOthers) {
  Streams streams(32);
  EngineRig rig(group_of(2, 2), std::nullopt, options_of(2), {group_of(2, 2)}, true);
  streams.begin(rig);
  run_steps(rig, 30);
  rig.engine->retire_group(GroupId{1}, RetireMode::at_once);
  rig.engine->retire_group(GroupId{7}, RetireMode::at_once);  // not there: passed over
  while (rig.gone.empty()) {
    if (!rig.engine->advance()) rig.complete();
    rig.clock.advance(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(rig.gone[0].group, GroupId{1});
  EXPECT_FALSE(rig.gone[0].failed_device);
  rig.others.clear();  // the model may go
  rig.run();
  streams.expect_undisturbed();
  rig.expect_empty();
}

TEST(Recovery, AGroupThatRetiresWhenIdleEndsWhatItHolds) {
  Streams streams(16);
  FakeModelOptions roomy = group_of(1, 1);
  roomy.n_kv_blocks = 200;  // nobody gives way for memory
  EngineRig rig(roomy, std::nullopt, options_of(2), {roomy}, true);
  streams.begin(rig);
  run_steps(rig, 10);
  const std::uint64_t n_preempted = rig.stats.n_preempted.load();
  rig.engine->retire_group(GroupId{0}, RetireMode::when_idle);
  run_steps(rig, 14);
  EXPECT_TRUE(rig.gone.empty());
  rig.run();
  streams.expect_undisturbed();
  EXPECT_EQ(rig.gone.size(), 1U);
  EXPECT_EQ(rig.stats.n_preempted.load(), n_preempted);
  rig.expect_empty();
}

TEST(Recovery, WhatALeavingGroupHoldsMovesToOthersWithItsKv) {
  Streams streams(16);
  for (const bool at_once : {true, false}) {
    FakeModelOptions roomy = group_of(2, 2);
    roomy.n_kv_blocks = 200;
    EngineOptions options = options_of(2);
    options.copies_at_once = at_once;
    EngineRig rig(roomy, std::nullopt, options, {roomy}, true);
    streams.begin(rig);
    run_steps(rig, 10);
    const std::uint64_t n_preempted = rig.stats.n_preempted.load();
    rig.engine->retire_group(GroupId{0}, RetireMode::moving);
    for (int turn = 0; turn < 1'000'000 && rig.gone.empty(); ++turn) {
      if (!rig.engine->advance() && !rig.complete()) std::this_thread::yield();
      rig.clock.advance(std::chrono::milliseconds(1));
    }
    ASSERT_EQ(rig.gone.size(), 1U);
    EXPECT_EQ(rig.gone[0].group, GroupId{0});
    if (at_once) {
      EXPECT_GT(rig.stats.n_moves.load(), 0U);
      // But for choices that had not parted from their prompt yet, none is computed anew.
      EXPECT_EQ(rig.stats.n_preempted.load(), n_preempted + rig.stats.n_moves_recomputed.load());
    }
    rig.run();
    streams.expect_undisturbed();
    rig.expect_empty();
  }
}

TEST(Recovery, WhoCannotTakeKvIsPassedOver) {
  Streams streams(8);
  FakeModelOptions roomy = group_of(1, 1);
  roomy.n_kv_blocks = 200;
  FakeModelOptions roomiest = roomy;
  roomiest.n_kv_blocks = 400;
  EngineOptions options = options_of(3);
  options.copies_at_once = true;
  EngineRig rig(roomy, std::nullopt, options, {roomiest, roomy}, true);
  rig.others[0]->devices[0].fails_imports = true;
  streams.begin(rig);
  run_steps(rig, 12);
  const std::uint64_t n_there = rig.stats.groups[0].n_running.load();
  rig.engine->retire_group(GroupId{0}, RetireMode::moving);
  rig.run();
  streams.expect_undisturbed();
  EXPECT_EQ(rig.gone.size(), 1U);
  EXPECT_GT(rig.stats.n_moves_failed.load(), 0U);
  EXPECT_LE(rig.stats.n_moves_failed.load(), n_there)
      << "who began at the same time, and nobody later";
  EXPECT_GT(rig.stats.n_moves.load(), 0U);
  rig.expect_empty();
}

TEST(Recovery, ARelievedGroupSendsItsSequencesAwayAndStays) {
  FakeModelOptions roomy = group_of(1, 1);
  roomy.n_kv_blocks = 200;
  EngineOptions options = options_of(2);
  options.copies_at_once = true;
  for (const bool has_room : {true, false}) {
    Streams streams(12);
    FakeModelOptions other = roomy;
    if (!has_room) other.n_kv_blocks = 14;
    EngineRig rig(roomy, std::nullopt, options, {other}, true);
    streams.begin(rig);
    run_steps(rig, 12);
    const std::uint64_t n_there = rig.stats.groups[0].n_running.load();
    ASSERT_GT(n_there, 0U);
    rig.engine->relieve_group(GroupId{0});
    rig.engine->relieve_group(GroupId{7});  // never was there
    rig.run();
    streams.expect_undisturbed();
    EXPECT_THAT(rig.gone, ::testing::IsEmpty());
    EXPECT_LE(rig.stats.n_moves.load() + rig.stats.n_moves_recomputed.load(), n_there);
    if (has_room) {
      EXPECT_GT(rig.stats.n_moves.load(), 0U);
    }
    rig.expect_empty();
  }
}

TEST(Recovery, WhatFindsNoRoomForItsKvIsComputedAnew) {
  Streams streams(32);
  FakeModelOptions small = group_of(1, 1);
  small.n_kv_blocks = 14;
  EngineOptions options = options_of(2);
  options.copies_at_once = true;
  EngineRig rig(group_of(1, 1), std::nullopt, options, {small}, true);
  streams.begin(rig);
  run_steps(rig, 20);
  rig.engine->retire_group(GroupId{0}, RetireMode::moving);
  rig.run();
  streams.expect_undisturbed();
  EXPECT_EQ(rig.gone.size(), 1U);
  EXPECT_GT(rig.stats.n_preempted.load(), 0U);
  rig.expect_empty();
}

TEST(Recovery, AGroupMayMoveOutWhileNobodyIsThere) {
  Streams streams(12);
  EngineRig rig(group_of(1, 1), std::nullopt, options_of(2), {}, true);
  streams.begin(rig);
  run_steps(rig, 10);
  rig.engine->retire_group(GroupId{0}, RetireMode::moving);
  while (rig.gone.empty())
    if (!rig.engine->advance()) rig.complete();
  rig.add_group(group_of(1, 1));
  rig.run();
  streams.expect_undisturbed();
  rig.expect_empty();
}

TEST(Recovery, WhoReadsTheNumbersSeesTheGroupsThatAreThere) {
  EngineRig rig(group_of(2, 2), std::nullopt, options_of(3), {group_of(1, 1)}, true);
  const auto n_devices = [&rig](std::size_t place) {
    return static_cast<int>(rig.stats.groups[place].n_devices.load());
  };
  EXPECT_EQ(n_devices(0), 2);
  EXPECT_EQ(n_devices(1), 1);
  EXPECT_EQ(n_devices(2), 0);
  rig.engine->retire_group(GroupId{0}, RetireMode::at_once);
  rig.run();
  EXPECT_EQ(n_devices(0), 0);
  EXPECT_EQ(n_devices(1), 1);
  rig.add_group(group_of(1, 1));
  rig.run();
  EXPECT_EQ(n_devices(0), 1);
}

TEST(Recovery, AGroupThatComesTakesItsPartOfWhatWaits) {
  Streams streams(32);
  EngineRig rig(group_of(1, 1), std::nullopt, options_of(3), {}, true);
  streams.begin(rig);
  run_steps(rig, 3);
  rig.add_group(group_of(1, 1));
  rig.add_group(group_of(2, 2));
  rig.run();
  streams.expect_undisturbed();
  for (std::size_t g = 0; g < 3; ++g)
    EXPECT_GT(rig.stats.groups[g].n_steps.load(), 20U) << g;
  rig.expect_empty();
}

TEST(Recovery, AGroupThatIsNoCopyOrOneTooManyIsRefused) {
  EngineRig rig(group_of(1, 1), std::nullopt, options_of(2), {}, true);
  FakeModelOptions other = group_of(1, 1);
  other.vocab_size = 200;
  FakeModel wrong(other);
  const auto refused = rig.engine->add_group(wrong.compiled);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("differ in vocabulary"));
  rig.add_group(group_of(1, 1));
  FakeModel third(group_of(1, 1));
  const auto exhausted = rig.engine->add_group(third.compiled);
  ASSERT_FALSE(exhausted);
  EXPECT_EQ(exhausted.error().code(), Code::exhausted);
  rig.engine->retire_group(GroupId{0}, RetireMode::at_once);
  rig.run();
  EXPECT_TRUE(rig.engine->add_group(third.compiled));
  rig.run();
  rig.engine->stop();
  EXPECT_EQ(rig.engine->add_group(third.compiled).error().code(), Code::exhausted);
}

TEST(Recovery, ARequestThatNoGroupCanComputeEnds) {
  EngineRig rig(group_of(1, 1), std::nullopt, options_of(4), {group_of(1, 1)}, true);
  const Asked asked = rig.submit(EngineRig::request(some_prompt(10, 1), 100));
  for (int turn = 0; turn < 2000 && !asked.ended(); ++turn) {
    rig.fake.devices[0].fail_next_step = true;
    for (const auto& group : rig.others)
      group->devices[0].fail_next_step = true;
    if (!rig.engine->advance()) rig.complete();
    rig.clock.advance(std::chrono::milliseconds(1));
    if (rig.gone.size() == rig.others.size() + 1 && rig.others.size() < 3)
      rig.add_group(group_of(1, 1));
  }
  ASSERT_TRUE(asked.ended());
  EXPECT_EQ(asked.end().code, Code::unavailable);
}

/// Groups fail, retire and come at random while requests come and are cancelled.
void expect_recovery(std::uint32_t seed) {
  SCOPED_TRACE("LUNA_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const auto random_group = [&random] {
    FakeModelOptions group = group_of(1 + random() % 3, 1 + random() % 3);
    group.n_kv_blocks = 12 + static_cast<std::uint32_t>(random() % 20);
    return group;
  };
  EngineOptions options = options_of(3);
  options.recovery_timeout = std::chrono::hours(1);
  EngineRig rig(random_group(), std::nullopt, options, {random_group()}, true);
  std::vector<std::pair<std::uint32_t, Asked>> asked;
  std::size_t n_added = 2;
  for (int turn = 0; turn < 800; ++turn) {
    if (random() % 12 == 0) {
      const auto i = static_cast<std::uint32_t>(random() % 40);
      asked.emplace_back(i, rig.submit(varied_request(i), 1 + i % 3));
    }
    if (!asked.empty() && random() % 60 == 0)
      rig.engine->cancel(asked[random() % asked.size()].second.id);
    FakeModel& group = rig.others.empty() || random() % 3 == 0
                           ? rig.fake
                           : *rig.others[random() % rig.others.size()];
    if (random() % 60 == 0) group.devices[random() % group.devices.size()].fail_next_step = true;
    if (random() % 120 == 0)
      rig.engine->retire_group(
          GroupId{static_cast<std::uint32_t>(random() % n_added)},
          std::array{RetireMode::at_once, RetireMode::when_idle, RetireMode::moving}[random() % 3]);
    if (n_added - rig.gone.size() < 3 && random() % 40 == 0) {
      rig.add_group(random_group());
      ++n_added;
    }
    rig.engine->advance();
    ASSERT_EQ(rig.engine->audit_kv(), "") << turn;
    if (random() % 2 == 0) rig.complete();
    rig.clock.advance(std::chrono::milliseconds(1));
  }
  // All leave, and one that holds everything comes.
  for (std::size_t id = 0; id < n_added; ++id)
    rig.engine->retire_group(GroupId{static_cast<std::uint32_t>(id)}, RetireMode::at_once);
  while (rig.gone.size() < n_added)
    if (!rig.engine->advance()) rig.complete();
  rig.add_group(group_of(1, 1));
  rig.run();
  rig.expect_empty();
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
  for (const auto& [i, handle] : asked) {
    ASSERT_TRUE(handle.ended());
    if (handle.end().reason == FinishReason::cancelled) continue;
    EngineRig alone(group_of(1, 1));
    const Asked expected = alone.submit(varied_request(i), 1 + i % 3);
    alone.run();
    for (std::size_t c = 0; c < handle.streams.size(); ++c)
      if (handle.end(c).reason == FinishReason::cancelled) return;
    expect_same(handle, expected);
  }
}

TEST(Recovery, NothingIsLostUnderAnySeed) {
  const std::uint32_t seed = test_seed();
  for (std::uint32_t i = 0; i < 12; ++i)
    expect_recovery(seed + i);
}

}  // namespace
}  // namespace luna::test
