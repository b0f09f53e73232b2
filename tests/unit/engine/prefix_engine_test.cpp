// The prefix cache in the engine: what it saves, that it changes no token, and what must not enter.
#include "core/engine/prefix_tree.hpp"
#include "support/engine_fixture.hpp"
#include "support/test_seed.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace luna::engine {
namespace {

using pipeline::TokenId;
using test::Asked;
using test::EngineRig;
using test::some_prompt;
using Prompt = std::vector<TokenId>;

constexpr std::uint32_t kBlockTokens = 32;  // of the fake model

std::vector<TokenId> alone(const Prompt& prompt, std::uint32_t n_generated) {
  EngineRig rig({}, std::nullopt, {.prefix_cache = false});
  const Asked asked = rig.submit(EngineRig::request(prompt, n_generated));
  rig.run();
  return asked.tokens();
}

Prompt joined(Prompt first, const Prompt& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Asked run_one(EngineRig& rig, const Prompt& prompt, std::uint32_t n_generated = 5) {
  const Asked asked = rig.submit(EngineRig::request(prompt, n_generated));
  rig.run();
  return asked;
}

TEST(PrefixCache, SecondPromptComputesOnlyWhatDiffers) {
  EngineRig rig;
  const Prompt shared = some_prompt(70, 1);
  const Prompt first = joined(shared, some_prompt(20, 2));
  const Prompt second = joined(shared, some_prompt(15, 3));
  EXPECT_EQ(run_one(rig, first).end().n_cached, 0U);
  const std::uint64_t n_rows_before = rig.fake.devices[0].n_rows;
  const Asked asked = run_one(rig, second);
  EXPECT_EQ(asked.end().n_cached, 64U);
  EXPECT_EQ(rig.fake.devices[0].n_rows - n_rows_before, 85U - 64U + 4U);
  EXPECT_EQ(asked.tokens(), alone(second, 5));
  EXPECT_EQ(rig.stats.n_cached_tokens.load(), 64U);
  EXPECT_EQ(rig.stats.n_prompt_tokens.load(), 90U + 85U);
  EXPECT_EQ(rig.stats.n_prefix_hits.load(), 1U);
  EXPECT_EQ(rig.stats.n_prefix_misses.load(), 1U);
  EXPECT_GT(rig.stats.n_kv_blocks_cached.load(), 0U);
  rig.expect_empty();
}

TEST(PrefixCache, LastTokenOfAPromptIsAlwaysComputed) {
  EngineRig rig;
  const Prompt prompt = some_prompt(2 * kBlockTokens, 1);
  const std::vector<TokenId> expected = alone(prompt, 5);
  for (const std::uint32_t n_cached : {0U, kBlockTokens}) {
    const Asked asked = run_one(rig, prompt);
    EXPECT_EQ(asked.end().n_cached, n_cached);
    EXPECT_EQ(asked.tokens(), expected);
  }
}

TEST(PrefixCache, NextTurnFindsTheAnswerOfTheOneBefore) {
  EngineRig rig;
  Prompt prompt = some_prompt(40, 1);
  const Asked answer = run_one(rig, prompt, 60);
  prompt = joined(joined(prompt, answer.tokens()), some_prompt(10, 2));
  const Asked next = run_one(rig, prompt);
  // The last token that was drawn has no KV.
  EXPECT_EQ(next.end().n_cached, (40U + answer.tokens().size() - 1) / kBlockTokens * kBlockTokens);
  EXPECT_EQ(next.tokens(), alone(prompt, 5));
}

TEST(PrefixCache, PromptInFlightIsSharedAsItIsComputed) {
  // Steps of 32 rows: the second prompt waits while the first is computed.
  EngineRig rig({.n_rows_max = 32});
  const Prompt prompt = some_prompt(130, 1);
  const Asked first = rig.submit(EngineRig::request(prompt, 5));
  const Asked second = rig.submit(EngineRig::request(prompt, 5));
  rig.run();
  EXPECT_EQ(first.tokens(), alone(prompt, 5));
  EXPECT_EQ(second.tokens(), first.tokens());
  EXPECT_EQ(second.end().n_cached, 128U);
  rig.expect_empty();
}

TEST(PrefixCache, PromptsThatRunSideBySideEndUpOnTheSameBlocks) {
  // Both fit one step, so neither finds anything; afterwards only one of them is kept.
  EngineRig rig;
  const Prompt prompt = some_prompt(32, 1);
  const Asked first = rig.submit(EngineRig::request(prompt, 40));
  const Asked second = rig.submit(EngineRig::request(prompt, 40));
  rig.run();
  EXPECT_EQ(first.tokens(), alone(prompt, 40));
  EXPECT_EQ(second.tokens(), first.tokens());
  EXPECT_EQ(rig.stats.n_kv_blocks_cached.load(), (32U + first.tokens().size() - 1) / kBlockTokens);
  rig.expect_empty();
}

TEST(PrefixCache, SwitchedOffItKeepsNothing) {
  EngineRig rig({}, std::nullopt, {.prefix_cache = false});
  const Prompt prompt = some_prompt(100, 1);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(run_one(rig, prompt).end().n_cached, 0U);
  EXPECT_EQ(rig.stats.n_kv_blocks_cached.load(), 0U);
  EXPECT_EQ(rig.stats.n_kv_blocks_free.load(), 64U);
}

TEST(PrefixCache, SaltsShareNothingAndTenantsDoUnlessToldNotTo) {
  for (const bool per_tenant : {false, true}) {
    EngineRig rig({}, std::nullopt, {.prefix_cache_per_tenant = per_tenant});
    const auto n_cached = [&rig](std::uint32_t tenant, const char* salt) {
      auto request = EngineRig::request(some_prompt(40, 1), 3);
      request->tenant = tenant;
      request->cache_salt = salt;
      const Asked asked = rig.submit(std::move(request));
      rig.run();
      return asked.end().n_cached;
    };
    EXPECT_EQ(n_cached(1, ""), 0U);
    EXPECT_EQ(n_cached(1, ""), 32U);
    EXPECT_EQ(n_cached(1, "a"), 0U);
    EXPECT_EQ(n_cached(1, "b"), 0U);
    EXPECT_EQ(n_cached(1, "a"), 32U);
    EXPECT_EQ(n_cached(2, ""), per_tenant ? 0U : 32U);
    EXPECT_EQ(n_cached(2, "a"), per_tenant ? 0U : 32U);
  }
}

TEST(PrefixCache, SaltThatIsTooLongIsRefused) {
  EngineRig rig;
  auto request = EngineRig::request(some_prompt(40, 1), 3);
  request->id = 1;
  request->cache_salt = std::string(pipeline::kCacheSaltBytesMax + 1, 's');
  rig.add_streams(*request, 1);
  const auto result = rig.engine->submit(std::move(request));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), Code::invalid_argument);
}

