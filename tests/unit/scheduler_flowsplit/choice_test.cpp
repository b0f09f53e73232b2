// Which group a request goes to, and when a group counts as pressed or relaxed.
#include "plugins/scheduler_flowsplit/completion.hpp"
#include "plugins/scheduler_flowsplit/group_judge.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace luna::test {
namespace {

using namespace scheduler_flowsplit;  // NOLINT(google-build-using-namespace): one class a test

constexpr double kTargetNs = 100e6;
constexpr Request kRequest{.n_prompt = 1000, .n_output = 100};

GroupWork idle() {
  GroupWork work;
  work.cost = {.fixed_ns = 3e6, .row_ns = 2e5, .kv_ns = 100.0};
  return work;
}

/// The place of the chosen group, and why.
std::pair<std::size_t, std::uint16_t> picked(const std::vector<GroupWork>& groups,
                                             std::vector<std::uint32_t> n_found = {}) {
  n_found.resize(groups.size());
  GroupPicker picker(kTargetNs);
  const auto choice = picker.pick(kRequest, groups, n_found);
  EXPECT_TRUE(choice.has_value());
  return {choice->group, choice->reason};
}

TEST(GroupPicker, TheGroupThatEndsItFirstGetsIt) {
  std::vector<GroupWork> groups(3, idle());
  groups[0].n_prompt_tokens = 3000;
  groups[2].n_decoding = 60;
  groups[2].n_kv_tokens = 60'000;
  EXPECT_EQ(picked(groups), std::pair(std::size_t{1}, std::uint16_t{kLeastTime}));
  groups[1].cost.row_ns *= 20.0;
  EXPECT_NE(picked(groups).first, 1U);
}

TEST(GroupPicker, APrefixCountsByTheTimeThatItSaves) {
  std::vector<GroupWork> groups(2, idle());
  groups[0].n_prompt_tokens = 500;
  EXPECT_EQ(picked(groups, {0, 0}).first, 1U);
  EXPECT_EQ(picked(groups, {900, 0}), std::pair(std::size_t{0}, std::uint16_t{kPrefix}));
  groups[0].n_prompt_tokens = 5000;
  EXPECT_EQ(picked(groups, {900, 0}).first, 1U) << "the queue costs more than the prefix saves";
}

TEST(GroupPicker, OfEqualGroupsEachHasItsTurn) {
  const std::vector<GroupWork> groups(4, idle());
  const std::vector<std::uint32_t> n_found(4);
  GroupPicker picker(kTargetNs);
  for (std::size_t n = 0; n < 12; ++n) {
    const auto choice = picker.pick(kRequest, groups, n_found);
    EXPECT_EQ(choice->group, n % 4);
    EXPECT_EQ(choice->reason, kTurn);
  }
}

TEST(GroupPicker, APressedGroupOnlyWhereThereIsNoOther) {
  std::vector<GroupWork> groups(2, idle());
  groups[0].is_pressed = true;
  groups[1].n_prompt_tokens = 50'000;
  EXPECT_EQ(picked(groups).first, 1U);
  groups[1].is_open = false;
  EXPECT_EQ(picked(groups).first, 0U);
  groups[0].is_open = false;
  GroupPicker picker(kTargetNs);
  const std::array<std::uint32_t, 2> n_found{};
  EXPECT_FALSE(picker.pick(kRequest, groups, n_found).has_value());
}

TEST(GroupPicker, AGroupWithoutRoomIsPredictedToLetItWait) {
  std::vector<GroupWork> groups(2, idle());
  for (GroupWork& group : groups) {
    group.n_decoding = group.n_held = 8;
    group.n_output_tokens = 8.0 * 400;
  }
  groups[0].has_room = false;
  groups[1].n_prompt_tokens = 200;
  EXPECT_EQ(picked(groups).first, 1U);
  groups[0].n_output_tokens = 8.0;
  groups[1].n_prompt_tokens = 2000;
  EXPECT_EQ(picked(groups).first, 0U) << "its rows end at once";
}

TEST(GroupPicker, ARelaxedGroupIsNamedAsSuch) {
  std::vector<GroupWork> groups(2, idle());
  groups[1].is_relaxed = true;
  groups[0].n_prompt_tokens = 3000;
  EXPECT_EQ(picked(groups), std::pair(std::size_t{1}, std::uint16_t{kMemoryLow}));
}

/// A group whose memory and queue a test sets.
struct Judged {
  NodePool nodes;
  GroupMemory memory{0, nodes};
  GroupState group;
  GroupJudge judge{Thresholds{}, 400};
  std::uint64_t now_ns = 1000;

  void at(double share, double n_queued, std::uint64_t after_ns) {
    now_ns += after_ns;
    group.n_blocks_total = 1000;
    group.n_blocks_free = static_cast<std::uint32_t>(1000.0 * (1.0 - share));
    judge.judge(group, n_queued, now_ns, memory);
  }
};

TEST(GroupJudge, IsPressedAboveTheUpperThresholdsAndRelaxedBelowTheLower) {
  Judged judged;
  judged.at(0.3, 0, 200);
  EXPECT_TRUE(judged.memory.is_relaxed);
  EXPECT_FALSE(judged.memory.is_pressed);
  judged.at(0.65, 0, 200);
  EXPECT_FALSE(judged.memory.is_relaxed);
  EXPECT_FALSE(judged.memory.is_pressed);
  judged.at(0.72, 0, 200);
  EXPECT_TRUE(judged.memory.is_pressed);
  judged.at(0.3, 0, 1000);
  judged.at(0.3, 4, 200);
  EXPECT_TRUE(judged.memory.is_pressed) << "by its queue";
  EXPECT_FALSE(judged.memory.is_relaxed);
}

TEST(GroupJudge, ALoadThatSwingsRoundAThresholdChangesNothing) {
  Judged judged;
  judged.at(0.72, 0, 200);
  for (int i = 0; i < 50; ++i) {
    judged.at(i % 2 == 0 ? 0.69 : 0.71, 0, 200);
    ASSERT_TRUE(judged.memory.is_pressed);
  }
  judged.at(0.64, 0, 200);
  EXPECT_FALSE(judged.memory.is_pressed);
}

TEST(GroupJudge, AGroupStaysForAWhileWhatItBecame) {
  Judged judged;
  judged.at(0.72, 0, 200);
  judged.at(0.2, 0, 200);
  EXPECT_TRUE(judged.memory.is_pressed);
  judged.at(0.2, 0, 200);
  EXPECT_FALSE(judged.memory.is_pressed);
}

}  // namespace
}  // namespace luna::test
