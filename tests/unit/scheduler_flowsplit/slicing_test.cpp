// What a group that is short of memory gives to the devices of others, and what comes back.
#include "core/check/plan_legality.hpp"
#include "plugins/scheduler_flowsplit/flow_policy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace luna::test {
namespace {

using namespace scheduler_flowsplit;  // NOLINT(google-build-using-namespace): one class a test

constexpr std::uint32_t kBlockTokens = 32;

/// Group 0 holds two long conversations; groups 1 and 2 have some room, of different size.
class Scene {
 public:
  Scene() {
    for (std::uint32_t g = 0; g < 3; ++g) {
      luna_device_row device{};
      device.device = device.group = g;
      device.n_kv_blocks_total = std::array{200U, 400U, 1200U}[g];
      device.n_kv_blocks_free = device.n_kv_blocks_total;
      device.kv_bytes_total = std::uint64_t{device.n_kv_blocks_total} * 4096;
      device.kv_bytes_free = device.kv_bytes_total;
      device.n_steps_in_flight_max = 1;
      device.step_ns_fixed = 3e6F;
      device.step_ns_per_row = 2e5F;
      device.step_ns_per_kv_token = 100.0F;
      device.attention = 7;
      device.slice_set = 1;
      devices.push_back(device);
    }
    for (std::uint64_t id = 1; id <= 2; ++id) {
      luna_req_row row{};
      row.id = id;
      row.state = LUNA_REQ_DECODE;
      row.n_prompt = 2500;
      row.n_computed = 2600;
      row.n_generated = 100;
      row.n_generated_max = 2000;
      row.n_kv_blocks = row.n_kv_blocks_freed = 82;
      row.moving_to = LUNA_NO_DEVICE;
      row.slice_end_token = 9 * 256;
      reqs.push_back(row);
    }
    devices[0].n_kv_blocks_free = 200 - 164;
    // At 55 % they take parts of a row, and no row.
    devices[1].n_kv_blocks_free = 180;
    devices[2].n_kv_blocks_free = 540;
  }

  /// The actions of a plan at a decision, but RUN.
  std::vector<luna_action> decide() {
    now_ns += interval_ns;
    luna_snapshot s{};
    s.struct_size = sizeof(s);
    s.req_stride = sizeof(luna_req_row);
    s.device_stride = sizeof(luna_device_row);
    s.slice_stride = sizeof(luna_slice_row);
    s.n_reqs = static_cast<std::uint32_t>(reqs.size());
    s.n_devices = static_cast<std::uint32_t>(devices.size());
    s.n_slices = static_cast<std::uint32_t>(slices.size());
    s.n_rows_max = 64;
    s.n_seqs_max = 8;
    s.kv_block_tokens = kBlockTokens;
    s.now_ns = now_ns;
    s.n_steps_in_flight_max = 3;
    s.verbs = verbs;
    s.reqs = reqs.data();
    s.devices = devices.data();
    s.slices = slices.data();
    std::vector<luna_action> actions(64);
    luna_plan plan{};
    plan.struct_size = sizeof(plan);
    plan.n_actions_max = 64;
    plan.actions = actions.data();
    luna_err err = make_err();
    EXPECT_EQ(SchedulerInstance<FlowPolicy>::plan(&policy, &s, &plan, &err), LUNA_OK);
    for (const check::PlanBreach& breach : check::PlanLegality(s, plan).faults())
      ADD_FAILURE() << breach.text;
    actions.resize(plan.n_actions);
    std::erase_if(actions, [](const luna_action& action) { return action.verb == LUNA_VERB_RUN; });
    return actions;
  }

  std::vector<luna_req_row> reqs;
  std::vector<luna_device_row> devices;
  std::vector<luna_slice_row> slices;
  std::uint64_t now_ns = 1'000'000'000;
  std::uint64_t interval_ns = 1'000'000'000;
  std::uint32_t verbs = UINT32_MAX;
  FlowOptions options{.target_itl_ms = 100, .ageing_ms = 1000};
  SchedulerInstance<FlowPolicy> policy{std::make_unique<FlowPolicy>(options)};
};

TEST(Slicing, APressedGroupGivesItsOldestPartitionsInUnequalParts) {
  Scene scene;
  const auto actions = scene.decide();
  ASSERT_GE(actions.size(), 1U);
  std::uint32_t n_tokens = 0;
  std::uint32_t end = 0;
  for (const luna_action& action : actions) {
    EXPECT_EQ(action.verb, LUNA_VERB_SLICE);
    EXPECT_EQ(action.reason, kSliceMemory);
    EXPECT_NE(action.device, 0U);
    EXPECT_EQ(action.row, actions.front().row);
    n_tokens += action.n_tokens;
    end = std::max(end, action.first_token + action.n_tokens);
  }
  // 82 % of 200 blocks, to come to 65 %: 34 blocks, which are five partitions of eight.
  EXPECT_EQ(n_tokens, 5U * 256U);
  EXPECT_EQ(end, 5U * 256U) << "the newest partitions stay";
}

TEST(Slicing, RowsWhoseKvIsOnItsWayAreLeftAlone) {
  Scene scene;
  scene.slices = {{0, 2, 0, 1024, 1, 0.0F}, {1, 2, 0, 1024, 1, 0.0F}};
  EXPECT_TRUE(scene.decide().empty());
}

TEST(Slicing, MoreFollowsBehindWhatIsAway) {
  Scene scene;
  scene.slices = {{0, 2, 0, 512, 0, 0.0F}, {1, 1, 0, 512, 0, 0.0F}};
  for (const luna_action& action : scene.decide())
    EXPECT_GE(action.first_token, 512U);
}

TEST(Slicing, ARelaxedGroupTakesItsNewestPartBack) {
  Scene scene;
  scene.devices[0].n_kv_blocks_free = 190;
  scene.slices = {{0, 2, 0, 512, 0, 0.0F}, {0, 1, 512, 256, 0, 0.0F}};
  const auto actions = scene.decide();
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(actions[0].verb, LUNA_VERB_SLICE);
  EXPECT_EQ(actions[0].reason, kHome);
  EXPECT_EQ(actions[0].device, 0U);
  EXPECT_EQ(actions[0].first_token, 512U);
  EXPECT_EQ(actions[0].n_tokens, 256U);
}

TEST(Slicing, AHostThatSlicesNothingIsAskedForNothing) {
  Scene scene;
  scene.verbs = 1U << LUNA_VERB_RUN;
  EXPECT_TRUE(scene.decide().empty());
}

TEST(Slicing, AGroupWhoseDecodingRowsFindNoBlockGivesSomeAtOnce) {
  Scene scene;
  scene.decide();  // nothing is due for a while
  scene.interval_ns = 1'000'000;
  scene.devices[0].n_kv_blocks_free = 1;
  const auto actions = scene.decide();
  ASSERT_FALSE(actions.empty());
  EXPECT_EQ(actions[0].verb, LUNA_VERB_SLICE);
  EXPECT_EQ(actions[0].reason, kSliceMemory);
}

TEST(Slicing, AGroupThatIsNotLinkedTakesNoPart) {
  Scene scene;
  scene.devices[2].slice_set = 0;
  for (const luna_action& action : scene.decide())
    EXPECT_EQ(action.device, 1U);
}

TEST(Slicing, OtherArithmeticTakesNoPart) {
  Scene scene;
  scene.devices[2].attention = 8;
  for (const luna_action& action : scene.decide())
    EXPECT_EQ(action.device, 1U);
}

}  // namespace
}  // namespace luna::test
