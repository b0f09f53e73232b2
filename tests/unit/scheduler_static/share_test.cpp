// What of the work goes into one of several steps in flight.
#include "plugins/scheduler_rules/step_share.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace luna::test {
namespace {

using scheduling::DecodeTurns;
using scheduling::GroupRows;
using scheduling::StepShare;
using scheduling::TurnCredit;
using ::testing::ElementsAre;

constexpr StepCost kCost{.fixed_ns = 3e6, .row_ns = 2e5, .kv_ns = 100.0};

/// Rows, and the plan of the next step.
class ShareRig {
 public:
  explicit ShareRig(std::uint32_t n_steps_max) { raw_.n_steps_in_flight_max = n_steps_max; }

  luna_req_row& decoding(std::uint64_t last_step_ns, bool in_step = false) {
    luna_req_row row{};
    row.state = LUNA_REQ_DECODE;
    row.n_computed = 100;
    row.last_step_ns = last_step_ns;
    row.n_steps = in_step ? 1 : 0;
    rows_.push_back(row);
    return rows_.back();
  }
  void waiting(std::uint32_t n_prompt) {
    luna_req_row row{};
    row.n_prompt = n_prompt;
    rows_.push_back(row);
  }

  /// Indices of the decoding rows that the step takes.
  std::vector<std::uint32_t> taken(const StepCost& cost, std::uint32_t n_in_flight = 0) {
    const Snapshot rows = snapshot(n_in_flight);
    Plan plan = begun();
    held_.clear();
    for (std::uint32_t i = 0; i < rows_.size(); ++i)
      if (rows_[i].state != LUNA_REQ_WAITING) held_.push_back(i);
    const GroupRows group = view(rows, cost);
    DecodeTurns turns;
    turns.choose(group, StepCost{}, plan);
    StepShare share;
    share.choose(group, turns, plan);
    std::vector<std::uint32_t> found;
    for (std::uint32_t i = 0; i < rows_.size(); ++i)
      if (rows_[i].n_steps == 0 && share.takes(i)) found.push_back(i);
    return found;
  }
  std::size_t n_of_queue(std::uint32_t n_in_flight) {
    const std::uint32_t n_tokens = n_prompt_tokens();
    queue_ = queue();
    const Snapshot rows = snapshot(n_in_flight);
    return StepShare::of_queue(view(rows, {}), n_tokens).size();
  }
  std::uint32_t n_prompt_tokens(bool beside_decoding = false, bool has_stalled = false) {
    queue_ = queue();
    const Snapshot rows = snapshot(0);
    return StepShare::n_prompt_tokens(view(rows, {}), beside_decoding, has_stalled);
  }

 private:
  [[nodiscard]] std::vector<std::uint32_t> queue() const {
    std::vector<std::uint32_t> waiting;
    for (std::uint32_t i = 0; i < rows_.size(); ++i)
      if (rows_[i].state == LUNA_REQ_WAITING) waiting.push_back(i);
    return waiting;
  }
  Snapshot snapshot(std::uint32_t n_in_flight) {
    raw_.struct_size = sizeof(raw_);
    raw_.req_stride = sizeof(luna_req_row);
    raw_.n_reqs = static_cast<std::uint32_t>(rows_.size());
    raw_.n_rows_max = 512;
    raw_.reqs = rows_.data();
    raw_.n_steps_in_flight = n_in_flight;
    return Snapshot(&raw_);
  }
  GroupRows view(const Snapshot& rows, const StepCost& cost) {
    return {.rows = rows,
            .books = books_,
            .cost = cost,
            .n_steps_in_flight = rows->n_steps_in_flight,
            .n_steps_max = rows.n_steps_in_flight_max(),
            .held = held_,
            .queue = queue_,
            .turns = turns_};
  }
  Plan begun() {
    answer_.n_actions_max = 64;
    Plan plan;
    plan.begin(&raw_, &answer_);
    return plan;
  }

