// Answers that were sliced, moved or computed anew, computed once more while nobody waits.
#include "core/engine/output_check.hpp"

#include "support/moving_policy.hpp"
#include "support/slicing_policy.hpp"
#include "support/varied_requests.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace luna::test {
namespace {

using telemetry::CheckSkip;

FakeModelOptions a_group(std::uint32_t n_shards = 1) {
  FakeModelOptions options;
  options.n_shards = n_shards;
  options.n_kv_blocks = 48;
  options.n_seqs_max = 16;
  options.n_draft_rows_max = 16;
  options.completion = Completion::deferred;
  return options;
}

EngineOptions checking(std::uint32_t percent = 100) {
  EngineOptions options;
  options.copies_at_once = true;
  options.speculation = {.n_draft_max = 4, .lengths = {.n_min = 1, .n_max = 3}};
  options.output_check.percent = percent;
  return options;
}

/// Turns of the check and of the engine until no answer waits.
void check_all(EngineRig& rig) {
  for (int turn = 0; turn < 10'000; ++turn) {
    rig.engine->check_outputs();
    rig.run();
    if (rig.stats.output_check.n_waiting.load() == 0 && turn > 2) return;
  }
  ADD_FAILURE() << "answers wait for ever";
}

std::uint64_t n_skipped(EngineRig& rig, CheckSkip why) {
  return rig.stats.output_check.n_skipped_of(why).load();
}

/// Rows of the first group, once they have so many tokens.
std::function<bool(Row)> when_it_has(std::uint32_t n_generated) {
  return [n_generated](Row row) { return row->n_generated >= n_generated && row->device == 0; };
}

std::uint64_t n_observed(const telemetry::Histogram<telemetry::kRequestSeconds.size()>& seconds) {
  std::uint64_t n = 0;
  for (std::size_t i = 0; i <= telemetry::kRequestSeconds.size(); ++i)
    n += seconds.count(i);
  return n;
}

TEST(OutputCheck, FindsNothingWhereMovesChangeNothing) {
  EngineRig rig(a_group(2), mover(at_times(3, 5)), checking(), {a_group(2)});
  std::vector<Asked> asked;
  std::size_t n_choices = 0;
  for (std::uint32_t i = 0; i < 24; ++i) {
    asked.push_back(rig.submit(varied_request(i), 1 + i % 3));
    n_choices += 1 + i % 3;
  }
  rig.run();
  const std::uint64_t n_tokens = rig.stats.n_generated_tokens.load();
  const std::uint64_t n_ended = n_observed(rig.stats.e2e_seconds);
  check_all(rig);
  const auto& found = rig.stats.output_check;
  EXPECT_GT(found.n_checked.load(), n_choices / 2);
  EXPECT_LE(found.n_checked.load(), n_choices);
  EXPECT_EQ(found.n_mismatches.load(), 0U);
  EXPECT_EQ(n_skipped(rig, CheckSkip::failed), 0U);
  EXPECT_EQ(rig.stats.n_generated_tokens.load(), n_tokens) << "replays are no answers";
  EXPECT_EQ(n_observed(rig.stats.e2e_seconds), n_ended);
  EXPECT_EQ(n_observed(rig.stats.ttft_seconds), 24U);
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
  rig.expect_empty();
}

TEST(OutputCheck, FindsNothingWherePromptsArePruned) {
  FakeModelOptions group = a_group();
  group.prune_keep_percent = 40;
  EngineRig rig(group, mover(at_times(1, 4)), checking(), {group});
  for (std::uint32_t i = 0; i < 8; ++i)
    rig.submit(EngineRig::request(some_prompt(100 + 10 * i, i), 40));
  rig.run();
  check_all(rig);
  EXPECT_GT(rig.stats.output_check.n_checked.load(), 4U);
  EXPECT_EQ(rig.stats.output_check.n_mismatches.load(), 0U);
  rig.expect_empty();
}

TEST(OutputCheck, FindsNothingWhereAGroupFailed) {
  EngineRig rig(a_group(2), std::nullopt, checking(), {a_group(2)}, true);
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 12; ++i)
    asked.push_back(rig.submit(varied_request(i), 1 + i % 3));
  while (rig.stats.n_steps.load() < 20)
    if (!rig.engine->advance()) rig.complete();
  rig.fake.devices[1].fail_next_step = true;
  rig.run();
  ASSERT_EQ(rig.gone.size(), 1U);
  check_all(rig);
  EXPECT_GT(rig.stats.output_check.n_checked.load(), 3U);
  EXPECT_EQ(rig.stats.output_check.n_mismatches.load(), 0U);
  rig.expect_empty();
}

