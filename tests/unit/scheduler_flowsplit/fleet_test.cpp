// Whole sessions in virtual time over groups of devices: legal plans, service for all, the same
// plans for the same tables.
#include "plugins/scheduler_flowsplit/flow_policy.hpp"
#include "plugins/scheduler_static/static_policy.hpp"
#include "support/fleet_rig.hpp"
#include "support/test_seed.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

namespace luna::test {
namespace {

using scheduler_flowsplit::FlowOptions;
using scheduler_flowsplit::FlowPolicy;
using scheduler_static::StaticPolicy;
using Rig = FleetRig<FlowPolicy>;

FlowOptions shipped() {
  FlowOptions options;
  options.target_itl_ms = 100;
  options.ageing_ms = 1000;
  options.fair_tenants = true;
  options.adaptive_batch = true;
  return options;
}

std::unique_ptr<FlowPolicy> policy(const FlowOptions& options = shipped()) {
  return std::make_unique<FlowPolicy>(options);
}

/// Jobs of all kinds that come in bursts while others run.
template <typename Policy>
void run_workload(FleetRig<Policy>& rig,
                  std::uint64_t seed,
                  std::uint32_t n_jobs,
                  bool has_tenants) {
  std::mt19937_64 random(seed);
  const auto below = [&random](std::uint32_t n) {
    return static_cast<std::uint32_t>(random() % n);
  };
  std::uint32_t n_left = n_jobs;
  while (n_left > 0) {
    for (std::uint32_t n = std::min(n_left, 1 + below(12)); n > 0; --n, --n_left) {
      FleetJob job;
      job.n_prompt = 1 + below(below(5) == 0 ? 1500 : 120);
      job.n_generated_max = 1 + below(60);
      job.priority = static_cast<std::int32_t>(below(3));
      job.tenant = has_tenants ? 1 + below(4) : 0;
      if (below(6) == 0 && rig.options.groups.size() > 1) {
        job.n_found.resize(rig.options.groups.size());
        job.n_found[below(static_cast<std::uint32_t>(job.n_found.size()))] =
            job.n_prompt / 32 * 32 / 2;
        if (job.n_found.front() >= job.n_prompt) job.n_found.clear();
      }
      rig.add(job);
    }
    for (std::uint32_t n = below(30); n > 0; --n)
      if (!rig.turn()) break;
  }
  rig.run();
}

TEST(FlowPolicy, EveryPlanIsLegalAndEveryRequestEnds) {
  for (std::uint64_t seed = test_seed(); seed < test_seed() + 12; ++seed) {
    FleetOptions options;
    options.groups.assign(1 + seed % 4, {});
    for (std::size_t g = 0; g < options.groups.size(); ++g) {
      options.groups[g].n_devices = 1 + static_cast<std::uint32_t>((seed + g) % 3);
      options.groups[g].n_steps_max = options.groups[g].n_devices;
      options.groups[g].n_blocks = 60 + 40 * static_cast<std::uint32_t>(g);
      options.groups[g].cost.row_ns *= 1.0 + static_cast<double>(g);
    }
    options.shows_cost = seed % 5 != 0;
    options.bytes_per_ns = seed % 2 == 0 ? 1.0 : 0.0;
    FlowOptions with = shipped();
    with.streaming_mode = seed % 3 == 0;
    Rig rig(policy(with), options);
    run_workload(rig, seed, 150, seed % 2 == 0);
    for (const FleetJob& job : rig.jobs)
      EXPECT_TRUE(job.has_ended && !job.rejected_for) << "request " << job.id;
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(FlowPolicy, TheSameTablesGiveTheSamePlans) {
  for (std::uint64_t seed = test_seed(); seed < test_seed() + 3; ++seed) {
    FleetOptions options;
    options.groups.resize(3);
    Rig a(policy(), options);
    Rig b(policy(), options);
    run_workload(a, seed, 120, true);
    run_workload(b, seed, 120, true);
    EXPECT_EQ(a.plan_hash, b.plan_hash);
    EXPECT_EQ(a.n_plans, b.n_plans);
  }
}

TEST(FlowPolicy, InOneGroupItPlansWhatThePolicyStaticPlans) {
  for (std::uint64_t seed = test_seed(); seed < test_seed() + 6; ++seed) {
    FleetOptions options;
    options.groups.resize(1);
    options.groups[0].n_blocks = 200;
    options.groups[0].n_steps_max = 1 + static_cast<std::uint32_t>(seed % 3);
    Rig flow(policy(), options);
    FleetRig<StaticPolicy> plain(
        std::make_unique<StaticPolicy>(scheduler_static::StaticOptions{.target_itl_ms = 100,
                                                                       .ageing_ms = 1000,
                                                                       .max_queue_ms = 0,
                                                                       .fair_tenants = true,
                                                                       .adaptive_batch = true}),
        options);
    run_workload(flow, seed, 150, seed % 2 == 0);
    run_workload(plain, seed, 150, seed % 2 == 0);
    ASSERT_EQ(flow.jobs.size(), plain.jobs.size());
    for (std::size_t j = 0; j < flow.jobs.size(); ++j)
      ASSERT_EQ(flow.jobs[j].ended_ns, plain.jobs[j].ended_ns) << "seed " << seed << " job " << j;
  }
}

TEST(GroupStep, APromptThatWasBegunGoesOnBehindOneThatDoesNotFit) {
  FleetOptions options;
  options.groups.resize(1);
  options.groups[0].n_blocks = 60;
  options.groups[0].n_steps_max = 2;
  FleetRig<StaticPolicy> rig(
      std::make_unique<StaticPolicy>(scheduler_static::StaticOptions{.ageing_ms = 1000}), options);
  rig.add({.n_prompt = 1000, .n_generated_max = 3});
  rig.turn();
  rig.add({.n_prompt = 1500, .n_generated_max = 3, .priority = 5});
  rig.run();
  for (const FleetJob& job : rig.jobs)
    EXPECT_TRUE(job.has_ended);
}

TEST(FlowPolicy, EqualGroupsGetEqualParts) {
  FleetOptions options;
  options.groups.resize(4);
  Rig rig(policy(), options);
  for (int i = 0; i < 32; ++i)
    rig.add({.n_prompt = 100, .n_generated_max = 50});
  rig.turn();
  std::vector<int> n_of_group(4);
  for (const FleetJob& job : rig.jobs) {
    ASSERT_TRUE(job.group.has_value());
    ++n_of_group[*job.group];
  }
  for (const int n : n_of_group)
    EXPECT_EQ(n, 8);
  rig.run();
}

TEST(FlowPolicy, ARequestWaitsForTheGroupThatHasRoomFirst) {
  FleetOptions options;
  options.groups.resize(2);
  options.n_seqs_max = 2;
  Rig rig(policy(), options);
  for (int i = 0; i < 4; ++i)
    rig.add({.n_prompt = 10, .n_generated_max = i % 2 == 0 ? 400U : 40U});
  rig.turn();
  FleetJob& waiting = rig.add({.n_prompt = 10, .n_generated_max = 5});
  rig.turn();
  EXPECT_FALSE(waiting.group.has_value()) << "no group could begin with it";
  rig.run_until([&] { return waiting.has_ended; });
  EXPECT_TRUE(rig.jobs[1].has_ended || rig.jobs[3].has_ended);
  EXPECT_FALSE(rig.jobs[0].has_ended && rig.jobs[2].has_ended) << "the first room was its own";
  rig.run();
}

TEST(FlowPolicy, StreamingModeHoldsNothingBack) {
  FleetOptions options;
  options.groups.resize(2);
  options.n_seqs_max = 2;
  FlowOptions with = shipped();
  with.streaming_mode = true;
  Rig rig(policy(with), options);
  for (int i = 0; i < 12; ++i)
    rig.add({.n_prompt = 10, .n_generated_max = 100});
  rig.turn();
  for (const FleetJob& job : rig.jobs)
    EXPECT_TRUE(job.group.has_value());
  EXPECT_EQ(rig.jobs.back().assigned_for, scheduler_flowsplit::kStreaming);
  rig.run();
}

TEST(FlowPolicy, APrefixDrawsARequestToItsGroup) {
  FleetOptions options;
  options.groups.resize(3);
  Rig rig(policy(), options);
  const FleetJob& job = rig.add({.n_prompt = 640, .n_generated_max = 5, .n_found = {0, 0, 576}});
  rig.turn();
  EXPECT_EQ(job.group, 2U);
  EXPECT_EQ(job.assigned_for, scheduler_flowsplit::kPrefix);
  rig.run();
}

/// Two groups of which the first is full of conversations that will take long.
FleetOptions unequal(double bytes_per_ns) {
  FleetOptions options;
  options.groups.resize(2);
  options.groups[0].n_blocks = 64;
  options.groups[1].n_blocks = 1024;
  options.groups[0].cost.kv_ns = 10'000.0;
  options.groups[1].cost.kv_ns = 10'000.0;
  options.bytes_per_ns = bytes_per_ns;
  return options;
}

/// Eight conversations that began in the first group, for what its prefix cache had.
void fill_first(Rig& rig) {
  for (int i = 0; i < 8; ++i)
    rig.add({.n_prompt = 200, .n_generated_max = 250, .n_found = {160, 0}});
}

TEST(FlowPolicy, RowsOfAPressedGroupMoveToAnIdleOneWhenItPays) {
  Rig rig(policy(), unequal(1.0));
  fill_first(rig);
  rig.run();
  std::uint32_t n_moves = 0;
  for (const FleetJob& job : rig.jobs) {
    EXPECT_TRUE(job.has_ended);
    EXPECT_LE(job.n_moves, 1U) << "it stays where it came to";
    n_moves += job.n_moves;
  }
  EXPECT_GT(n_moves, 0U);
}

TEST(FlowPolicy, NoRowMovesOverALinkThatCostsMoreThanItBrings) {
  Rig rig(policy(), unequal(1e-7));
  fill_first(rig);
  rig.run();
  for (const FleetJob& job : rig.jobs)
    EXPECT_EQ(job.n_moves, 0U);
}

TEST(FlowPolicy, StreamingModeMovesNothing) {
  FlowOptions with = shipped();
  with.streaming_mode = true;
  Rig rig(policy(with), unequal(1.0));
  fill_first(rig);
  rig.run();
  for (const FleetJob& job : rig.jobs)
    EXPECT_EQ(job.n_moves, 0U);
}

TEST(FlowPolicy, WhoWouldWaitTooLongIsRefused) {
  FleetOptions options;
  options.groups.resize(2);
  options.n_seqs_max = 2;
  FlowOptions with = shipped();
  with.max_queue_ms = 2000;
  Rig rig(policy(with), options);
  for (int i = 0; i < 60; ++i)
    rig.add({.n_prompt = 200, .n_generated_max = 100});
  rig.run();
  std::size_t n_refused = 0;
  for (const FleetJob& job : rig.jobs) {
    if (!job.rejected_for) continue;
    EXPECT_EQ(*job.rejected_for, LUNA_REASON_QUEUE_LONG);
    ++n_refused;
  }
  EXPECT_GT(n_refused, 10U);
  EXPECT_LT(n_refused, 56U);
  EXPECT_FALSE(rig.jobs.front().rejected_for.has_value());
}

TEST(FlowPolicy, APromptThatCannotBeInTimeIsEndedAtOnce) {
  FleetOptions options;
  options.groups.resize(2);
  Rig rig(policy(), options);
  const FleetJob& late =
      rig.add({.n_prompt = 1000, .n_generated_max = 5, .deadline_ns = rig.now_ns + 50'000'000});
  const FleetJob& fine =
      rig.add({.n_prompt = 100, .n_generated_max = 5, .deadline_ns = rig.now_ns + 5'000'000'000});
  rig.run();
  EXPECT_EQ(late.rejected_for, std::uint16_t{LUNA_REASON_DEADLINE});
  EXPECT_TRUE(fine.has_ended && !fine.rejected_for);
}

}  // namespace
}  // namespace luna::test
