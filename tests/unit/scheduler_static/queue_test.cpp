// Requests that would wait too long are refused, the last first.
#include "support/policy_rig.hpp"

#include <gtest/gtest.h>

namespace luna::test {
namespace {

constexpr MachineOptions kOneSeat{.n_seqs_max = 1};

std::size_t n_refused(const PolicyRig& rig) {
  return static_cast<std::size_t>(
      std::count_if(rig.jobs.begin(), rig.jobs.end(), [](const Job& job) {
        return job.rejected_for == LUNA_REASON_QUEUE_LONG;
      }));
}

TEST(MaxQueue, WithoutItEverybodyWaits) {
  PolicyRig rig({}, kOneSeat);
  for (int i = 0; i < 50; ++i)
    rig.add({.n_generated_max = 100});
  rig.run();
  EXPECT_EQ(n_refused(rig), 0U);
}

TEST(MaxQueue, ByTheDrainMeasuredTheLastAreRefused) {
  // A request takes about half a second.
  PolicyRig rig({.max_queue_ms = 2000}, kOneSeat);
  for (int i = 0; i < 3; ++i)
    rig.add({.n_generated_max = 150});
  rig.run();
  EXPECT_EQ(n_refused(rig), 0U);
  for (int i = 0; i < 20; ++i)
    rig.add({.n_generated_max = 150});
  rig.step();
  const std::size_t n_at_once = n_refused(rig);
  EXPECT_NEAR(static_cast<double>(n_at_once), 20 - 5, 2);
  for (std::size_t i = 3; i < rig.jobs.size(); ++i)
    EXPECT_EQ(rig.jobs[i].rejected_for.has_value(), i >= rig.jobs.size() - n_at_once) << i;
  for (const Job& job : rig.jobs) {
    if (!job.rejected_for) continue;
    EXPECT_EQ(job.told_wait_ms_max, 2000U);
    EXPECT_GE(job.told_wait_ms, 2000U);
    EXPECT_LT(job.told_wait_ms, 20'000U);
  }
  rig.run();
  for (const Job& job : rig.jobs) {
    if (job.rejected_for) continue;
    EXPECT_LE(job.started_ns - job.arrival_ns, 2600 * kMs);
  }
}

TEST(MaxQueue, BeforeAnyDrainWasMeasuredTheCostsDecide) {
  // A prompt of 2000 tokens takes 0.6 s and more.
  PolicyRig rig({.max_queue_ms = 2000}, {.n_blocks = 70});
  for (int i = 0; i < 10; ++i)
    rig.add({.n_prompt = 2000, .n_generated_max = 2});
  rig.step();
  EXPECT_NEAR(static_cast<double>(n_refused(rig)), 10 - 4, 1);
  EXPECT_FALSE(rig.jobs.front().rejected_for.has_value());
}

TEST(MaxQueue, WithoutCostsAndDrainOnlyTheTimeThatHasPassedCounts) {
  PolicyRig rig({.max_queue_ms = 2000}, {.shows_cost = false, .n_seqs_max = 1});
  rig.add({.n_generated_max = 10'000});
  rig.step();
  const Job& waiting = rig.add({});
  rig.step();
  EXPECT_FALSE(waiting.rejected_for.has_value());
  rig.now_ns += 1990 * kMs;
  rig.step();
  EXPECT_FALSE(waiting.rejected_for.has_value());
  rig.now_ns += 10 * kMs;
  rig.step();
  EXPECT_EQ(waiting.rejected_for, LUNA_REASON_QUEUE_LONG);
}

TEST(MaxQueue, WhoRanBeforeIsNotRefused) {
  PolicyRig rig({.max_queue_ms = 200}, {.n_blocks = 12});
  rig.add({.n_prompt = 100, .n_generated_max = 200});
  rig.add({.n_prompt = 100, .n_generated_max = 200});
  rig.run();
  EXPECT_GT(rig.jobs.back().n_preempted, 0U);
  EXPECT_EQ(n_refused(rig), 0U);
  EXPECT_EQ(rig.jobs.back().n_generated, 200U);
}

}  // namespace
}  // namespace luna::test