TEST(PrefixCache, CancelledPromptLeavesOnlyWhatItComputed) {
  EngineRig rig({.n_rows_max = 32, .completion = test::Completion::deferred});
  const Prompt prompt = some_prompt(130, 1);
  const Asked cancelled = rig.submit(EngineRig::request(prompt, 5));
  for (int i = 0; i < 2; ++i) {
    rig.engine->advance();
    rig.fake.complete();
  }
  rig.engine->cancel(cancelled.id);
  rig.run();
  const Asked asked = run_one(rig, prompt);
  EXPECT_EQ(asked.end().n_cached, 64U);
  EXPECT_EQ(asked.tokens(), alone(prompt, 5));
  rig.expect_empty();
}

TEST(PrefixCache, FailedStepLeavesNothing) {
  EngineRig rig({.n_rows_max = 32, .completion = test::Completion::deferred});
  const Prompt prompt = some_prompt(130, 1);
  const Asked failed = rig.submit(EngineRig::request(prompt, 5));
  rig.engine->advance();
  rig.fake.complete();
  rig.engine->advance();
  rig.fake.devices[0].fail_next_step = true;
  rig.run();
  EXPECT_EQ(failed.end().reason, pipeline::FinishReason::failed);
  const Asked asked = run_one(rig, prompt);
  EXPECT_EQ(asked.end().n_cached, 32U);  // of the step before
  EXPECT_EQ(asked.tokens(), alone(prompt, 5));
  rig.expect_empty();
}

TEST(PrefixCache, PromptWhoseOutputIsNoNumberLeavesNothing) {
  EngineRig rig;
  const Prompt prompt = some_prompt(40, 1);
  rig.fake.devices[0].poison = std::nanf("");
  EXPECT_EQ(run_one(rig, prompt).end().reason, pipeline::FinishReason::failed);
  EXPECT_EQ(rig.stats.n_kv_blocks_cached.load(), 0U);
}

TEST(PrefixCache, PreemptedSequenceFindsItsOwnBlocks) {
  EngineRig rig({.n_kv_blocks = 6});
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 3; ++i)
    asked.push_back(rig.submit(EngineRig::request(some_prompt(40, i), 60)));
  rig.run();
  EXPECT_GT(rig.stats.n_preempted.load(), 0U);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(asked[i].tokens(), alone(some_prompt(40, i), 60));
    EXPECT_EQ(asked[i].end().n_cached, 0U);  // what is computed again was not cached for the client
  }
  rig.expect_empty();
}