/// A group that gives another token than the model's at this place of a sequence.
FakeModelOptions a_liar(std::uint32_t position) {
  FakeModelOptions options = a_group();
  options.forced = {'q'};
  options.forced_from = position;
  return options;
}

TEST(OutputCheck, AMoveThatChangesAnAnswerIsFound) {
  EngineRig rig(a_group(), mover(when_it_has(10), 0), checking(), {a_liar(20 + 24)});
  const Asked asked = rig.submit(EngineRig::request(some_prompt(20, 1), 40));
  rig.run();
  ASSERT_EQ(rig.stats.n_moves.load(), 1U);
  ASSERT_EQ(asked.tokens()[25], TokenId{'q'}) << "the device has lied";
  check_all(rig);
  const auto& found = rig.stats.output_check;
  EXPECT_EQ(found.n_mismatches.load(), 1U);
  EXPECT_EQ(found.n_checked.load(), 1U);
  EXPECT_EQ(found.last.request_id.load(), asked.id);
  EXPECT_EQ(found.last.position.load(), 25U);
  rig.expect_empty();
}

TEST(OutputCheck, AChoiceIsReplayedWithItsOwnNumbers) {
  EngineRig rig(a_group(), mover(when_it_has(10), 0), checking(), {a_group()});
  auto request = EngineRig::request(some_prompt(20, 1), 40);
  request->sampling.temperature = 1.0F;
  request->sampling.seed = 5;
  const Asked asked = rig.submit(std::move(request), 3);
  rig.run();
  EXPECT_NE(asked.tokens(0), asked.tokens(1));
  check_all(rig);
  EXPECT_EQ(rig.stats.output_check.n_checked.load(), 3U);
  EXPECT_EQ(rig.stats.output_check.n_mismatches.load(), 0U);
}

TEST(OutputCheck, AnAnswerThatWasCutOffIsComparedAsFarAsItGoes) {
  EngineRig rig(a_group(), mover(when_it_has(5), 0), checking(), {a_liar(20 + 10)});
  const Asked asked = rig.submit(EngineRig::request(some_prompt(20, 1), 200));
  while (asked.tokens().size() < 20) {
    if (!rig.engine->advance()) rig.complete();
    rig.clock.advance(std::chrono::milliseconds(1));
  }
  rig.engine->cancel(asked.id);
  rig.run();
  check_all(rig);
  EXPECT_EQ(rig.stats.output_check.n_checked.load(), 1U);
  EXPECT_EQ(rig.stats.output_check.n_mismatches.load(), 1U);
  rig.expect_empty();
}