  std::vector<luna_req_row> rows_;
  std::vector<std::uint32_t> held_;
  std::vector<std::uint32_t> queue_;
  TurnCredit turns_;
  GroupBooks books_;
  luna_snapshot raw_{};
  luna_plan answer_{};
};

TEST(StepShare, OneStepAtATimeTakesAll) {
  ShareRig rig(1);
  for (std::uint64_t i = 0; i < 5; ++i)
    rig.decoding(i);
  EXPECT_THAT(rig.taken(kCost), ElementsAre(0, 1, 2, 3, 4));
}

TEST(StepShare, ItsPartOfTheRowsIsThoseThatWaitedLongest) {
  for (const StepCost& cost : {kCost, StepCost{}}) {
    ShareRig rig(2);
    for (const std::uint64_t last : {5, 1, 4, 2})
      rig.decoding(last);
    EXPECT_THAT(rig.taken(cost), ElementsAre(1, 3));
  }
}

TEST(StepShare, EqualsAreTakenByArrival) {
  ShareRig rig(2);
  for (int i = 0; i < 4; ++i)
    rig.decoding(7);
  EXPECT_THAT(rig.taken(kCost), ElementsAre(0, 1));
}

TEST(StepShare, FewRowsAllRunAndALoneOneAtOnce) {
  for (const std::uint32_t n_steps : {2U, 3U, 8U}) {
    ShareRig rig(n_steps);
    rig.decoding(1);
    EXPECT_THAT(rig.taken(kCost), ElementsAre(0));
    rig.decoding(2, true);  // the other is in a step
    EXPECT_THAT(rig.taken(kCost, 1), ElementsAre(0));
  }
}

TEST(StepShare, WhatAnotherStepHoldsCounts) {
  // Two of eight came back alone: both go, though the other step holds six.
  ShareRig few(2);
  for (std::uint64_t i = 0; i < 8; ++i)
    few.decoding(i, i >= 2);
  EXPECT_THAT(few.taken(kCost, 1), ElementsAre(0, 1));
  // Six came back: four go, two are left for the step that holds two.
  ShareRig many(2);
  for (std::uint64_t i = 0; i < 8; ++i)
    many.decoding(i, i >= 6);
  EXPECT_THAT(many.taken(kCost, 1), ElementsAre(0, 1, 2, 3));
}

TEST(StepShare, LongConversationsCountWhatTheyCost) {
  ShareRig rig(2);
  for (int i = 0; i < 4; ++i)
    rig.decoding(1);
  rig.decoding(0).n_computed = 8000;  // 1 ms, as much as five others of 0.2 ms
  EXPECT_THAT(rig.taken(kCost), ElementsAre(4));
  EXPECT_THAT(rig.taken(StepCost{}), ElementsAre(0, 1, 4));  // not known: heads count
}

TEST(StepShare, APartOfThePromptsIsSmallAgainstAllThatWaits) {
  const auto part_of =
      [](std::uint32_t n_steps, std::uint32_t n_prompt, bool beside_decoding = false) {
        ShareRig rig(n_steps);
        rig.waiting(n_prompt);
        return rig.n_prompt_tokens(beside_decoding);
      };
  EXPECT_EQ(part_of(1, 100), 512U);
  EXPECT_EQ(part_of(2, 100), 64U);  // no smaller
  EXPECT_EQ(part_of(2, 800), 101U);
  EXPECT_EQ(part_of(4, 1600), 101U);
  EXPECT_EQ(part_of(2, 100'000), 512U);
  EXPECT_EQ(part_of(8, 0), 64U);
  EXPECT_EQ(part_of(1, 64, true), 512U);
  EXPECT_EQ(part_of(2, 64, true), 16U);
  EXPECT_EQ(part_of(2, 800, true), 101U);
}

TEST(StepShare, WhoHadBegunToAnswerComesInEqualLargeParts) {
  ShareRig rig(4);
  for (int i = 0; i < 8; ++i)
    rig.waiting(100);
  EXPECT_EQ(rig.n_prompt_tokens(true), 51U);
  EXPECT_EQ(rig.n_prompt_tokens(true, true), 256U);
  EXPECT_EQ(rig.n_prompt_tokens(false, true), 256U);
}

TEST(StepShare, PromptsAreSpreadWholeOverTheStepsThatCanBegin) {
  ShareRig rig(2);
  for (int i = 0; i < 4; ++i)
    rig.waiting(60);
  EXPECT_EQ(rig.n_of_queue(0), 2U);
  EXPECT_EQ(rig.n_of_queue(1), 4U) << "this is the only one that can begin now";
  ShareRig uneven(2);
  uneven.waiting(2000);
  uneven.waiting(100);
  uneven.waiting(100);
  EXPECT_EQ(uneven.n_of_queue(0), 1U);
  ShareRig lone(2);
  lone.waiting(300);
  EXPECT_EQ(lone.n_of_queue(0), 1U);
  ShareRig none(2);
  EXPECT_EQ(none.n_of_queue(0), 0U);
}

}  // namespace
}  // namespace luna::test
