// Connections of transport tcp that break, peers that die or freeze: what is lost (nothing), and
// what is told.
#include "unit/transport/tcp_fixture.hpp"
#include "unit/transport/tcp_relay.hpp"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

namespace luna::test {
namespace {

using std::chrono::milliseconds;

/// Two ranks at two endpoints. A reaches B by a relay only.
class TcpFailure : public Tcp {
 protected:
  void connect(const SettingValues& settings, std::uint64_t message_bytes_max = 1 << 20) {
    a_ = make(settings);
    b_ = make(settings);
    relay_ = std::make_unique<Relay>(address_of(b_->address()).port);
    const Blob b_by_relay = by_port(b_->address(), relay_->port());
    std::uint32_t peer = 0;
    ASSERT_EQ(a_->connect_at_last(b_by_relay, peer), LUNA_OK) << a_->reason();
    const std::vector<Blob> ranks = {a_->address(), b_by_relay};
    auto rank_0 = a_->open(0, 2, message_bytes_max, "pair", ranks);
    auto rank_1 = b_->open(1, 2, message_bytes_max, "pair", ranks);
    ASSERT_TRUE(rank_0 && rank_1);
    rank_0_ = *rank_0;
    rank_1_ = *rank_1;
  }
  void TearDown() override {
    if (rank_0_ != nullptr) a_->close(rank_0_);
    if (rank_1_ != nullptr) b_->close(rank_1_);
  }
  luna_status send(std::uint32_t i, std::size_t n) {
    const auto bytes = pattern(n, i);
    return rank_0_->send(rank_0_->self, 1, 7, bytes.data(), bytes.size());
  }
  void expect_message(std::uint32_t i, std::size_t n) {
    std::vector<std::uint8_t> got(n);
    ASSERT_EQ(rank_1_->recv(rank_1_->self, 0, 7, got.data(), got.size()), LUNA_OK) << i;
    ASSERT_EQ(got, pattern(n, i)) << "message " << i;
  }
  /// Waits until A has heard nothing of B for this long, as its estimates tell.
  void wait_for_silence(milliseconds silence) {
    const auto ns = static_cast<std::uint64_t>(silence.count()) * 1'000'000;
    while (a_->estimate_ns(0, 0) < ns)
      std::this_thread::yield();
  }

  std::unique_ptr<Endpoint> a_, b_;
  std::unique_ptr<Relay> relay_;
  const luna_comm* rank_0_ = nullptr;
  const luna_comm* rank_1_ = nullptr;
};

TEST_F(TcpFailure, ConnectionsThatAreCutAgainAndAgainLoseAndDoubleNothing) {
  constexpr std::uint32_t kSeed = 42;
  constexpr std::uint32_t kMessages = 400;
  constexpr int kCuts = 12;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  connect(quick());
  std::vector<std::size_t> sizes;
  std::mt19937 random(kSeed);
  for (std::uint32_t i = 0; i < kMessages; ++i)
    sizes.push_back(1 + random() % (i % 8 == 0 ? 1U << 20U : 3000U));
  std::atomic<bool> is_done{false};
  std::thread cutter([&] {
    std::uint64_t seen = relay_->n_bytes();
    for (int i = 0; i < kCuts && !is_done; ++i) {
      // In the middle of what passes.
      while (relay_->n_bytes() < seen + 2'000'000 && !is_done)
        std::this_thread::yield();
      seen = relay_->n_bytes();
      relay_->cut();
    }
  });
  std::thread sender([&] {
    for (std::uint32_t i = 0; i < kMessages; ++i)
      EXPECT_EQ(send(i, sizes[i]), LUNA_OK);
  });
  for (std::uint32_t i = 0; i < kMessages; ++i)
    expect_message(i, sizes[i]);
  is_done = true;
  sender.join();
  cutter.join();
  EXPECT_GT(relay_->n_connections(), 2);
}

TEST_F(TcpFailure, TransfersGoOnAfterACut) {
  connect(quick());
  std::uint32_t peer = 0;
  ASSERT_EQ(b_->connect_at_last(a_->address(), peer), LUNA_OK);
  auto from = pattern(std::size_t{32} << 20U, 1);
  std::vector<std::uint8_t> to(from.size());
  const std::uint64_t from_key = a_->add(from), to_key = b_->add(to);
  const std::uint64_t seen = relay_->n_bytes();
  ASSERT_EQ(b_->post({transfer(LUNA_XFER_RECV, 1, to_key, to.size())}), LUNA_OK);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, from_key, from.size())}), LUNA_OK);
  while (relay_->n_bytes() < seen + (8U << 20U))
    std::this_thread::yield();
  relay_->cut();
  EXPECT_EQ(b_->wait_for(1)[0].status, LUNA_OK);
  EXPECT_EQ(a_->wait_for(1)[0].status, LUNA_OK);
  EXPECT_EQ(to, from);
}

TEST_F(TcpFailure, DelayChangesNothingButTheEstimate) {
  connect(quick());
  relay_->delay(milliseconds(30));
  for (std::uint32_t i = 0; i < 10; ++i) {
    ASSERT_EQ(send(i, 100), LUNA_OK);
    expect_message(i, 100);
  }
  while (a_->estimate_ns(0, 0) < 10'000'000)
    std::this_thread::yield();
}

