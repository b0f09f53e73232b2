// The target for the gaps between tokens: how much of the prompts fits beside decoding rows.
#include "support/policy_rig.hpp"

#include <gtest/gtest.h>

namespace luna::test {
namespace {

constexpr StepCost kCost{.fixed_ns = 3e6, .row_ns = 2e5, .kv_ns = 100.0};

TEST(StepCost, TheLongestChunkWithinATimeIsFound) {
  for (const StepCost& cost : {kCost, StepCost{0.0, 1.0, 0.0}, StepCost{1.0, 1e5, 1e4}}) {
    for (const std::uint32_t first : {0U, 1U, 1000U, 100'000U}) {
      for (const double ns : {0.0, 1.0, 1e5, 9.9e6, 1e8}) {
        const std::uint32_t n = cost.n_tokens_within(ns, first, 4096);
        EXPECT_LE(cost.chunk_ns(first, n), ns * (1 + 1e-9));
        EXPECT_TRUE(n == 4096 || cost.chunk_ns(first, n + 1) > ns * (1 - 1e-9));
      }
    }
  }
}

TEST(StepCost, AChunkCostsWhatItsTokensCostOneByOne) {
  double one_by_one = 0.0;
  for (std::uint32_t i = 0; i < 70; ++i)
    one_by_one += kCost.chunk_ns(30 + i, 1);
  EXPECT_NEAR(kCost.chunk_ns(30, 70), one_by_one, 1e-3);
}

TEST(StepCost, NothingFittedIsUnknownAndNoiseBelowZeroIsNothing) {
  luna_device_row device{};
  EXPECT_FALSE(StepCost::of(device).is_known());
  device.step_ns_fixed = 10;
  EXPECT_FALSE(StepCost::of(device).is_known());
  device.step_ns_per_row = 2;
  device.step_ns_per_kv_token = -1;
  EXPECT_TRUE(StepCost::of(device).is_known());
  EXPECT_EQ(StepCost::of(device).kv_ns, 0.0);
}

/// Sixteen streams that decode.
void add_streams(PolicyRig& rig, std::uint32_t n_tokens = 100'000) {
  for (int i = 0; i < 16; ++i)
    rig.add({.n_prompt = 50, .n_generated_max = n_tokens});
  rig.run_until([&] {
    return std::all_of(
        rig.jobs.begin(), rig.jobs.end(), [](const Job& job) { return job.n_generated > 2; });
  });
}

TEST(TargetItl, GapsStayWithinItBesideALongPrompt) {
  for (const std::int64_t target_ms : {20, 50, 100}) {
    PolicyRig rig({.target_itl_ms = target_ms, .adaptive_batch = true});
    add_streams(rig);
    const std::uint64_t from = rig.now_ns;
    const Job& longer = rig.add({.n_prompt = 6000, .n_generated_max = 1});
    rig.run_until([&] { return longer.has_ended; });
    for (int i = 0; i < 16; ++i) {
      const auto gaps = rig.jobs[i].gaps_ms(from, rig.now_ns);
      EXPECT_GE(gaps.size(), 10U);
      EXPECT_LE(*std::max_element(gaps.begin(), gaps.end()), static_cast<double>(target_ms));
    }
  }
}

TEST(TargetItl, WithoutItAWholeStepOfPromptComesBetween) {
  PolicyRig rig({});
  add_streams(rig);
  const Job& longer = rig.add({.n_prompt = 6000, .n_generated_max = 1});
  rig.run_until([&] { return longer.has_ended; });
  EXPECT_EQ(longer.chunks.front(), 512U - 16U);
}

TEST(TargetItl, LaterChunksOfALongPromptShrink) {
  PolicyRig rig({.target_itl_ms = 50});
  add_streams(rig);
  const Job& longer = rig.add({.n_prompt = 6000, .n_generated_max = 1});
  rig.run_until([&] { return longer.has_ended; });
  ASSERT_GT(longer.chunks.size(), 10U);
  for (std::size_t i = 1; i + 1 < longer.chunks.size(); ++i)  // the last may take the slack
    EXPECT_LE(longer.chunks[i], longer.chunks[i - 1]) << i;
  EXPECT_LT(longer.chunks[longer.chunks.size() - 2], longer.chunks.front() / 2);
}

TEST(TargetItl, EveryDecodingRowRunsInEveryStep) {
  PolicyRig rig({.target_itl_ms = 50, .adaptive_batch = true});
  add_streams(rig);
  const Job& longer = rig.add({.n_prompt = 3000, .n_generated_max = 1});
  const std::uint64_t n_steps = rig.n_steps;
  const std::uint32_t n_tokens = rig.jobs.front().n_generated;
  rig.run_until([&] { return longer.has_ended; });
  EXPECT_EQ(rig.jobs.front().n_generated - n_tokens, rig.n_steps - n_steps);
}

TEST(TargetItl, NobodyDecodesSoAPromptTakesTheWholeStep) {
  PolicyRig rig({.target_itl_ms = 5});
  const Job& longer = rig.add({.n_prompt = 1000, .n_generated_max = 1});
  rig.run();
  EXPECT_EQ(longer.chunks, (std::vector<std::uint32_t>{512, 488}));
}

TEST(TargetItl, NobodyDecodesSoAStepEndsWithAPromptThatUsesItWell) {
  for (const std::int64_t target_ms : {0, 100}) {
    PolicyRig rig({.target_itl_ms = target_ms});
    const Job& first = rig.add({.n_prompt = 201, .n_generated_max = 1});
    const Job& second = rig.add({.n_prompt = 201, .n_generated_max = 1});
    rig.run();
    EXPECT_EQ(second.token_ns[0] - first.token_ns[0], first.token_ns[0] - 1000 * kMs);
    for (int i = 0; i < 8; ++i)
      rig.add({.n_prompt = 20, .n_generated_max = 1});
    rig.step();
    EXPECT_EQ(
        std::count_if(rig.jobs.begin(), rig.jobs.end(), [](const Job& j) { return j.has_ended; }),
        2 + 7);
  }
}

TEST(TargetItl, APromptEndsWithinTheTargetRatherThanAStepLater) {
  // Sixteen rows take 6.2 ms; planned are 80, which hold 368 tokens of a prompt, and 100 hold 467.
  PolicyRig rig({.target_itl_ms = 100});
  add_streams(rig);
  const Job& ends = rig.add({.n_prompt = 420, .n_generated_max = 1});
  const Job& next = rig.add({.n_prompt = 420, .n_generated_max = 1});
  rig.step();
  EXPECT_EQ(ends.chunks, (std::vector<std::uint32_t>{420}));
  EXPECT_TRUE(next.chunks.empty());
  EXPECT_LE(rig.prefill_ns + rig.decode_ns, 100.0 * kMs);
  const Job& longer = rig.add({.n_prompt = 900, .n_generated_max = 1});
  rig.run_until([&] { return !longer.chunks.empty(); });
  EXPECT_LE(rig.prefill_ns + rig.decode_ns, 80.0 * kMs);
}

TEST(TargetItl, ACrowdIsLetInAtThePaceThatItCanKeep) {
  // Each client sends its next request when its answer has ended.
  PolicyRig rig({.target_itl_ms = 100},
                {.cost = {.fixed_ns = 3e6, .row_ns = 3.5e5, .kv_ns = 100.0}});
  constexpr std::size_t kClients = 32;
  const Job request{.n_prompt = 201, .n_generated_max = 64};
  for (std::size_t i = 0; i < kClients; ++i)
    rig.add(request);
  std::size_t n_answered = 0;
  rig.run_until([&] {
    const auto n_ended = static_cast<std::size_t>(std::count_if(
        rig.jobs.begin(), rig.jobs.end(), [](const Job& job) { return job.has_ended; }));
    for (; n_answered < n_ended && rig.jobs.size() < 2 * kClients; ++n_answered)
      rig.add(request);
    return n_ended == 2 * kClients;
  });
  for (std::size_t i = kClients; i < rig.jobs.size(); ++i)
    EXPECT_LT(rig.jobs[i].token_ns[0] - rig.jobs[i].arrival_ns, 300 * kMs) << i;
}

TEST(TargetItl, UnknownCostsLeaveTheStepWhole) {
  PolicyRig rig({.target_itl_ms = 5}, {.shows_cost = false});
  add_streams(rig);
  const Job& longer = rig.add({.n_prompt = 1000, .n_generated_max = 1});
  rig.run_until([&] { return longer.has_ended; });
  EXPECT_EQ(longer.chunks.front(), 512U - 16U);
}

TEST(TargetItl, PromptsGetAFifthOfAStepThatDecodingRowsFill) {
  // A decode step takes 150 + 16 ms: far beyond the target.
  PolicyRig rig({.target_itl_ms = 50}, {.cost = {.fixed_ns = 1.5e8, .row_ns = 1e6, .kv_ns = 0.0}});
  add_streams(rig);
  rig.add({.n_prompt = 3000, .n_generated_max = 1});
  rig.step();
  const double share = rig.prefill_ns / (rig.prefill_ns + rig.decode_ns);
  EXPECT_GT(share, 0.15);
  EXPECT_LE(share, 0.2);
}

TEST(TargetItl, WhoHadBegunToAnswerGetsNineTenthsOfTheTime) {
  // Sixty rows of a hundred lost their KV; a step of the others takes 43 ms and more.
  PolicyRig rig({.target_itl_ms = 100},
                {.cost = {.fixed_ns = 3e6, .row_ns = 1e6, .kv_ns = 0.0}, .n_seqs_max = 128});
  for (int i = 0; i < 40; ++i)
    rig.add({.n_prompt = 10, .n_generated_max = 100'000});
  rig.run_until([&] { return rig.jobs.back().n_generated > 2; });
  const std::uint64_t from = rig.now_ns;
  for (int i = 0; i < 60; ++i)
    rig.add({.n_prompt = 60, .n_generated_max = 100, .n_generated = 50});
  rig.add({.n_prompt = 60, .n_generated_max = 100});
  rig.step();
  EXPECT_NEAR(rig.prefill_ns / (rig.prefill_ns + rig.decode_ns), 0.9, 0.02);
  const auto has_answered = [](const Job& job) { return !job.token_ns.empty(); };
  rig.run_until(
      [&] { return std::all_of(rig.jobs.begin(), rig.jobs.begin() + 100, has_answered); });
  EXPECT_LT(static_cast<double>(rig.now_ns - from), 1.2 * 60 * 60 * 1e6);
  EXPECT_FALSE(has_answered(rig.jobs.back())) << "who had not waits for his turn";
  rig.step();
  EXPECT_LT(rig.prefill_ns, rig.decode_ns) << "and gets what the target leaves";
}

TEST(TargetItl, ChunksAreNeverTooSmallToTellWhatTheyCost) {
  PolicyRig rig({.target_itl_ms = 10}, {.cost = {.fixed_ns = 1e6, .row_ns = 5e6, .kv_ns = 0.0}});
  add_streams(rig);
  const Job& longer = rig.add({.n_prompt = 100, .n_generated_max = 1});
  rig.run_until([&] { return longer.has_ended; });
  EXPECT_EQ(longer.chunks.front(), 8U);
}

TEST(TargetItl, WhileATokenCannotBeToldFromAStepChunksAreSmall) {
  PolicyRig rig({.target_itl_ms = 50}, {.cost = {.fixed_ns = 5e6, .row_ns = 0.0, .kv_ns = 0.0}});
  add_streams(rig);
  const Job& longer = rig.add({.n_prompt = 100, .n_generated_max = 1});
  rig.run_until([&] { return longer.has_ended; });
  EXPECT_EQ(longer.chunks, (std::vector<std::uint32_t>{32, 32, 32, 4}));
}

TEST(TargetItl, APromptOfWhichNoTokenFitsComesOnAllTheSame) {
  PolicyRig rig({.target_itl_ms = 1, .adaptive_batch = true},
                {.cost = {.fixed_ns = 1e6, .row_ns = 1e9, .kv_ns = 0.0}});
  add_streams(rig);
  const Job& longer = rig.add({.n_prompt = 20, .n_generated_max = 1});
  const Job& behind = rig.add({.n_prompt = 20, .n_generated_max = 1});
  rig.run_until([&] { return longer.has_ended && behind.has_ended; }, 60);
  EXPECT_LT(longer.ended_ns, behind.ended_ns);
}

TEST(Drafts, RunWhileNoPromptWaitsAndWithinTheTarget) {
  // A step of 16 takes 6.2 ms and 0.2 ms a draft: 12 - 6.2 leave room for 28 of 160.
  PolicyRig rig({.target_itl_ms = 15});
  for (int i = 0; i < 16; ++i)
    rig.add({.n_generated_max = 100'000, .n_draft = 10});
  rig.run_until([&] { return rig.jobs.back().n_generated > 0; });
  const auto n_verified = [&] {
    std::uint64_t n = 0;
    for (const Job& job : rig.jobs)
      n += job.n_verified;
    return n;
  };
  const std::uint64_t before = n_verified();
  rig.step();
  EXPECT_NEAR(static_cast<double>(n_verified() - before), 16 + 28, 2);
  rig.add({.n_prompt = 2000});
  const std::uint64_t with_prompt = n_verified();
  rig.step();
  EXPECT_EQ(n_verified() - with_prompt, 16U);
}

TEST(Drafts, NeverTakeTheTokenOfAnotherDecodingRow) {
  PolicyRig rig({}, {.n_rows_max = 20});
  for (int i = 0; i < 16; ++i)
    rig.add({.n_prompt = 1, .n_generated_max = 1000, .n_draft = 10});
  rig.run_until([&] { return rig.jobs.back().n_generated > 0; });
  const std::uint32_t before = rig.jobs.back().n_generated;
  for (int i = 0; i < 10; ++i)
    rig.step();
  EXPECT_EQ(rig.jobs.back().n_generated, before + 10);
  EXPECT_GT(rig.jobs.front().n_verified, rig.jobs.back().n_verified);
}

}  // namespace
}  // namespace luna::test
