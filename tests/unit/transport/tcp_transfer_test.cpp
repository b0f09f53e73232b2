// Posted transfers of transport tcp, between endpoints of one process.
#include "unit/transport/tcp_fixture.hpp"

#include <algorithm>
#include <cstring>
#include <random>

namespace luna::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20U;

/// Plain, and by TLS.
class TcpTransfer : public Tcp, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    Tcp::SetUp();
    SettingValues of_a, of_b;
    if (GetParam()) {
      authority_ = std::make_unique<Authority>(folder_, "ca");
      of_a = authority_->settings("a", *authority_);
      of_b = authority_->settings("b", *authority_);
    }
    a_ = make(of_a);
    b_ = make(of_b);
    join(*a_, *b_);
  }
  std::unique_ptr<Authority> authority_;
  std::unique_ptr<Endpoint> a_, b_;
};

TEST_P(TcpTransfer, EverySizeFromOneByteTo64MiBAndUnalignedEndsArriveIntact) {
  for (const std::size_t n : {std::size_t{1},
                              std::size_t{2},
                              std::size_t{63},
                              std::size_t{4097},
                              kMiB - 1,
                              kMiB + 3,
                              16 * kMiB + 5,
                              64 * kMiB}) {
    auto from = pattern(n + 3, 5);
    std::vector<std::uint8_t> to(n + 1);
    const std::uint64_t from_key = a_->add(from), to_key = b_->add(to);
    luna_xfer send = transfer(LUNA_XFER_SEND, 1, from_key, n);
    send.offset = 3;
    luna_xfer receive = transfer(LUNA_XFER_RECV, 1, to_key, n);
    receive.offset = 1;
    ASSERT_EQ(a_->post({send}), LUNA_OK);
    ASSERT_EQ(b_->post({receive}), LUNA_OK);
    const auto received = b_->wait_for(1);
    EXPECT_EQ(received[0].status, LUNA_OK);
    EXPECT_EQ(received[0].n_bytes, n);
    EXPECT_EQ(received[0].cookie, 12U);
    EXPECT_EQ(a_->wait_for(1)[0].status, LUNA_OK);
    ASSERT_EQ(std::memcmp(to.data() + 1, from.data() + 3, n), 0) << n << " bytes";
    a_->remove(from_key);
    b_->remove(to_key);
  }
}

TEST_P(TcpTransfer, SendsOfOneTagMeetReceivesInTheOrderTheyWerePosted) {
  constexpr std::uint32_t kTransfers = 1000;
  constexpr std::uint32_t kSeed = 7;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  auto from = pattern(kTransfers * 16, kSeed);
  std::vector<std::uint8_t> to(from.size());
  const std::uint64_t from_key = a_->add(from), to_key = b_->add(to);
  std::vector<luna_xfer> sends, receives;
  for (std::uint32_t i = 0; i < kTransfers; ++i) {
    sends.push_back({LUNA_XFER_SEND, 0, i % 3, 0, from_key, i * 16, 16, i});
    receives.push_back({LUNA_XFER_RECV, 0, i % 3, 0, to_key, i * 16, 16, i});
  }
  std::thread sender([&] {
    std::mt19937 random(kSeed);
    for (std::size_t first = 0; first < kTransfers;) {
      const std::size_t n = std::min<std::size_t>(1 + random() % 50, kTransfers - first);
      const auto begin = sends.begin() + static_cast<std::ptrdiff_t>(first);
      EXPECT_EQ(a_->post({begin, begin + static_cast<std::ptrdiff_t>(n)}), LUNA_OK);
      first += n;
    }
    for (const luna_xfer_done& done : a_->wait_for(kTransfers))
      EXPECT_EQ(done.status, LUNA_OK);
  });
  EXPECT_EQ(b_->post(receives), LUNA_OK);
  for (const luna_xfer_done& done : b_->wait_for(kTransfers))
    EXPECT_EQ(done.status, LUNA_OK);
  sender.join();
  EXPECT_EQ(to, from);
}

