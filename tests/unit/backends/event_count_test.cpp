// Waiting for a number to change. A lost wake-up shows as a test that never ends.
#include <luna/backend_blocks.hpp>
#include <luna/event_count.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace luna {
namespace {

constexpr std::uint32_t kRounds = 5'000;

TEST(EventCount, DoesNotSleepOnAValueOfThePast) {
  EventCount events;
  const std::uint32_t seen = events.value();
  events.raise();
  events.sleep(seen);
  events.spin_then_sleep(seen);
  EXPECT_NE(events.value(), seen);
}

/// Two threads in turn: each raise must reach the other, asleep or about to be.
TEST(EventCount, LosesNoWakeUp) {
  EventCount ping;
  EventCount pong;
  std::uint32_t ball = 0;  // written by whose turn it is
  std::thread peer([&] {
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      ping.sleep(round);
      ++ball;
      pong.raise();
    }
  });
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    ++ball;
    ping.raise();
    pong.sleep(round);
    ASSERT_EQ(ball, 2 * (round + 1));
  }
  peer.join();
}

TEST(EventCount, OneRaiseWakesAllSleepers) {
  constexpr std::uint32_t kSleepers = 8;
  EventCount gate;
  EventCount back;
  std::atomic<std::uint32_t> n_back{0};
  std::vector<std::thread> sleepers;
  for (std::uint32_t i = 0; i < kSleepers; ++i)
    sleepers.emplace_back([&] {
      for (std::uint32_t round = 0; round < 200; ++round) {
        gate.sleep(round);
        if (n_back.fetch_add(1) + 1 == kSleepers * (round + 1)) back.raise();
      }
    });
  for (std::uint32_t round = 0; round < 200; ++round) {
    gate.raise();
    back.sleep(round);
  }
  for (std::thread& sleeper : sleepers)
    sleeper.join();
  EXPECT_EQ(n_back.load(), kSleepers * 200);
}

TEST(JobQueue, ConsumerAsleepSeesEveryJobInOrderAndTheEnd) {
  JobQueue<std::uint32_t, 4> queue;
  std::vector<std::uint32_t> jobs;
  std::thread consumer([&] {
    for (;;) {
      const std::uint32_t seen = queue.signal();
      std::uint32_t job = 0;
      if (queue.pop(&job)) {
        jobs.push_back(job);
      } else if (queue.is_closed()) {
        return;
      } else {
        queue.sleep(seen);
      }
    }
  });
  for (std::uint32_t job = 0; job < kRounds; ++job)
    while (!queue.push(job))
      std::this_thread::yield();
  queue.close();
  consumer.join();
  ASSERT_EQ(jobs.size(), kRounds);
  for (std::uint32_t job = 0; job < kRounds; ++job)
    ASSERT_EQ(jobs[job], job);
}

}  // namespace
}  // namespace luna
