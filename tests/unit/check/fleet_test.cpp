// The machine that judges policies is fair: what it shows keeps to what core promises of snapshots.
#include "core/check/fleet.hpp"

#include "core/check/workload.hpp"
#include "core/engine/snapshot_check.hpp"
#include "support/test_seed.hpp"

#include <luna/scheduler.hpp>

#include <gtest/gtest.h>

#include <memory>

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
    Fleet fleet(workload.draw_fleet(), [&](const luna_snapshot& s, luna_plan& plan, luna_err& err) {
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

}  // namespace
}  // namespace luna::check