TEST(PrefixCache, ChoicesCountThePromptOnce) {
  EngineRig rig;
  const Prompt prompt = some_prompt(70, 1);
  run_one(rig, prompt);
  const Asked asked = rig.submit(EngineRig::request(prompt, 40), 3);
  rig.run();
  for (std::size_t c = 0; c < 3; ++c) {
    EXPECT_EQ(asked.end(c).n_cached, 64U);
    EXPECT_EQ(asked.tokens(c), alone(prompt, 40));
  }
  EXPECT_EQ(rig.stats.n_cached_tokens.load(), 64U);
  rig.expect_empty();
}

TEST(PrefixCache, LeastRecentlyUsedGoesFirstWhenBlocksAreShort) {
  EngineRig rig({.n_kv_blocks = 8});
  const Prompt a = some_prompt(70, 1);
  const Prompt b = some_prompt(70, 2);
  const Prompt c = some_prompt(140, 3);
  run_one(rig, a);
  run_one(rig, b);
  EXPECT_EQ(run_one(rig, a).end().n_cached, 64U);
  run_one(rig, c);  // five blocks: those of b and the end of nothing else
  EXPECT_GT(rig.stats.n_kv_blocks_evicted.load(), 0U);
  EXPECT_EQ(run_one(rig, a).end().n_cached, 64U);
  EXPECT_LT(run_one(rig, b).end().n_cached, 64U);
  rig.expect_empty();
}

/// Prompts out of few beginnings, under pressure of blocks, with cancels, failures and deadlines:
/// what ends by itself is what it would have been alone, and no plan was refused, which it would be
/// if the books of the policy counted a shared block wrong.
void expect_sameness(std::uint32_t seed) {
  SCOPED_TRACE("LUNA_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  EngineRig rig({.n_lanes = 1 + static_cast<std::uint32_t>(random() % 3),
                 .n_kv_blocks = 7 + static_cast<std::uint32_t>(random() % 20),
                 .n_rows_max = 16 + static_cast<std::uint32_t>(random() % 100),
                 .n_seqs_max = 1 + static_cast<std::uint32_t>(random() % 10),
                 .completion = test::Completion::deferred},
                std::nullopt,
                {.n_waiting_max = 24});
  std::vector<std::pair<Prompt, Asked>> asks;
  std::vector<Prompt> known = {some_prompt(100, 1), some_prompt(64, 2)};
  for (int turn = 0; turn < 500; ++turn) {
    if (random() % 6 == 0) {
      const Prompt& before = known[random() % known.size()];
      const std::size_t n = 1 + random() % before.size();
      Prompt prompt(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(n));
      prompt = joined(prompt, some_prompt(random() % 40, random() % 3));
      if (prompt.size() > 150) prompt.resize(150);
      auto request = EngineRig::request(prompt, 1 + random() % 40);
      request->id = ++rig.last_id;
      request->arrival = rig.clock.now();
      if (random() % 20 == 0) request->deadline = rig.clock.now() + std::chrono::milliseconds(20);
      rig.add_streams(*request, 1 + random() % 2);
      Asked handle{.id = request->id, .streams = request->streams};
      if (rig.engine->submit(std::move(request))) asks.emplace_back(prompt, handle);
    }
    if (!asks.empty() && random() % 30 == 0) rig.engine->cancel(asks.back().second.id);
    if (random() % 60 == 0) rig.fake.devices[0].fail_next_step = true;
    rig.engine->advance();
    ASSERT_EQ(rig.engine->audit_kv(), "") << turn;
    if (random() % 2 == 0) rig.fake.complete();
    rig.clock.advance(std::chrono::milliseconds(1));
    if (random() % 40 == 0 && !asks.empty() && asks.back().second.ended()) {
      known.push_back(joined(asks.back().first, asks.back().second.tokens()));
      if (known.size() > 5) known.erase(known.begin());
    }
  }
  rig.fake.devices[0].fail_next_step = false;
  rig.run();
  rig.expect_empty();
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
  EXPECT_GT(rig.stats.n_cached_tokens.load(), 0U);
  for (std::size_t i = 0; i < asks.size(); i += 3) {
    const auto& [prompt, handle] = asks[i];
    for (std::size_t c = 0; c < handle.streams.size(); ++c) {
      const auto reason = handle.end(c).reason;
      if (reason == pipeline::FinishReason::cancelled || reason == pipeline::FinishReason::failed)
        continue;
      EXPECT_EQ(handle.tokens(c), alone(prompt, handle.streams[c]->n_tokens_max()));
    }
  }
}

TEST(PrefixCache, ChangesNoTokenUnderAnySeed) {
  const std::uint32_t seed = test::test_seed();
  for (std::uint32_t i = 0; i < 30; ++i)
    expect_sameness(seed + i);
}

}  // namespace
}  // namespace luna::engine
