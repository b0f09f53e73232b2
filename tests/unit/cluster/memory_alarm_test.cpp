// Whole histories of workers' memory, and what is ordered when.
#include "core/cluster/memory_alarm.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace luna::cluster {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t kBudget = 1000;

MemoryReport holding(std::uint64_t bytes) {
  return {.resident = bytes + 400, .fixed = 300, .kv = 400, .budget = kBudget};
}

/// Workers whose bytes are a function of the second, and all that was ordered with its time.
class History {
 public:
  using Bytes = std::function<std::uint64_t(int second)>;
  struct Ordered {
    int second = 0;
    ReliefOrder order;
    friend bool operator==(const Ordered&, const Ordered&) = default;
  };

  void add(const std::string& name, Bytes bytes) { workers_[name] = std::move(bytes); }
  /// Runs on, a report and a look a second.
  std::vector<Ordered> run(int n_seconds) {
    std::vector<Ordered> orders;
    for (const int end = second_ + n_seconds; second_ < end; ++second_) {
      for (const auto& [name, bytes] : workers_)
        alarm.note(name, holding(bytes(second_)), now());
      while (const auto order = alarm.next(now())) {
        orders.push_back({second_, *order});
        if (order->step == ReliefStep::move && !can_move) alarm.note_refused(now());
      }
    }
    return orders;
  }
  void remove(const std::string& name) {
    workers_.erase(name);
    alarm.note_gone(name, now());
  }
  [[nodiscard]] Nanoseconds now() const { return seconds(100 + second_); }

  MemoryAlarm alarm{{.percent = 85, .patience = seconds(60)}};
  bool can_move = true;

 private:
  std::map<std::string, Bytes> workers_;
  int second_ = 0;
};

History::Ordered at(int second, const std::string& worker, ReliefStep step) {
  return {second, {worker, step}};
}
const History::Bytes kWell = [](int) { return 500; };
const History::Bytes kLeaks = [](int) { return 900; };

TEST(MemoryAlarm, AFullCacheIsHealthAndALeakIsNot) {
  // All of the budget and more is resident, but KV can be given up.
  EXPECT_EQ(bytes_held({.resident = 1100, .fixed = 300, .kv = 700, .budget = kBudget}), 400U);
  EXPECT_EQ(bytes_held_max({.resident = 0, .fixed = 300, .kv = 700, .budget = kBudget}, 85), 850U);
  // Pages of the cache that were never touched hide nothing below zero.
  EXPECT_EQ(bytes_held({.resident = 300, .fixed = 300, .kv = 700, .budget = kBudget}), 0U);
}

TEST(MemoryAlarm, WhatWasPackedAheadIsHealth) {
  MemoryReport report = holding(900);
  EXPECT_GT(bytes_held(report), bytes_held_max(report, 85));
  report.spare = 400;
  EXPECT_LE(bytes_held(report), bytes_held_max(report, 85));
}

TEST(MemoryAlarm, WeightsThatFillTheBudgetAreHealth) {
  EXPECT_EQ(bytes_held_max({.resident = 0, .fixed = 900, .kv = 100, .budget = kBudget}, 85), 1050U);
  EXPECT_EQ(bytes_held_max({.resident = 0, .fixed = 900, .kv = 100, .budget = kBudget}, 10), 1000U);
}

TEST(MemoryAlarm, EachStepFollowsWhereTheOneBeforeDidNotHelp) {
  History history;
  history.add("w0", kLeaks);
  history.add("w1", kWell);
  EXPECT_THAT(history.run(200),
              ElementsAre(at(60, "w0", ReliefStep::relieve),
                          at(75, "w0", ReliefStep::move),
                          at(90, "w0", ReliefStep::drain)));
  history.alarm.note_drained();
  EXPECT_THAT(history.run(1), ElementsAre(at(200, "w0", ReliefStep::restart)));
  history.remove("w0");
  EXPECT_THAT(history.run(10), IsEmpty());
  history.add("w0", kWell);  // it is back
  EXPECT_THAT(history.run(300), IsEmpty());
  EXPECT_FALSE(history.alarm.treated());
}

TEST(MemoryAlarm, ShortPeaksAreNothing) {
  History history;
  history.add("w0", [](int second) { return second % 60 == 59 ? 500 : 1000; });
  history.add("w1", [](int second) { return 800 + second % 51; });
  EXPECT_THAT(history.run(1000), IsEmpty());
}