TEST(OutputCheck, ARequestWaitsForNoMoreThanTheStepOfAReplay) {
  EngineRig rig(a_group(), mover(when_it_has(10), 0), checking(), {a_group()});
  auto long_one = EngineRig::request(some_prompt(150, 1), 40);
  long_one->stop.ignore_eos = true;
  rig.submit(std::move(long_one));
  rig.run();
  for (std::uint64_t n_steps = 1; n_steps < 40; n_steps += 3) {
    SCOPED_TRACE(n_steps);
    rig.engine->check_outputs();
    rig.engine->check_outputs();
    const std::uint64_t n_before = rig.stats.n_steps.load();
    for (int turn = 0; turn < 1000 && rig.stats.n_steps.load() - n_before < n_steps; ++turn)
      if (!rig.engine->advance()) rig.complete();
    ASSERT_EQ(rig.stats.n_running.load(), 1U);
    ASSERT_NE(rig.fake.devices[0].pending(), nullptr) << "its step is in flight";
    const Asked asked = rig.submit(EngineRig::request(some_prompt(9, 2), 1));
    rig.engine->advance();
    rig.complete();
    rig.engine->advance();
    ASSERT_NE(rig.fake.devices[0].pending(), nullptr);
    EXPECT_EQ(rig.fake.devices[0].pending()->n_rows, 9U) << "the request's own step";
    rig.run();
    EXPECT_TRUE(asked.ended());
  }
  EXPECT_EQ(rig.stats.output_check.n_checked.load(), 0U);
  check_all(rig);
  EXPECT_GT(rig.stats.output_check.n_interrupted.load(), 10U);
  EXPECT_EQ(rig.stats.output_check.n_checked.load(), 1U);
  EXPECT_EQ(rig.stats.output_check.n_mismatches.load(), 0U);
  rig.expect_empty();
}