TEST_F(TcpFailure, HalfOpenConnectionIsFoundByItsSilenceAndReplaced) {
  connect(quick());
  ASSERT_EQ(send(0, 1000), LUNA_OK);
  expect_message(0, 1000);
  const int before = relay_->n_connections();
  relay_->swallow(true);
  std::thread sender([&] {
    for (std::uint32_t i = 1; i < 20; ++i)
      EXPECT_EQ(send(i, 200000), LUNA_OK);
  });
  while (relay_->n_connections() < before + 2)  // found, and dialed again into the void
    std::this_thread::yield();
  relay_->swallow(false);
  for (std::uint32_t i = 1; i < 20; ++i)
    expect_message(i, 200000);
  sender.join();
}

TEST_F(TcpFailure, PartitionOfTenSecondsIsSurvivedWithTheShippedSettings) {
  connect({});
  relay_->swallow(true);
  std::thread sender([&] {
    for (std::uint32_t i = 0; i < 10; ++i)
      EXPECT_EQ(send(i, 100000), LUNA_OK);
  });
  wait_for_silence(milliseconds(10000));
  relay_->swallow(false);
  for (std::uint32_t i = 0; i < 10; ++i)
    expect_message(i, 100000);
  sender.join();
}

TEST_F(TcpFailure, PeerThatStaysSilentIsGivenUpOnBothSides) {
  connect(quick() + SettingValues{{"peer_timeout_ms", std::int64_t{500}}});
  relay_->swallow(true);
  int value = 0;
  EXPECT_EQ(rank_0_->recv(rank_0_->self, 1, 0, &value, sizeof(value)), LUNA_UNAVAILABLE);
  EXPECT_EQ(rank_1_->recv(rank_1_->self, 0, 0, &value, sizeof(value)), LUNA_UNAVAILABLE);
  EXPECT_EQ(send(0, 100), LUNA_UNAVAILABLE);
  std::uint32_t peer = 0;
  EXPECT_EQ(a_->connect(by_port(b_->address(), relay_->port()), peer), LUNA_UNAVAILABLE);
  EXPECT_NE(a_->reason().find("silent"), std::string::npos) << a_->reason();
}

TEST_F(TcpFailure, AbortWakesWaitersOfBothEndpoints) {
  connect(quick());
  std::thread receiver([&] {
    int got = 0;
    EXPECT_EQ(rank_1_->recv(rank_1_->self, 0, 0, &got, sizeof(got)), LUNA_CANCELLED);
  });
  std::thread sender([&] {
    luna_status status = LUNA_OK;
    const auto bytes = pattern(500000, 1);  // not copied: taken back by the abort
    while (status == LUNA_OK)
      status = rank_0_->send(rank_0_->self, 1, 1, bytes.data(), bytes.size());
    EXPECT_EQ(status, LUNA_CANCELLED);
  });
  b_->abort(rank_1_);
  receiver.join();
  sender.join();
  float number = 1;
  EXPECT_EQ(rank_0_->all_reduce(rank_0_->self, &number, &number, 1, LUNA_REDUCE_SUM_F32),
            LUNA_CANCELLED);
}

TEST_F(TcpFailure, AbortTakesAMessageBackThatTheNetworkHolds) {
  connect(quick());
  relay_->swallow(true);
  std::atomic<bool> is_sending{false};
  std::thread sender([&] {
    const auto bytes = pattern(1 << 20, 1);
    is_sending = true;
    EXPECT_EQ(rank_0_->send(rank_0_->self, 1, 1, bytes.data(), bytes.size()), LUNA_CANCELLED);
  });
  while (!is_sending)
    std::this_thread::yield();
  a_->abort(rank_0_);
  sender.join();
}

TEST_F(TcpFailure, GroupsOfDifferentShapesAreAbortedNotMixed) {
  a_ = make(quick());
  b_ = make(quick());
  const std::vector<Blob> ranks = {a_->address(), b_->address()};
  auto rank_0 = a_->open(0, 2, 1000, "pair", ranks);
  auto rank_1 = b_->open(1, 2, 1001, "pair", ranks);
  ASSERT_TRUE(rank_0 && rank_1);
  rank_0_ = *rank_0;
  rank_1_ = *rank_1;
  int value = 0;
  EXPECT_EQ(rank_0_->recv(rank_0_->self, 1, 0, &value, sizeof(value)), LUNA_CANCELLED);
  EXPECT_EQ(rank_1_->recv(rank_1_->self, 0, 0, &value, sizeof(value)), LUNA_CANCELLED);
}

TEST_F(TcpFailure, GroupThatIsOpenedAgainStartsAfresh) {
  a_ = make(quick());
  b_ = make(quick());
  const std::vector<Blob> ranks = {a_->address(), b_->address()};
  for (int round = 0; round < 20; ++round) {
    rank_0_ = *a_->open(0, 2, 1000, "pair", ranks);
    rank_1_ = *b_->open(1, 2, 1000, "pair", ranks);
    ASSERT_EQ(send(100, 50), LUNA_OK);  // read by nobody
    ASSERT_EQ(rank_1_->send(rank_1_->self, 0, 8, &round, sizeof(round)), LUNA_OK);
    int got = -1;
    ASSERT_EQ(rank_0_->recv(rank_0_->self, 1, 8, &got, sizeof(got)), LUNA_OK);
    ASSERT_EQ(got, round);
    b_->close(rank_1_);
    ASSERT_EQ(rank_0_->recv(rank_0_->self, 1, 8, &got, sizeof(got)), LUNA_UNAVAILABLE);
    a_->close(rank_0_);
    rank_0_ = rank_1_ = nullptr;
  }
}

}  // namespace
}  // namespace luna::test
