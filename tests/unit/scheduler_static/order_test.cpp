// Who goes first: priorities with ageing, tenants, deadlines; and who is pre-empted.
#include "support/policy_rig.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace luna::test {
namespace {

using ::testing::ElementsAre;

/// One seat, so that requests run one after the other.
constexpr MachineOptions kOneSeat{.n_seqs_max = 1};

/// Ids in the order in which they ended.
std::vector<std::uint64_t> ended(const PolicyRig& rig) {
  std::vector<const Job*> jobs;
  for (const Job& job : rig.jobs)
    jobs.push_back(&job);
  std::stable_sort(jobs.begin(), jobs.end(), [](const Job* a, const Job* b) {
    return a->ended_ns < b->ended_ns;
  });
  std::vector<std::uint64_t> ids;
  for (const Job* job : jobs)
    ids.push_back(job->id);
  return ids;
}

TEST(Priority, EqualOnesGoInOrderOfArrival) {
  PolicyRig rig({.ageing_ms = 1000}, kOneSeat);
  for (int i = 0; i < 4; ++i)
    rig.add({});
  rig.run();
  EXPECT_THAT(ended(rig), ElementsAre(1, 2, 3, 4));
}

TEST(Priority, HigherOnesGoFirst) {
  for (const std::int64_t ageing_ms : {0, 1000}) {
    PolicyRig rig({.ageing_ms = ageing_ms}, kOneSeat);
    rig.add({});
    rig.step();
    for (const std::int32_t priority : {0, -1, 5, 5, 1})
      rig.add({.priority = priority});
    rig.run();
    EXPECT_THAT(ended(rig), ElementsAre(1, 4, 5, 6, 2, 3)) << ageing_ms;
  }
}

TEST(Priority, ALevelIsWorthSoMuchWaiting) {
  const auto order = [](std::uint64_t waited_ms, std::int64_t ageing_ms) {
    PolicyRig rig({.ageing_ms = ageing_ms}, kOneSeat);
    rig.add({.n_generated_max = 1000});
    rig.step();
    rig.add({.priority = 0});
    rig.now_ns += waited_ms * kMs;
    rig.add({.priority = 3});
    rig.run();
    return ended(rig);
  };
  EXPECT_THAT(order(2900, 1000), ElementsAre(1, 3, 2));
  EXPECT_THAT(order(3100, 1000), ElementsAre(1, 2, 3));
  EXPECT_THAT(order(3'000'000, 0), ElementsAre(1, 3, 2));
}

TEST(Priority, NobodyStarvesUnderAStreamOfHigherOnes) {
  PolicyRig rig({.ageing_ms = 100}, kOneSeat);
  const Job& low = rig.add({.priority = -5});
  rig.run_until(
      [&] {
        rig.add({.priority = 5});
        return low.has_ended;
      },
      10'000);
}

TEST(Priority, TheNewestOfTheLowestIsPreempted) {
  // Room for four answers of 100 + 100 tokens, not for five.
  PolicyRig rig({}, {.n_blocks = 24});
  for (const std::int32_t priority : {0, 0, -1, 1, 0})
    rig.add({.n_prompt = 100, .n_generated_max = 100, .priority = priority});
  rig.run_until([&] {
    return std::any_of(
        rig.jobs.begin(), rig.jobs.end(), [](const Job& job) { return job.n_preempted > 0; });
  });
  EXPECT_EQ(rig.jobs[2].n_preempted, 1U);
  rig.run();
  EXPECT_EQ(rig.jobs[3].n_preempted, 0U);
  EXPECT_EQ(rig.jobs[0].n_preempted, 0U);
}

TEST(Priority, ARowThatWouldFreeNothingIsNotPreempted) {
  PolicyRig rig({}, {.n_blocks = 24});
  for (int i = 0; i < 4; ++i)
    rig.add({.n_prompt = 100, .n_generated_max = 100, .shares_blocks = i == 3});
  rig.add({.n_prompt = 20, .n_generated_max = 4});
  rig.run();
  EXPECT_GT(rig.jobs[2].n_preempted, 0U);
  EXPECT_EQ(rig.jobs[3].n_preempted, 0U);
}

TEST(Tenants, AFloodOfOneDoesNotHoldUpAnother) {
  PolicyRig rig({.fair_tenants = true}, kOneSeat);
  for (int i = 0; i < 20; ++i)
    rig.add({.n_prompt = 100, .n_generated_max = 50, .tenant = 1});
  rig.step();
  const Job& other = rig.add({.n_prompt = 100, .n_generated_max = 50, .tenant = 2});
  rig.run();
  EXPECT_EQ(ended(rig)[1], other.id);
}

TEST(Tenants, WhereTheyAreNotToldApartArrivalDecides) {
  PolicyRig rig({.fair_tenants = false}, kOneSeat);
  for (int i = 0; i < 5; ++i)
    rig.add({.tenant = 1});
  const Job& other = rig.add({.tenant = 2});
  rig.run();
  EXPECT_EQ(ended(rig).back(), other.id);
}

TEST(Tenants, AreServedEvenlyWhateverTheyAskFor) {
  PolicyRig rig({.fair_tenants = true}, {.n_seqs_max = 4});
  std::array<double, 4> served{};
  // One floods with short requests, one with long answers, one with long prompts.
  const std::array<Job, 3> kinds = {Job{.n_prompt = 10, .n_generated_max = 10, .tenant = 1},
                                    Job{.n_prompt = 10, .n_generated_max = 200, .tenant = 2},
                                    Job{.n_prompt = 400, .n_generated_max = 5, .tenant = 3}};
  for (int i = 0; i < 300; ++i)
    for (const Job& kind : kinds)
      rig.add(kind);
  const auto has_work = [&](std::uint32_t tenant) {
    return std::any_of(rig.jobs.begin(), rig.jobs.end(), [&](const Job& job) {
      return job.tenant == tenant && job.started_ns == 0;
    });
  };
  while (has_work(1) && has_work(2) && has_work(3))
    rig.step();
  for (const Job& job : rig.jobs)
    served[job.tenant] +=
        static_cast<double>(job.n_prompt_computed) + 2.0 * static_cast<double>(job.n_verified);
  const auto [least, most] = std::minmax_element(served.begin() + 1, served.end());
  // At most what one tenant can have in the seats.
  EXPECT_LE(*most - *least, 4 * 410.0);
  EXPECT_GT(*least, 2000.0);
}

TEST(Tenants, APauseSavesNothingUp) {
  PolicyRig rig({.fair_tenants = true}, kOneSeat);
  rig.add({.tenant = 2});
  rig.run();
  for (int i = 0; i < 100; ++i)
    rig.add({.n_prompt = 100, .n_generated_max = 50, .tenant = 1});
  rig.run_until([&] { return rig.jobs[50].has_ended; });
  // It comes back with as much work as the other has left, and gets half of the time, not all.
  const std::size_t n_before = rig.jobs.size();
  for (int i = 0; i < 40; ++i)
    rig.add({.n_prompt = 100, .n_generated_max = 50, .tenant = 2});
  const auto n_ended = [&](std::uint32_t tenant) {
    return std::count_if(rig.jobs.begin(), rig.jobs.end(), [&](const Job& job) {
      return job.tenant == tenant && job.has_ended;
    });
  };
  rig.run_until([&] { return rig.jobs[n_before + 19].has_ended; });
  EXPECT_NEAR(static_cast<double>(n_ended(1)), 51 + 20, 2);
}

TEST(Tenants, NumbersBeyondTheTableShareAccountsAndAreServed) {
  PolicyRig rig({.fair_tenants = true}, kOneSeat);
  for (const std::uint32_t tenant : {0U, 1023U, 1024U, 0xFFFFFFFFU})
    rig.add({.tenant = tenant});
  rig.run();
  EXPECT_EQ(ended(rig).size(), 4U);
}

TEST(Deadlines, TheEarliestThatPressesGoesFirst) {
  PolicyRig rig({}, kOneSeat);
  rig.add({.n_generated_max = 400});  // some two seconds
  rig.step();
  rig.add({});
  rig.add({.deadline_ns = rig.now_ns + 2600 * kMs});
  rig.add({.deadline_ns = rig.now_ns + 2500 * kMs});
  rig.add({.deadline_ns = rig.now_ns + 3'600'000 * kMs});  // an hour: it buys nothing
  rig.run();
  EXPECT_THAT(ended(rig), ElementsAre(1, 4, 3, 2, 5));
}

TEST(Deadlines, WhatCannotBeComputedInTimeIsRefusedAtOnce) {
  PolicyRig rig({});
  const Job& late = rig.add({.n_prompt = 6000, .deadline_ns = rig.now_ns + 500 * kMs});
  const Job& early = rig.add({.n_prompt = 500, .deadline_ns = rig.now_ns + 500 * kMs});
  rig.step();
  EXPECT_EQ(late.rejected_for, LUNA_REASON_DEADLINE);
  EXPECT_FALSE(early.rejected_for.has_value());
  rig.run();
}

TEST(Deadlines, OneThatPassesWhileAPromptIsComputedEndsIt) {
  PolicyRig rig({.target_itl_ms = 20});
  rig.add({.n_generated_max = 2000});
  rig.step();
  // Alone it would be in time; beside the other it is not.
  const Job& late = rig.add({.n_prompt = 2000, .deadline_ns = rig.now_ns + 520 * kMs});
  rig.run();
  EXPECT_EQ(late.rejected_for, LUNA_REASON_DEADLINE);
  EXPECT_GT(late.chunks.size(), 0U);
}

}  // namespace
}  // namespace luna::test
