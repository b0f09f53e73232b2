// Rows larger than any group: when they begin, what is kept for them, what of them leaves home.
#include "core/check/plan_legality.hpp"
#include "plugins/scheduler_flowsplit/flow_policy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace luna::test {
namespace {

using namespace scheduler_flowsplit;  // NOLINT(google-build-using-namespace): one class a test

constexpr std::uint32_t kBlockTokens = 32;
constexpr std::uint32_t kGroups = 3;
constexpr std::uint32_t kBlocks = 40;

/// Three equal groups; rows as a test wants them.
class Scene {
 public:
  explicit Scene(bool streaming_mode = false) {
    FlowOptions options{.target_itl_ms = 100, .ageing_ms = 1000};
    options.streaming_mode = streaming_mode;
    policy_ =
        std::make_unique<SchedulerInstance<FlowPolicy>>(std::make_unique<FlowPolicy>(options));
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      luna_device_row device{};
      device.device = device.group = g;
      device.n_kv_blocks_total = device.n_kv_blocks_free = kBlocks;
      device.n_steps_in_flight_max = 1;
      device.attention = 7;
      device.slice_set = 1;
      devices.push_back(device);
    }
  }

  luna_req_row& add(std::uint32_t n_prompt, std::uint32_t n_generated_max) {
    luna_req_row row{};
    row.id = reqs.size() + 1;
    row.arrival_ns = row.id;
    row.n_prompt = n_prompt;
    row.n_generated_max = n_generated_max;
    row.device = row.moving_to = LUNA_NO_DEVICE;
    reqs.push_back(row);
    return reqs.back();
  }
  /// One that has so much of its prompt computed, all of it in a group.
  luna_req_row& add_begun(std::uint32_t n_prompt,
                          std::uint32_t n_generated_max,
                          std::uint32_t n_computed,
                          std::uint32_t group) {
    luna_req_row& row = add(n_prompt, n_generated_max);
    row.state = LUNA_REQ_PREFILL;
    row.device = group;
    row.n_computed = n_computed;
    row.n_kv_blocks = row.n_kv_blocks_freed = (n_computed + kBlockTokens - 1) / kBlockTokens;
    row.slice_end_token = n_computed / LUNA_PARTITION_TOKENS * LUNA_PARTITION_TOKENS;
    devices[group].n_kv_blocks_free -= row.n_kv_blocks;
    return row;
  }

  std::vector<luna_action> plan() {
    now_ns_ += 1'000'000'000;
    luna_snapshot s{};
    s.struct_size = sizeof(s);
    s.req_stride = sizeof(luna_req_row);
    s.device_stride = sizeof(luna_device_row);
    s.slice_stride = sizeof(luna_slice_row);
    s.n_reqs = static_cast<std::uint32_t>(reqs.size());
    s.n_devices = kGroups;
    s.n_slices = static_cast<std::uint32_t>(slices.size());
    s.n_rows_max = 64;
    s.n_seqs_max = 8;
    s.kv_block_tokens = kBlockTokens;
    s.now_ns = now_ns_;
    s.n_steps_in_flight_max = kGroups;
    s.verbs = UINT32_MAX;
    s.reqs = reqs.data();
    s.devices = devices.data();
    s.slices = slices.data();
    std::vector<luna_action> actions(64);
    luna_plan plan{};
    plan.struct_size = sizeof(plan);
    plan.n_actions_max = 64;
    plan.actions = actions.data();
    luna_err err = make_err();
    EXPECT_EQ(SchedulerInstance<FlowPolicy>::plan(policy_.get(), &s, &plan, &err), LUNA_OK);
    for (const check::PlanBreach& breach : check::PlanLegality(s, plan).faults())
      ADD_FAILURE() << breach.text;
    actions.resize(plan.n_actions);
    return actions;
  }
  /// Of this verb and row in a plan.
  static std::size_t n_of(const std::vector<luna_action>& actions,
                          std::uint32_t row,
                          std::uint16_t verb) {
    return static_cast<std::size_t>(std::ranges::count_if(actions, [&](const luna_action& action) {
      return action.row == row && action.verb == verb;
    }));
  }

  std::vector<luna_req_row> reqs;
  std::vector<luna_device_row> devices;
  std::vector<luna_slice_row> slices;

