// Whole workloads, by seeds: plans stay legal, everybody is served, and twice the same is the same.
#include "support/policy_rig.hpp"
#include "support/test_seed.hpp"

#include <gtest/gtest.h>

#include <random>

namespace luna::test {
namespace {

struct Random {
  std::mt19937 engine;
  std::uint32_t operator()() { return static_cast<std::uint32_t>(engine()); }
};

StaticOptions random_options(Random& rng) {
  const auto pick = [&](std::initializer_list<std::int64_t> values) {
    return *(values.begin() + rng() % values.size());
  };
  return {.target_itl_ms = pick({0, 10, 100}),
          .ageing_ms = pick({0, 100, 1000}),
          .max_queue_ms = pick({0, 0, 3000}),
          .fair_tenants = rng() % 2 == 0,
          .adaptive_batch = rng() % 2 == 0};
}

MachineOptions random_machine(Random& rng) {
  MachineOptions machine;
  machine.cost.kv_ns = rng() % 2 == 0 ? 100.0 : 5000.0;
  machine.shows_cost = rng() % 4 != 0;
  machine.n_rows_max = 1 + rng() % 300;
  machine.n_seqs_max = std::min(1 + rng() % 20, machine.n_rows_max);
  machine.n_blocks = 20 + rng() % 100;
  return machine;
}

/// A workload of its own for each seed; every request fits the machine alone.
std::uint64_t run_workload(std::uint32_t seed) {
  Random rng{std::mt19937(seed)};
  const StaticOptions options = random_options(rng);
  PolicyRig rig(options, random_machine(rng));
  const std::uint32_t n_tokens_max = rig.machine.n_blocks * rig.machine.block_tokens;
  for (int i = 0; i < 60; ++i) {
    Job job;
    job.n_prompt = 1 + rng() % (rng() % 4 == 0 ? n_tokens_max * 3 / 4 : 60);
    job.n_generated_max = 1 + rng() % std::min(80U, n_tokens_max - job.n_prompt);
    job.priority = static_cast<std::int32_t>(rng() % 5) - 2;
    job.tenant = rng() % 4;
    if (rng() % 3 == 0) job.n_draft = rng() % 8;
    if (rng() % 5 == 0) job.deadline_ns = rig.now_ns + (1 + rng() % 5000) * kMs;
    rig.add(job);
    for (std::uint32_t n = rng() % 6; n > 0; --n)
      rig.step();
  }
  rig.run();
  EXPECT_EQ(rig.n_blocks_used(), 0U);
  for (const Job& job : rig.jobs) {
    EXPECT_TRUE(job.has_ended);
    if (!job.rejected_for) {
      EXPECT_EQ(job.n_generated, job.n_generated_max);
    } else if (*job.rejected_for == LUNA_REASON_QUEUE_LONG) {
      EXPECT_GT(options.max_queue_ms, 0);
    } else {
      EXPECT_EQ(*job.rejected_for, LUNA_REASON_DEADLINE);
      EXPECT_NE(job.deadline_ns, 0U);
    }
  }
  return rig.plan_hash;
}

TEST(Workload, EverybodyIsServedAndTheSameTwiceIsTheSame) {
  const std::uint32_t first = test_seed();
  for (std::uint32_t seed = first; seed < first + 50; ++seed) {
    SCOPED_TRACE("LUNA_TEST_SEED=" + std::to_string(seed));
    const std::uint64_t hash = run_workload(seed);
    EXPECT_EQ(run_workload(seed), hash);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace luna::test
