// KV blocks: the pool, the audit that must notice, and conservation under seeds of trouble.
#include "core/engine/kv_audit.hpp"
#include "core/engine/kv_pool.hpp"
#include "support/engine_fixture.hpp"
#include "support/test_seed.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace luna::engine {
namespace {

using test::Asked;
using test::EngineRig;

TEST(KvPool, ReleaseAtZeroMakesBlockFree) {
  KvPool pool(2);
  const std::uint32_t block = *pool.allocate();
  pool.share(block);
  pool.release(block);
  EXPECT_EQ(pool.n_free(), 1U);
  pool.release(block);
  EXPECT_EQ(pool.n_free(), 2U);
}

TEST(KvPool, EmptyPoolAnswersNothing) {
  KvPool pool(1);
  EXPECT_TRUE(pool.allocate());
  EXPECT_FALSE(pool.allocate());
}

TEST(KvPool, WhatIsCachedCanBeDroppedAndWhatIsUsedStays) {
  EngineRig rig;
  const Asked first = rig.submit(EngineRig::request(test::some_prompt(100, 1), 4));
  rig.run();
  ASSERT_TRUE(first.ended());
  ASSERT_GT(rig.stats.n_kv_blocks_cached.load(), 0U);
  const Asked second = rig.submit(EngineRig::request(test::some_prompt(100, 1), 40));
  while (second.tokens().empty())
    if (!rig.engine->advance()) rig.complete();
  rig.engine->drop_prefix_cache();
  rig.run();
  EXPECT_TRUE(second.ended());
  auto tokens = second.tokens();
  tokens.resize(4);
  EXPECT_EQ(tokens, first.tokens());
  rig.engine->drop_prefix_cache();
  rig.run();
  EXPECT_EQ(rig.stats.n_kv_blocks_cached.load(), 0U);
  rig.expect_empty();
}

TEST(KvPool, CountsWhatEachHolderUsesAlone) {
  const std::uint32_t seed = test::test_seed();
  std::mt19937 random(seed);
  constexpr std::uint32_t kHolders = 5;
  KvPool pool(12, kHolders);
  std::vector<std::vector<std::uint32_t>> held(kHolders);
  for (int turn = 0; turn < 5000; ++turn) {
    const auto holder = static_cast<std::uint32_t>(random() % kHolders);
    auto& own = held[holder];
    const auto& others = held[random() % kHolders];
    if (random() % 3 == 0) {
      if (const auto block = pool.allocate(holder)) own.push_back(*block);
    } else if (random() % 2 == 0 && !others.empty()) {
      const std::uint32_t block = others[random() % others.size()];
      if (std::ranges::count(own, block) == 0) {
        pool.share(block, holder);
        own.push_back(block);
      }
    } else if (!own.empty()) {
      pool.release(own.back(), holder);
      own.pop_back();
    }
    for (std::uint32_t h = 0; h < kHolders; ++h) {
      const auto n = std::ranges::count_if(
          held[h], [&pool](std::uint32_t block) { return pool.n_references(block) == 1; });
      ASSERT_EQ(pool.n_exclusive(h), static_cast<std::uint32_t>(n)) << seed << " turn " << turn;
    }
  }
}

TEST(KvAudit, NoticesALostAndADoubledReference) {
  const text::Tokenizer tokenizer = test::tiny_tokenizer();
  auto request = EngineRig::request(test::some_prompt(4, 1), 4);
  request->streams = {std::make_shared<pipeline::TokenStream>(4, 4096, 0)};
  const RequestLimits limits{.vocab_size = 264,
                             .n_positions_max = 64,
                             .kv_block_tokens = 32,
                             .n_kv_blocks = 4,
                             .n_choices_max = 1};
  auto live = LiveRequest::make(std::move(request), limits, tokenizer).value();
  KvPool pool(4);
  SequenceTable table(2, 2);
  KvAudit audit(4);
  Sequence& sequence = table.add(*live);
  EXPECT_EQ(audit.run(pool, table), "");
  sequence.phase = Phase::prefill;
  sequence.blocks[0] = *pool.allocate();
  EXPECT_NE(audit.run(pool, table), "");  // leaked: in use, in no table
  sequence.n_blocks = 1;
  EXPECT_EQ(audit.run(pool, table), "");
  pool.share(sequence.blocks[0]);
  EXPECT_NE(audit.run(pool, table), "");
  pool.release(sequence.blocks[0]);
  sequence.blocks[1] = 3;
  sequence.n_blocks = 2;
  EXPECT_NE(audit.run(pool, table), "");  // a free block in a table
}

struct Ask {
  SequenceRequest request;
  Asked handle;
};

std::unique_ptr<SequenceRequest> random_request(std::mt19937& random) {
  auto request =
      EngineRig::request(test::some_prompt(1 + random() % 90, random() % 1000), 1 + random() % 40);
  if (random() % 2 == 0) request->sampling.temperature = 0.9F;
  if (random() % 4 == 0) request->sampling.top_k = 1 + random() % 50;
  if (random() % 4 == 0) request->sampling.frequency_penalty = 0.5F;
  if (random() % 4 == 0) request->stop.stop_strings = {"a", "the"};
  request->sampling.seed = random();
  request->priority = static_cast<std::int32_t>(random() % 3);
  return request;
}

/// Random submits, cancels, deadlines and ends; nothing may leak, and what ends by itself must be
/// what it would have been alone.
void expect_conservation(std::uint32_t seed, test::Completion completion) {
  SCOPED_TRACE("LUNA_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const std::uint32_t n_shards = 1 + random() % 2;
  EngineRig rig({.n_shards = n_shards,
                 .n_lanes = 1 + static_cast<std::uint32_t>(random() % 3),
                 .n_kv_blocks = 6 + static_cast<std::uint32_t>(random() % 20),
                 .n_rows_max = 16 + static_cast<std::uint32_t>(random() % 64),
                 .n_seqs_max = 1 + static_cast<std::uint32_t>(random() % 10),
                 .completion = completion},
                std::nullopt,
                {.n_waiting_max = 24});
  std::vector<Ask> asks;
  for (int turn = 0; turn < 600; ++turn) {
    if (random() % 5 == 0) {
      auto request = random_request(random);
      if (random() % 10 == 0) request->deadline = rig.clock.now() + std::chrono::milliseconds(15);
      const std::size_t n_choices = 1 + random() % 3;
      SequenceRequest kept = *request;
      request->id = ++rig.last_id;
      request->arrival = rig.clock.now();
      rig.add_streams(*request, n_choices);
      Asked handle{.id = request->id, .streams = request->streams};
      const auto result = rig.engine->submit(std::move(request));
      if (result) asks.push_back({std::move(kept), std::move(handle)});
      if (!result) {
        EXPECT_EQ(result.error().code(), Code::exhausted);
      }
    }
    if (!asks.empty() && random() % 25 == 0)
      rig.engine->cancel(asks[random() % asks.size()].handle.id);
    rig.engine->advance();
    ASSERT_EQ(rig.engine->audit_kv(), "") << turn;
    if (random() % 2 == 0) rig.fake.complete();
    rig.clock.advance(std::chrono::milliseconds(1));
  }
  rig.run();
  rig.expect_empty();
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
  for (const Ask& ask : asks)
    ASSERT_TRUE(ask.handle.ended());
  for (std::size_t i = 0; i < asks.size(); i += 7) {
    EngineRig alone;
    const Asked expected = alone.submit(std::make_unique<SequenceRequest>(asks[i].request),
                                        asks[i].handle.streams.size());
    alone.run();
    for (std::size_t c = 0; c < expected.streams.size(); ++c) {
      const auto reason = asks[i].handle.end(c).reason;
      if (reason == pipeline::FinishReason::cancelled || reason == pipeline::FinishReason::failed)
        continue;
      EXPECT_EQ(asks[i].handle.tokens(c), expected.tokens(c));
      EXPECT_EQ(asks[i].handle.text(c), expected.text(c));
    }
  }
}

TEST(Engine, BlocksAreConservedUnderAnySeed) {
  const std::uint32_t seed = test::test_seed();
  for (std::uint32_t i = 0; i < 20; ++i) {
    expect_conservation(seed + i, test::Completion::immediate);
    expect_conservation(seed + 1000 + i, test::Completion::deferred);
  }
}

}  // namespace
}  // namespace luna::engine
