// adaptive_batch: what long prompts and long conversations leave to others.
#include "support/policy_rig.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace luna::test {
namespace {

/// KV costs as much as on a machine that is short of memory bandwidth: 8000 tokens take 40 ms.
constexpr MachineOptions kSlowMemory{.cost = {.fixed_ns = 3e6, .row_ns = 2e5, .kv_ns = 5000.0}};

double mean(const std::vector<double>& values) {
  EXPECT_FALSE(values.empty());
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

struct Paces {
  double short_ms = 0.0;  ///< mean gap
  double long_ms = 0.0;
};
/// Mean gaps of n_short streams at a context of 100 and n_long at 8000.
Paces paces(bool adaptive, int n_short, int n_long, const MachineOptions& machine = kSlowMemory) {
  PolicyRig rig({.adaptive_batch = adaptive}, machine);
  const auto all_decode = [&] {
    return std::all_of(
        rig.jobs.begin(), rig.jobs.end(), [](const Job& job) { return job.n_generated > 0; });
  };
  for (int i = 0; i < n_long; ++i)
    rig.add({.n_prompt = 8000, .n_generated_max = 100'000});
  rig.run_until(all_decode);
  for (int i = 0; i < n_short; ++i)
    rig.add({.n_prompt = 100, .n_generated_max = 100'000});
  rig.run_until(all_decode);
  const std::uint64_t from = rig.now_ns;
  for (int i = 0; i < 100; ++i)
    rig.step();
  Paces result;
  if (n_long > 0) result.long_ms = mean(rig.jobs.front().gaps_ms(from, rig.now_ns));
  if (n_short > 0) result.short_ms = mean(rig.jobs.back().gaps_ms(from, rig.now_ns));
  return result;
}

TEST(AdaptiveBatch, OneLongConversationAtMostDoublesTheGapsOfOthers) {
  const double without = paces(true, 8, 0).short_ms;
  const Paces whole = paces(false, 8, 1);
  const Paces shared = paces(true, 8, 1);
  EXPECT_GT(whole.short_ms, 4 * without);
  EXPECT_LE(shared.short_ms, 2.1 * without);
  EXPECT_LE(shared.long_ms, 2.1 * whole.long_ms);
}

TEST(AdaptiveBatch, SeveralLongOnesTakeTurnsWithinTheSameTime) {
  const double without = paces(true, 8, 0).short_ms;
  const Paces whole = paces(false, 8, 3);
  const Paces shared = paces(true, 8, 3);
  EXPECT_LE(shared.short_ms, 2.1 * without);
  EXPECT_LE(shared.long_ms, 2.1 * whole.long_ms);
}

TEST(AdaptiveBatch, OneShortRowDoesNotHoldManyLongOnesUp) {
  const Paces whole = paces(false, 1, 8);
  const Paces shared = paces(true, 1, 8);
  EXPECT_LE(shared.long_ms, 1.5 * whole.long_ms);
  EXPECT_LE(shared.short_ms, whole.short_ms);
}

TEST(AdaptiveBatch, LongOnesAmongThemselvesAndAloneRunInEveryStep) {
  EXPECT_EQ(paces(true, 0, 1).long_ms, paces(false, 0, 1).long_ms);
  EXPECT_NEAR(paces(true, 0, 6).long_ms / paces(false, 0, 6).long_ms, 1.0, 0.01);
}

TEST(AdaptiveBatch, UnknownCostsSlowNobody) {
  MachineOptions machine = kSlowMemory;
  machine.shows_cost = false;
  EXPECT_EQ(paces(true, 8, 1, machine).long_ms, paces(false, 8, 1, machine).long_ms);
}

TEST(AdaptiveBatch, AShortPromptBehindALongOneIsNotHeldUp) {
  for (const bool adaptive : {false, true}) {
    PolicyRig rig({.target_itl_ms = 50, .adaptive_batch = adaptive});
    for (int i = 0; i < 4; ++i)
      rig.add({.n_generated_max = 100'000});
    rig.step();
    const Job& longer = rig.add({.n_prompt = 6000, .n_generated_max = 1});
    rig.step();
    const Job& shorter = rig.add({.n_prompt = 60, .n_generated_max = 1});
    const std::uint64_t n_steps = rig.n_steps;
    rig.run_until([&] { return shorter.has_ended; });
    if (adaptive) {
      EXPECT_LE(rig.n_steps - n_steps, 2U);
      EXPECT_FALSE(longer.has_ended);
    } else {
      EXPECT_GT(rig.n_steps - n_steps, 10U);
    }
  }
}

TEST(AdaptiveBatch, ALongPromptKeepsHalfOfTheTimeWhateverComes) {
  const auto time_ms = [](bool beset) {
    PolicyRig rig({.target_itl_ms = 50, .adaptive_batch = true});
    rig.add({.n_generated_max = 100'000});
    rig.step();
    const Job& longer = rig.add({.n_prompt = 6000, .n_generated_max = 1});
    const std::uint64_t before = rig.now_ns;
    rig.run_until([&] {
      if (beset)
        for (int i = 0; i < 4; ++i)
          rig.add({.n_prompt = 100, .n_generated_max = 1});
      return longer.has_ended;
    });
    return static_cast<double>(rig.now_ns - before) * 1e-6;
  };
  EXPECT_LE(time_ms(true), 2.2 * time_ms(false));
}

TEST(AdaptiveBatch, WithoutItPromptsGoOneAfterTheOther) {
  PolicyRig rig({});
  const Job& first = rig.add({.n_prompt = 1500, .n_generated_max = 1});
  const Job& second = rig.add({.n_prompt = 60, .n_generated_max = 1});
  rig.run();
  EXPECT_EQ(first.chunks, (std::vector<std::uint32_t>{512, 512, 476}));
  EXPECT_EQ(second.chunks, (std::vector<std::uint32_t>{60}));
  EXPECT_LT(first.ended_ns, second.ended_ns);
}

TEST(AdaptiveBatch, OfLongPromptsEachLeavesHalfToShorterOnesBehindIt) {
  PolicyRig rig({.adaptive_batch = true});
  for (const std::uint32_t n_prompt : {8000, 3000, 1200})
    rig.add({.n_prompt = n_prompt, .n_generated_max = 1});
  for (int i = 0; i < 4; ++i)
    rig.step();
  EXPECT_EQ(rig.jobs[0].n_computed, 4U * 256U);
  EXPECT_EQ(rig.jobs[1].n_computed, 4U * 128U);
  EXPECT_EQ(rig.jobs[2].n_computed, 4U * 128U);
}

TEST(AdaptiveBatch, LongPromptsOfOneLengthGoOneAfterTheOther) {
  PolicyRig rig({.adaptive_batch = true});
  for (int i = 0; i < 3; ++i)
    rig.add({.n_prompt = 1000, .n_generated_max = 1});
  rig.run();
  for (const Job& job : rig.jobs)
    EXPECT_EQ(job.chunks, (std::vector<std::uint32_t>{512, 488}));
}

}  // namespace
}  // namespace luna::test