TEST(OutputCheck, ABusyEngineIsLeftAlone) {
  EngineRig rig(a_group(), mover(when_it_has(10), 0), checking(), {a_group()});
  rig.submit(EngineRig::request(some_prompt(20, 1), 40));
  rig.run();
  const Asked asked = rig.submit(EngineRig::request(some_prompt(20, 2), 60));
  while (!asked.ended()) {
    rig.engine->check_outputs();
    EXPECT_LE(rig.stats.n_running.load() + rig.stats.n_waiting.load(), 1U);
    if (!rig.engine->advance()) rig.complete();
    rig.clock.advance(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(rig.stats.output_check.n_checked.load(), 0U);
}

TEST(OutputCheck, AReplayTakesNothingFromThePrefixCache) {
  // What the cache holds of the answer is what is in question.
  EngineRig rig(a_group(), mover(when_it_has(10), 0), checking(), {a_group()});
  rig.submit(EngineRig::request(some_prompt(130, 1), 20));
  rig.run();
  const std::uint64_t n_rows = rig.fake.devices[0].n_rows + rig.others[0]->devices[0].n_rows;
  const std::uint64_t n_cached = rig.stats.n_kv_blocks_cached.load();
  check_all(rig);
  EXPECT_EQ(rig.fake.devices[0].n_rows + rig.others[0]->devices[0].n_rows - n_rows, 130U + 20 - 1);
  EXPECT_EQ(rig.stats.n_kv_blocks_cached.load(), n_cached) << "and leaves nothing in it";
  EXPECT_EQ(rig.stats.n_cached_tokens.load(), 0U);
}

TEST(OutputCheck, WhatNoGroupCouldHoldAloneIsNotReplayed) {
  FakeModelOptions group = a_group();
  group.n_kv_blocks = 20;
  group.n_positions_max = 2048;
  EngineRig rig(group, slicing_scheduler(), checking(), {group, group});
  const Asked large = rig.submit(EngineRig::request(some_prompt(900, 1), 20));
  rig.run();
  EXPECT_EQ(large.tokens().size(), 20U);
  rig.submit(EngineRig::request(some_prompt(560, 2), 40));
  rig.run();
  ASSERT_GT(rig.stats.n_kv_moves.load(), 1U);
  check_all(rig);
  EXPECT_EQ(n_skipped(rig, CheckSkip::too_large), 1U);
  EXPECT_EQ(rig.stats.output_check.n_mismatches.load(), 0U);
  rig.expect_empty();
}

TEST(OutputCheck, SlicedAnswersAreReplayedWhole) {
  FakeModelOptions group = a_group();
  group.n_kv_blocks = 24;
  group.n_positions_max = 2048;
  EngineRig rig(group, slicing_scheduler(), checking(), {group, group});
  for (std::uint32_t i = 0; i < 2; ++i)
    rig.submit(EngineRig::request(some_prompt(700, i), 60));
  rig.run();
  ASSERT_GT(rig.stats.n_kv_moves.load(), 1U);
  std::uint64_t n_served = 0;
  for (FakeModel* model : {&rig.fake, rig.others[0].get(), rig.others[1].get()})
    n_served += model->devices[0].n_slots_served;
  check_all(rig);
  std::uint64_t n_served_after = 0;
  for (FakeModel* model : {&rig.fake, rig.others[0].get(), rig.others[1].get()})
    n_served_after += model->devices[0].n_slots_served;
  EXPECT_GT(rig.stats.output_check.n_checked.load(), 0U);
  EXPECT_EQ(rig.stats.output_check.n_mismatches.load(), 0U);
  EXPECT_EQ(n_served_after, n_served) << "no group read another's KV";
  rig.expect_empty();
}

TEST(OutputCheck, WhatWaitsIsBounded) {
  EngineOptions options = checking();
  options.output_check.bytes_max = 3000;
  EngineRig rig(a_group(), mover(when_it_has(10), 0), options, {a_group()});
  for (std::uint32_t i = 0; i < 5; ++i)
    rig.submit(EngineRig::request(some_prompt(20, i), 40));
  rig.run();
  rig.engine->check_outputs();
  EXPECT_EQ(rig.stats.output_check.n_waiting.load(), 2U);
  EXPECT_EQ(n_skipped(rig, CheckSkip::no_room), 3U);
  check_all(rig);
  EXPECT_EQ(rig.stats.output_check.n_checked.load(), 2U);
  rig.submit(EngineRig::request(some_prompt(20, 9), 40));
  rig.run();
  check_all(rig);
  EXPECT_EQ(rig.stats.output_check.n_checked.load(), 3U) << "there is room again";
}

TEST(OutputCheck, AReplayThatFailsIsTriedAgainAndGivenUp) {
  EngineRig rig(a_group(), mover(when_it_has(10), 0), checking(), {a_group()});
  rig.submit(EngineRig::request(some_prompt(20, 1), 40));
  rig.run();
  rig.fake.devices[0].poison = std::nanf("");
  check_all(rig);
  EXPECT_EQ(n_skipped(rig, CheckSkip::failed), 1U);
  EXPECT_EQ(rig.stats.output_check.n_checked.load(), 0U);
  rig.expect_empty();
}

TEST(OutputCheck, OffItKeepsNothingAndComputesNothing) {
  EngineRig rig(a_group(), mover(when_it_has(10), 0), checking(0), {a_group()});
  rig.submit(EngineRig::request(some_prompt(20, 1), 40));
  rig.run();
  ASSERT_EQ(rig.stats.n_moves.load(), 1U);
  const std::uint64_t n_steps = rig.stats.n_steps.load();
  for (int turn = 0; turn < 5; ++turn) {
    rig.engine->check_outputs();
    rig.run();
  }
  EXPECT_EQ(rig.stats.n_steps.load(), n_steps);
  EXPECT_EQ(rig.stats.output_check.n_waiting.load(), 0U);
}

TEST(OutputCheck, WhatWasLeftInPeaceIsNotComputedAgain) {
  EngineRig rig(a_group(), mover(when_it_has(10), 0), checking(), {a_group()});
  rig.submit(EngineRig::request(some_prompt(20, 1), 8));
  rig.run();
  rig.engine->check_outputs();
  EXPECT_EQ(rig.stats.output_check.n_waiting.load(), 0U);
}

TEST(OutputCheck, AShareOfTheRequestsIsChosenByTheirIds) {
  for (const std::uint32_t percent : {0U, 1U, 25U, 99U, 100U}) {
    int n = 0;
    for (std::uint64_t id = 1; id <= 20'000; ++id)
      n += engine::is_sampled(id, percent) ? 1 : 0;
    EXPECT_NEAR(n, 200 * static_cast<int>(percent), 250) << percent;
  }
  EXPECT_EQ(engine::is_sampled(77, 40), engine::is_sampled(77, 40));
}

}  // namespace
}  // namespace luna::test