TEST(MemoryAlarm, ARiseCountsFromWhereItCrossesTheLimit) {
  History history;
  history.add("w0", [](int second) { return 5 * second; });  // above 850 from second 171 on
  const auto orders = history.run(240);
  EXPECT_THAT(orders, ElementsAre(at(231, "w0", ReliefStep::relieve)));
}

TEST(MemoryAlarm, WhoIsWellAgainIsLeftAloneAtEachStep) {
  for (const int well_from : {50, 61, 74, 76, 89}) {
    History history;
    history.add("w0", [&](int second) { return second < well_from ? 900 : 500; });
    const auto orders = history.run(400);
    EXPECT_EQ(orders.size(), well_from < 60 ? 0U : well_from < 75 ? 1U : 2U) << well_from;
    EXPECT_FALSE(history.alarm.treated());
  }
}

TEST(MemoryAlarm, FromTheDrainOnALeakIsNotForgotten) {
  History history;
  history.add("w0", [](int second) { return second <= 90 ? 900 : 100; });  // its layers have gone
  EXPECT_THAT(history.run(100),
              ElementsAre(at(60, "w0", ReliefStep::relieve),
                          at(75, "w0", ReliefStep::move),
                          at(90, "w0", ReliefStep::drain)));
  history.alarm.note_drained();
  EXPECT_THAT(history.run(1), ElementsAre(at(100, "w0", ReliefStep::restart)));
}

TEST(MemoryAlarm, WhereNothingCanMoveTheDrainComesAtOnce) {
  History history;
  history.can_move = false;
  history.add("w0", kLeaks);
  EXPECT_THAT(history.run(100),
              ElementsAre(at(60, "w0", ReliefStep::relieve),
                          at(75, "w0", ReliefStep::move),
                          at(75, "w0", ReliefStep::drain)));
}

TEST(MemoryAlarm, OneWorkerAtATime) {
  History history;
  history.can_move = false;
  history.add("w0", [](int second) { return second < 5 ? 500 : 900; });
  history.add("w1", kLeaks);
  // w1 has been above for longer.
  EXPECT_THAT(history.run(100),
              ElementsAre(at(60, "w1", ReliefStep::relieve),
                          at(75, "w1", ReliefStep::move),
                          at(75, "w1", ReliefStep::drain)));
  history.alarm.note_drained();
  EXPECT_THAT(history.run(1), ElementsAre(at(100, "w1", ReliefStep::restart)));
  history.remove("w1");
  EXPECT_THAT(history.run(20), IsEmpty());
  history.add("w1", kWell);
  EXPECT_THAT(history.run(1), ElementsAre(at(121, "w0", ReliefStep::relieve)));
}

TEST(MemoryAlarm, AWorkerThatDoesNotComeBackHoldsUpTheOthersForTheirPatienceOnly) {
  History history;
  history.can_move = false;
  history.add("w0", kLeaks);
  history.add("w1", kLeaks);
  EXPECT_EQ(history.run(80).size(), 3U);
  history.alarm.note_drained();
  EXPECT_THAT(history.run(1), ElementsAre(at(80, "w0", ReliefStep::restart)));
  history.remove("w0");
  EXPECT_THAT(history.run(100),
              ElementsAre(at(141, "w1", ReliefStep::relieve),
                          at(156, "w1", ReliefStep::move),
                          at(156, "w1", ReliefStep::drain)));
}

TEST(MemoryAlarm, ADrainThatNobodyHasRoomForIsTriedAgainLater) {
  History history;
  history.can_move = false;
  history.add("w0", kLeaks);
  EXPECT_EQ(history.run(80).size(), 3U);
  history.alarm.note_refused(history.now());
  EXPECT_THAT(history.run(62), ElementsAre(at(140, "w0", ReliefStep::relieve)));
}

TEST(MemoryAlarm, SilenceBreaksTheRow) {
  MemoryAlarm alarm({.percent = 85, .patience = seconds(60)});
  for (int second = 0; second < 200; second += 10) {
    alarm.note("w0", holding(900), seconds(100 + second));
    EXPECT_FALSE(alarm.next(seconds(100 + second)));
  }
}

}  // namespace
}  // namespace luna::cluster
