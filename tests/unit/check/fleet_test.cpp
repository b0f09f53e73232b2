// The machine that judges policies is fair: what it shows keeps to what core promises of snapshots.
#include "core/check/fleet.hpp"

#include "core/check/workload.hpp"
#include "core/engine/snapshot_check.hpp"
#include "support/test_seed.hpp"

#include <luna/scheduler.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace luna::check {
namespace {

struct Fifo final : Scheduler {
  void plan(const Snapshot&, Plan& out) override {
    for (const std::uint32_t i : out.order())
      if (!out.take(i)) break;
  }
};

TEST(Fleet, ShowsWhatCorePromisesAndComesToAnEnd) {
  for (std::uint64_t seed = test::test_seed(); seed < test::test_seed() + 40; ++seed) {
    SchedulerInstance<Fifo> policy(std::make_unique<Fifo>());
    Workload workload(seed);
    Fleet fleet(workload.draw_fleet(false),
                [&](const luna_snapshot& s, luna_plan& plan, luna_err& err) {
                  const auto checked = engine::check_snapshot(s);
                  EXPECT_TRUE(checked) << checked.error().message();
                  return SchedulerInstance<Fifo>::plan(&policy, &s, &plan, &err);
                });
    EXPECT_TRUE(workload.run(fleet, 100)) << "seed " << seed << ": " << fleet.describe_first();
    for (const FleetBreach& breach : fleet.breaches)
      ADD_FAILURE() << "seed " << seed << ": " << breach.breach.text;
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(Fleet, StandsStillFromTheFirstBreachOn) {
  Fleet fleet({}, [](const luna_snapshot&, luna_plan& plan, luna_err&) {
    luna_action& action = plan.actions[plan.n_actions++];
    action.row = 99;
    action.verb = LUNA_VERB_RUN;
    return LUNA_OK;
  });
  fleet.add({});
  EXPECT_FALSE(fleet.run());
  ASSERT_FALSE(fleet.breaches.empty());
  EXPECT_EQ(fleet.breaches[0].breach.rule, "S1");
  EXPECT_FALSE(fleet.turn());
}

TEST(Fleet, ADraftThatIsWrongCostsBlocksAndNoToken) {
  SchedulerInstance<Fifo> policy(std::make_unique<Fifo>());
  FleetOptions options;
  options.groups.assign(1, {});
  Fleet fleet(options, [&](const luna_snapshot& s, luna_plan& plan, luna_err& err) {
    return SchedulerInstance<Fifo>::plan(&policy, &s, &plan, &err);
  });
  const FleetJob& job = fleet.add({.n_prompt = 30, .n_generated_max = 6, .n_draft = 4});
  EXPECT_TRUE(fleet.run());
  EXPECT_TRUE(job.has_ended);
  EXPECT_EQ(job.n_generated, 6U);
  EXPECT_EQ(fleet.n_plans, 6U);
}

// The second finds what the first holds: it is charged its own blocks alone, and gives back those.
TEST(Fleet, RowsThatBeginAlikeHoldTheirFirstBlocksOnce) {
  SchedulerInstance<Fifo> policy(std::make_unique<Fifo>());
  std::vector<luna_req_row> last;
  FleetOptions options;
  options.groups.assign(1, {});
  Fleet fleet(options, [&](const luna_snapshot& s, luna_plan& plan, luna_err& err) {
    last.assign(s.reqs, s.reqs + s.n_reqs);
    return SchedulerInstance<Fifo>::plan(&policy, &s, &plan, &err);
  });
  fleet.add({.n_prompt = 100, .n_generated_max = 50, .twin = 2, .n_alike = 64});
  EXPECT_TRUE(fleet.turn());
  const std::uint32_t n_alone = fleet.n_blocks_used(0);
  EXPECT_EQ(n_alone, 4U);
  fleet.add({.n_prompt = 90, .n_generated_max = 50, .twin = 1, .n_alike = 64});
  EXPECT_TRUE(fleet.turn());
  ASSERT_EQ(last.size(), 2U);
  EXPECT_EQ(last[1].n_computed, 64U);
  EXPECT_EQ(last[1].n_kv_blocks_shared, 2U);
  EXPECT_EQ(fleet.n_shared_starts, 1U);
  EXPECT_EQ(fleet.n_blocks_used(0), n_alone + 1);
  EXPECT_TRUE(fleet.turn());
  EXPECT_EQ(last[0].n_kv_blocks_freed, last[0].n_kv_blocks - 2);
  EXPECT_TRUE(fleet.run());
  EXPECT_EQ(fleet.n_blocks_used(0), 0U);
}

TEST(Fleet, AForkedRowCopiesItsLastBlockWhenOneOfBothWrites) {
  SchedulerInstance<Fifo> policy(std::make_unique<Fifo>());
  FleetOptions options;
  options.groups.assign(1, {});
  std::uint32_t n_copied = 0;
  Fleet fleet(options, [&](const luna_snapshot& s, luna_plan& plan, luna_err& err) {
    for (std::uint32_t i = 0; i < s.n_reqs; ++i)
      n_copied += s.reqs[i].n_kv_blocks_copied;
    return SchedulerInstance<Fifo>::plan(&policy, &s, &plan, &err);
  });
  fleet.add({.n_prompt = 40, .n_generated_max = 5, .forks = true});
  EXPECT_TRUE(fleet.run());
  EXPECT_EQ(fleet.jobs.size(), 2U);
  EXPECT_EQ(fleet.jobs[1].n_generated, 5U);
  EXPECT_EQ(n_copied, 2U);  // both were shown it once; the first to run took the copy
}

TEST(Fleet, APartThatIsSlicedIsHeldWhereItLies) {
  FleetOptions options;
  options.groups.assign(2, {});
  options.bytes_per_ns = 0.0005;  // some steps for a part
  options.can_slice = true;
  std::uint32_t n_slices = 0;
  std::uint32_t n_copying = 0;
  Fleet fleet(options, [&](const luna_snapshot& s, luna_plan& plan, luna_err&) {
    const luna_req_row& row = s.reqs[0];
    for (std::uint32_t i = 0; i < s.n_slices; ++i)
      (s.slices[i].is_copying != 0 ? n_copying : n_slices) += 1;
    const auto act = [&](std::uint16_t verb, std::uint32_t device, std::uint32_t n) {
      luna_action& action = plan.actions[plan.n_actions++];
      action = {};
      action.verb = verb;
      action.device = device;
      action.n_tokens = n;
    };
    if (row.device == LUNA_NO_DEVICE) act(LUNA_VERB_ASSIGN, 0, 0);
    if (row.slice_end_token >= LUNA_PARTITION_TOKENS && row.slice_first_token == 0 &&
        s.n_slices == 0)
      act(LUNA_VERB_SLICE, 1, LUNA_PARTITION_TOKENS);
    const bool decodes = row.state == LUNA_REQ_DECODE;
    if (s.devices[0].n_steps_in_flight == 0)
      act(LUNA_VERB_RUN, 0, decodes ? 1 : std::min(row.n_prompt - row.n_computed, 200U));
    return LUNA_OK;
  });
  fleet.add({.n_prompt = 600, .n_generated_max = 20});
  while (n_slices == 0 && fleet.turn()) {}
  EXPECT_GT(n_copying, 0U);
  EXPECT_GT(n_slices, 0U);
  EXPECT_EQ(fleet.n_blocks_used(1), LUNA_PARTITION_TOKENS / options.block_tokens);
  EXPECT_TRUE(fleet.run());
  for (const FleetBreach& breach : fleet.breaches)
    ADD_FAILURE() << breach.breach.text;
  EXPECT_EQ(fleet.n_blocks_used(1), 0U);
}

}  // namespace
}  // namespace luna::check