 private:
  std::uint64_t now_ns_ = 1'000'000'000;
  std::unique_ptr<SchedulerInstance<FlowPolicy>> policy_;
};

TEST(WideRows, ARowLargerThanAnyGroupBeginsWhereAllTogetherHaveRoom) {
  Scene scene;
  scene.add(2500, 100);  // 82 blocks
  const auto actions = scene.plan();
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(actions[0].verb, LUNA_VERB_ASSIGN);
  EXPECT_EQ(actions[0].reason, kSpread);
  EXPECT_EQ(actions[1].verb, LUNA_VERB_RUN);
  EXPECT_EQ(actions[1].n_tokens, 64U);
}

TEST(WideRows, ItWaitsUntilAllThatItMayNeedIsFree) {
  Scene scene;
  scene.add(2500, 100);
  scene.devices[1].n_kv_blocks_free = 7;  // no whole partition: 80 are left
  EXPECT_TRUE(scene.plan().empty());
  scene.devices[1].n_kv_blocks_free = 8;
  EXPECT_EQ(scene.plan().size(), 2U);
}

TEST(WideRows, WhatThoseThatRunMayGrowByIsNotItsOwn) {
  Scene scene;
  scene.add_begun(60, 600, 60, 1);
  scene.reqs[0].state = LUNA_REQ_DECODE;
  scene.reqs[0].n_generated = 1;
  scene.add(3450, 100);  // 111 blocks: there are 118, of which 8 may be needed
  EXPECT_EQ(Scene::n_of(scene.plan(), 1, LUNA_VERB_ASSIGN), 0U);
  scene.reqs[0].n_generated_max = 5;
  EXPECT_EQ(Scene::n_of(scene.plan(), 1, LUNA_VERB_ASSIGN), 1U);
}

TEST(WideRows, WhatOneMayStillNeedIsKeptFromAllOthers) {
  Scene scene;
  scene.add_begun(2500, 100, 1024, 0);  // needs 50 blocks more: 8 at home, 24 and 24 elsewhere
  scene.add(550, 10);                   // 18 blocks: a group has 16 beside that
  scene.add(450, 10);
  scene.add(2500, 100);
  const auto actions = scene.plan();
  EXPECT_EQ(Scene::n_of(actions, 1, LUNA_VERB_ASSIGN), 0U);
  EXPECT_EQ(Scene::n_of(actions, 2, LUNA_VERB_ASSIGN), 1U);
  EXPECT_EQ(Scene::n_of(actions, 3, LUNA_VERB_ASSIGN), 0U) << "another one that could not end";
}

TEST(WideRows, TheOldestPartitionsLeaveWhenHomeIsFull) {
  Scene scene;
  scene.add_begun(2500, 100, 1280, 0);  // all 40 blocks
  auto actions = scene.plan();
  ASSERT_EQ(actions.size(), 1U) << "it runs when they have left";
  EXPECT_EQ(actions[0].verb, LUNA_VERB_SLICE);
  EXPECT_EQ(actions[0].reason, kWide);
  EXPECT_EQ(actions[0].first_token, 0U);
  EXPECT_EQ(actions[0].n_tokens, LUNA_PARTITION_TOKENS);
  scene.slices = {{0, actions[0].device, 0, 256, 1, 0.0F}};
  scene.devices[actions[0].device].n_kv_blocks_free -= 8;
  EXPECT_TRUE(scene.plan().empty());
  scene.slices[0].is_copying = 0;
  scene.devices[0].n_kv_blocks_free += 8;
  actions = scene.plan();
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(actions[0].verb, LUNA_VERB_RUN);
  EXPECT_EQ(actions[0].n_tokens, 64U);
}

TEST(WideRows, NothingLeavesWhereHomeHasRoom) {
  Scene scene;
  scene.add_begun(2500, 100, 1024, 0);
  const auto actions = scene.plan();
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(actions[0].verb, LUNA_VERB_RUN);
}

TEST(WideRows, StreamingModeTakesNone) {
  Scene scene(true);
  scene.add(2500, 100);
  EXPECT_TRUE(scene.plan().empty());
}

}  // namespace
}  // namespace luna::test
