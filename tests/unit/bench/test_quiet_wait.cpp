// When a process counts as started: CPU times that a test makes up.
#include "core/bench/quiet_wait.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace luna::bench {
namespace {

using std::chrono::milliseconds;

/// A process that computes `ratio` cores until `busy_until`, and nothing afterwards.
class FakeProcess {
 public:
  FakeProcess(double ratio, Nanoseconds busy_until) : ratio_(ratio), busy_until_(busy_until) {}

  QuietWait wait() {
    QuietWait wait;
    wait.cpu_time = [this] {
      const auto busy = static_cast<double>(std::min(now_, busy_until_).count());
      return Nanoseconds(static_cast<std::int64_t>(ratio_ * busy));
    };
    wait.pause = [this](Nanoseconds time) { now_ += time; };
    wait.keep_going = [this] { return now_ < stopped_at_; };
    return wait;
  }

  Nanoseconds now_{0};
  Nanoseconds stopped_at_ = std::chrono::hours(1);

 private:
  const double ratio_;
  const Nanoseconds busy_until_;
};

TEST(QuietWait, EndsSoonAfterTheBackgroundWorkDoes) {
  FakeProcess process(1.0, milliseconds(2350));
  EXPECT_TRUE(wait_until_quiet(process.wait()));
  EXPECT_GE(process.now_, milliseconds(2350));
  EXPECT_LE(process.now_, milliseconds(2600));
}

TEST(QuietWait, IdleThreadsThatWakeNowAndThenAreQuiet) {
  FakeProcess process(0.02, std::chrono::hours(1));
  EXPECT_TRUE(wait_until_quiet(process.wait()));
  EXPECT_LE(process.now_, milliseconds(200));
}

TEST(QuietWait, SaysSoWhenTheProcessNeverComesToRest) {
  FakeProcess process(1.0, std::chrono::hours(1));
  QuietWait wait = process.wait();
  wait.longest = std::chrono::seconds(3);
  EXPECT_FALSE(wait_until_quiet(wait));
  EXPECT_EQ(process.now_, wait.longest);
}

TEST(QuietWait, EndsWhenTheUserEndsIt) {
  FakeProcess process(1.0, std::chrono::hours(1));
  process.stopped_at_ = milliseconds(300);
  EXPECT_FALSE(wait_until_quiet(process.wait()));
  EXPECT_EQ(process.now_, milliseconds(300));
}

TEST(QuietWait, ProcessCpuTimeGrowsWithWork) {
  const Nanoseconds before = process_cpu_time();
  while (process_cpu_time() == before) {}
  EXPECT_GT(process_cpu_time(), before);
}

}  // namespace
}  // namespace luna::bench
