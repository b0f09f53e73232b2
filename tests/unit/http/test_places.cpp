#include "core/http/places.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace luna::http {
namespace {

/// Takes places for a tenant until one is refused.
std::vector<Places::Place> take_all(Places& places, std::uint32_t tenant) {
  std::vector<Places::Place> taken;
  for (;;) {
    auto place = places.take(tenant);
    if (!place) return taken;
    taken.push_back(std::move(place).value());
  }
}

TEST(Places, OneKeyOrNoneGetsThemAll) {
  for (const std::uint32_t n_tenants : {0U, 1U}) {
    std::atomic<std::uint64_t> n_taken{0};
    Places places(n_taken, 7, n_tenants);
    const auto taken = take_all(places, n_tenants);
    EXPECT_EQ(taken.size(), 7U);
    EXPECT_EQ(n_taken, 7U);
    const auto refused = places.take(n_tenants);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::exhausted);
    EXPECT_NE(refused.error().message().find("at most 7"), std::string::npos);
  }
}

TEST(Places, AGivenUpPlaceIsFreeAgain) {
  std::atomic<std::uint64_t> n_taken{0};
  Places places(n_taken, 2, 0);
  take_all(places, 0);
  EXPECT_EQ(n_taken, 0U);
  EXPECT_EQ(take_all(places, 0).size(), 2U);
}

TEST(Places, AKeyThatFloodsLeavesRoomForEveryOther) {
  std::atomic<std::uint64_t> n_taken{0};
  Places places(n_taken, 256, 5);
  std::vector<std::vector<Places::Place>> taken;
  std::vector<std::size_t> n;
  for (std::uint32_t tenant = 1; tenant <= 5; ++tenant) {
    taken.push_back(take_all(places, tenant));
    n.push_back(taken.back().size());
  }
  EXPECT_EQ(n, (std::vector<std::size_t>{128, 64, 32, 16, 8}));
  EXPECT_EQ(n_taken, 248U);
  const auto refused = places.take(1);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("128 requests of this key"), std::string::npos);
  taken.clear();
  EXPECT_EQ(n_taken, 0U);
  EXPECT_EQ(take_all(places, 2).size(), 128U);
}

TEST(Places, AServerWithOnePlaceServesEveryKey) {
  std::atomic<std::uint64_t> n_taken{0};
  Places places(n_taken, 1, 2);
  EXPECT_TRUE(places.take(1));
  EXPECT_TRUE(places.take(2));
}

TEST(Places, ThreadsNeverHoldMoreThanThereAre) {
  std::atomic<std::uint64_t> n_taken{0};
  Places places(n_taken, 8, 3);
  std::atomic<std::int64_t> n_held{0};
  std::atomic<std::int64_t> most{0};
  std::vector<std::thread> threads;
  for (std::uint32_t tenant = 0; tenant < 4; ++tenant) {
    threads.emplace_back([&, tenant] {
      for (int i = 0; i < 20'000; ++i) {
        const auto place = places.take(tenant);
        if (!place) continue;
        const std::int64_t now = n_held.fetch_add(1) + 1;
        std::int64_t seen = most.load();
        while (now > seen && !most.compare_exchange_weak(seen, now)) {}
        n_held.fetch_sub(1);
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_LE(most, 8);
  EXPECT_EQ(n_taken, 0U);
}

}  // namespace
}  // namespace luna::http