TEST_P(TcpTransfer, ReceiveThatIsTooSmallFailsOnBothSides) {
  std::vector<std::uint8_t> from(8, 1), to(4, 0);
  const std::uint64_t from_key = a_->add(from), to_key = b_->add(to);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, from_key, 8)}), LUNA_OK);
  ASSERT_EQ(b_->post({transfer(LUNA_XFER_RECV, 1, to_key, 4)}), LUNA_OK);
  EXPECT_EQ(a_->wait_for(1)[0].status, LUNA_INVALID_ARGUMENT);
  EXPECT_EQ(b_->wait_for(1)[0].status, LUNA_INVALID_ARGUMENT);
  EXPECT_EQ(to, std::vector<std::uint8_t>(4, 0));
}

TEST_P(TcpTransfer, MessageThatNobodyWantsStandsInNobodysWay) {
  std::vector<std::uint8_t> large(8 * kMiB, 1), small(4, 2), to(4, 0);
  const std::uint64_t large_key = a_->add(large), small_key = a_->add(small), to_key = b_->add(to);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, large_key, large.size()),
                      transfer(LUNA_XFER_SEND, 2, small_key, 4)}),
            LUNA_OK);
  ASSERT_EQ(b_->post({transfer(LUNA_XFER_RECV, 2, to_key, 4)}), LUNA_OK);
  EXPECT_EQ(b_->wait_for(1)[0].cookie, 22U);
  EXPECT_EQ(to, small);
  EXPECT_EQ(a_->wait_for(1)[0].cookie, 21U);
  a_->remove(large_key);
  EXPECT_EQ(a_->wait_for(1)[0].status, LUNA_CANCELLED);
}

TEST_P(TcpTransfer, MemoryThatGoesAwayEndsItsTransfersAndTheConnectionGoesOn) {
  std::vector<std::uint8_t> from(64 * kMiB, 1), to(64 * kMiB, 0);
  for (int round = 0; round < 4; ++round) {
    const std::uint64_t from_key = a_->add(from), to_key = b_->add(to);
    ASSERT_EQ(b_->post({transfer(LUNA_XFER_RECV, 1, to_key, to.size())}), LUNA_OK);
    ASSERT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, from_key, from.size())}), LUNA_OK);
    // Whatever has been sent of it, whichever side is first.
    if (round % 2 == 0) a_->remove(from_key);
    b_->remove(to_key);
    a_->remove(from_key);
    const luna_status sent = a_->wait_for(1)[0].status;
    const luna_status received = b_->wait_for(1)[0].status;
    EXPECT_TRUE(sent == LUNA_CANCELLED || sent == LUNA_OK) << sent;
    EXPECT_TRUE(received == LUNA_CANCELLED || received == LUNA_OK) << received;
  }
  std::vector<std::uint8_t> small(4, 9), got(4, 0);
  const std::uint64_t small_key = a_->add(small), got_key = b_->add(got);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_SEND, 5, small_key, 4)}), LUNA_OK);
  ASSERT_EQ(b_->post({transfer(LUNA_XFER_RECV, 5, got_key, 4)}), LUNA_OK);
  EXPECT_EQ(b_->wait_for(1)[0].status, LUNA_OK);
  EXPECT_EQ(a_->wait_for(1)[0].status, LUNA_OK);  // the memory is the transport's until then
  EXPECT_EQ(got, small);
}

TEST_P(TcpTransfer, PeerThatClosesEndsItsTransfersAndIsOver) {
  std::vector<std::uint8_t> bytes(8);
  const std::uint64_t key = a_->add(bytes);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_RECV, 1, key, 8)}), LUNA_OK);
  const Blob address = b_->address();
  b_->close();
  EXPECT_EQ(a_->wait_for(1)[0].status, LUNA_UNAVAILABLE);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_RECV, 1, key, 8)}), LUNA_OK);
  EXPECT_EQ(a_->wait_for(1)[0].status, LUNA_UNAVAILABLE);
  std::uint32_t peer = 0;
  EXPECT_EQ(a_->connect(address, peer), LUNA_UNAVAILABLE);
  EXPECT_NE(a_->reason().find("closed"), std::string::npos) << a_->reason();
}

