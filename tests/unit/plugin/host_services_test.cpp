#include "core/plugin/host_services.hpp"

#include <luna/plugin.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <set>
#include <vector>

namespace luna::plugin {
namespace {

std::vector<std::uint64_t> draw(std::uint64_t seed, const std::string& name, std::uint64_t stream) {
  const VirtualClock clock{};
  HostServices services({&clock, seed, {}});
  const luna_host* host = services.host_for(name);
  std::vector<std::uint64_t> numbers;
  for (int i = 0; i < 100; ++i)
    numbers.push_back(host->rand_u64(host, stream));
  return numbers;
}

TEST(HostServices, RandomStreamsReplayAndDifferBySeedPluginAndStream) {
  const auto numbers = draw(1, "static", 0);
  EXPECT_EQ(numbers, draw(1, "static", 0));
  EXPECT_NE(numbers, draw(2, "static", 0));
  EXPECT_NE(numbers, draw(1, "other", 0));
  EXPECT_NE(numbers, draw(1, "static", 1));
  EXPECT_NE(numbers, draw(1, "static", 256));
  EXPECT_EQ(std::set(numbers.begin(), numbers.end()).size(), numbers.size());
}

TEST(ErrorRecord, TextWithoutItsFinalZeroEndsWithTheRecord) {
  luna_err err = make_err();
  std::fill(std::begin(err.text), std::end(err.text), 'x');
  const auto result = to_result(LUNA_INTERNAL, err, "call");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message(), "call: " + std::string(sizeof(err.text), 'x'));
}

TEST(HostServices, TimeIsTheClocks) {
  VirtualClock clock;
  HostServices services({&clock, 0, {}});
  const luna_host* host = services.host_for("static");
  clock.advance(Nanoseconds(42));
  EXPECT_EQ(host->now_ns(host), 42u);
}

TEST(HostServices, ParallelForCallsEveryIndexOnce) {
  const VirtualClock clock{};
  std::uint32_t n_asked = 0;
  HostServices::ParallelFor backwards =
      [&n_asked](std::uint32_t n, void (*fn)(void*, std::uint32_t), void* arg) {
        n_asked = n;
        for (std::uint32_t i = n; i-- > 0;)
          fn(arg, i);
      };
  HostServices serial({&clock, 0, {}});
  HostServices pooled({&clock, 0, backwards});
  for (HostServices* services : {&serial, &pooled}) {
    std::vector<int> calls(5, 0);
    const luna_host* host = services->host_for("p");
    const auto count = [](void* arg, std::uint32_t i) {
      ++(*static_cast<std::vector<int>*>(arg))[i];
    };
    EXPECT_EQ(host->parallel_for(host, 5, count, &calls), LUNA_OK);
    EXPECT_EQ(calls, std::vector<int>(5, 1));
    EXPECT_EQ(host->parallel_for(host, 1, nullptr, nullptr), LUNA_INVALID_ARGUMENT);
  }
  EXPECT_EQ(n_asked, 5u);
}

TEST(HostServices, ServicesAreFoundByIdAndUnknownOnesAreNull) {
  const VirtualClock clock{};
  HostServices services({&clock, 0, {}});
  const int table = 0;
  services.add_service("luna.svc.test/1", &table);
  const luna_host* host = services.host_for("p");
  EXPECT_EQ(host->service(host, "luna.svc.test/1"), &table);
  EXPECT_EQ(host->service(host, "luna.svc.test/2"), nullptr);
  EXPECT_EQ(host->service(host, nullptr), nullptr);
}

TEST(HostServices, APluginKeepsItsHost) {
  const VirtualClock clock{};
  HostServices services({&clock, 0, {}});
  EXPECT_EQ(services.host_for("a"), services.host_for("a"));
  EXPECT_NE(services.host_for("a"), services.host_for("b"));
}

}  // namespace
}  // namespace luna::plugin