TEST_P(TcpTransfer, PeerThatIsDroppedIsReachedAnewUnderAnotherNumber) {
  std::vector<std::uint8_t> bytes(8), to(8);
  const std::uint64_t key = a_->add(bytes), to_key = b_->add(to);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_RECV, 1, key, 8)}), LUNA_OK);
  ASSERT_EQ(b_->post({transfer(LUNA_XFER_RECV, 2, to_key, 8)}), LUNA_OK);
  a_->drop(0);
  EXPECT_EQ(a_->wait_for(1)[0].status, LUNA_UNAVAILABLE);
  EXPECT_EQ(b_->wait_for(1)[0].status, LUNA_UNAVAILABLE);
  EXPECT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, key, 8)}), LUNA_OK);
  EXPECT_EQ(a_->wait_for(1)[0].status, LUNA_UNAVAILABLE);
  b_->drop(0);
  std::uint32_t peer = 0;
  ASSERT_EQ(a_->connect_at_last(b_->address(), peer), LUNA_OK) << a_->reason();
  EXPECT_EQ(peer, 1U);
  ASSERT_EQ(b_->connect_at_last(a_->address(), peer), LUNA_OK) << b_->reason();
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_SEND, 3, key, 8, 1)}), LUNA_OK);
  ASSERT_EQ(b_->post({transfer(LUNA_XFER_RECV, 3, to_key, 8, peer)}), LUNA_OK);
  EXPECT_EQ(b_->wait_for(1)[0].status, LUNA_OK);
  EXPECT_EQ(a_->wait_for(1)[0].status, LUNA_OK);
}

TEST_P(TcpTransfer, PostBeyondRegisteredMemoryOrItsBoundStartsNothing) {
  std::vector<std::uint8_t> bytes(8);
  const std::uint64_t key = a_->add(bytes);
  EXPECT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, key, 9)}), LUNA_INVALID_ARGUMENT);
  EXPECT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, key + 100, 1)}), LUNA_INVALID_ARGUMENT);
  luna_xfer wraps = transfer(LUNA_XFER_SEND, 1, key, ~std::uint64_t{0});
  wraps.offset = 2;
  EXPECT_EQ(a_->post({wraps}), LUNA_INVALID_ARGUMENT);
  EXPECT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, key, 8, 5)}), LUNA_INVALID_ARGUMENT);
  const std::vector<luna_xfer> too_many(5000, transfer(LUNA_XFER_SEND, 1, key, 1));
  EXPECT_EQ(a_->post(too_many), LUNA_EXHAUSTED);
  EXPECT_TRUE(a_->poll().empty());
}

TEST_P(TcpTransfer, EndpointSendsToItself) {
  std::uint32_t self = 0;
  ASSERT_EQ(a_->connect_at_last(a_->address(), self), LUNA_OK) << a_->reason();
  EXPECT_EQ(self, 1U);
  auto from = pattern(100000, 3);
  std::vector<std::uint8_t> to(from.size());
  const std::uint64_t from_key = a_->add(from), to_key = a_->add(to);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, from_key, from.size(), self),
                      transfer(LUNA_XFER_RECV, 1, to_key, to.size(), self)}),
            LUNA_OK);
  for (const luna_xfer_done& done : a_->wait_for(2))
    EXPECT_EQ(done.status, LUNA_OK);
  EXPECT_EQ(to, from);
}

TEST_P(TcpTransfer, EstimatesComeFromWhatWasMeasured) {
  const std::uint64_t none = a_->estimate_ns(0, 0);
  const std::uint64_t much = a_->estimate_ns(0, std::uint64_t{1} << 30U);
  EXPECT_GT(none, 0U);
  EXPECT_LT(none, 1'000'000'000U);
  EXPECT_GT(much, none);
}

INSTANTIATE_TEST_SUITE_P(Streams, TcpTransfer, ::testing::Bool(), [](const auto& which) {
  return which.param ? "tls" : "plain";
});

}  // namespace
}  // namespace luna::test
