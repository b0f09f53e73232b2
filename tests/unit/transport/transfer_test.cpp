// Posted transfers of each transport.
#include "support/test_seed.hpp"
#include "unit/transport/endpoint.hpp"
#include "unit/transport/transport_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace luna::test {
namespace {

luna_xfer transfer(std::uint32_t verb, std::uint32_t tag, std::uint64_t key, std::uint64_t n) {
  return {verb, 0, tag, 0, key, 0, n, tag * 10 + verb};
}

class Transfer : public ::testing::TestWithParam<TransportCase> {
 protected:
  void SetUp() override {
    table_ = load_table<luna_transport_if>(GetParam().file, LUNA_KIND_TRANSPORT);
    ASSERT_NE(table_, nullptr);
    a_ = std::make_unique<Endpoint>(*table_, host_, GetParam().settings);
    b_ = std::make_unique<Endpoint>(*table_, host_, GetParam().settings);
    connect(*a_, *b_);
  }
  FakeHost host_;
  const luna_transport_if* table_ = nullptr;
  std::unique_ptr<Endpoint> a_, b_;
};

TEST_P(Transfer, SendMeetsReceiveOfItsTagWhicheverWasPostedFirst) {
  std::vector<std::uint8_t> from(100, 7), to(100, 0);
  const std::uint64_t from_key = a_->add(from), to_key = b_->add(to);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, from_key, 100)}), LUNA_OK);
  ASSERT_EQ(b_->post({transfer(LUNA_XFER_RECV, 2, to_key, 100)}), LUNA_OK);
  EXPECT_TRUE(a_->poll().empty());
  EXPECT_TRUE(b_->poll().empty());
  ASSERT_EQ(b_->post({transfer(LUNA_XFER_RECV, 1, to_key, 100)}), LUNA_OK);
  std::vector<luna_xfer_done> sent, received;
  poll_both(*a_, *b_, 1, sent, received);
  EXPECT_EQ(to, from);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_SEND, 2, from_key, 50)}), LUNA_OK);
  poll_both(*a_, *b_, 2, sent, received);
  EXPECT_EQ(received[1].n_bytes, 50U);
  EXPECT_EQ(received[1].cookie, 22U);
}

TEST_P(Transfer, ManyTransfersBetweenThreadsAllArrive) {
  constexpr std::uint32_t kTransfers = 200;
  std::vector<std::uint8_t> from(kTransfers * 16), to(kTransfers * 16);
  for (std::size_t i = 0; i < from.size(); ++i)
    from[i] = static_cast<std::uint8_t>(i * 31);
  const std::uint64_t from_key = a_->add(from), to_key = b_->add(to);
  const auto all = [&](std::uint32_t verb, std::uint64_t key) {
    std::vector<luna_xfer> transfers;
    for (std::uint32_t i = 0; i < kTransfers; ++i) {
      transfers.push_back({verb, 0, i, 0, key, i * 16, 16, i});
    }
    return transfers;
  };
  std::thread sender([&] {
    EXPECT_EQ(a_->post(all(LUNA_XFER_SEND, from_key)), LUNA_OK);
    for (const luna_xfer_done& done : a_->wait_for(kTransfers))
      EXPECT_EQ(done.status, LUNA_OK);
  });
  EXPECT_EQ(b_->post(all(LUNA_XFER_RECV, to_key)), LUNA_OK);
  for (const luna_xfer_done& done : b_->wait_for(kTransfers))
    EXPECT_EQ(done.status, LUNA_OK);
  sender.join();
  EXPECT_EQ(to, from);
}

TEST_P(Transfer, ReceiveThatIsTooSmallFailsOnBothSides) {
  std::vector<std::uint8_t> from(8, 1), to(4, 0);
  const std::uint64_t from_key = a_->add(from), to_key = b_->add(to);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, from_key, 8)}), LUNA_OK);
  ASSERT_EQ(b_->post({transfer(LUNA_XFER_RECV, 1, to_key, 4)}), LUNA_OK);
  std::vector<luna_xfer_done> sent, received;
  poll_both(*a_, *b_, 1, sent, received);
  EXPECT_EQ(sent[0].status, LUNA_INVALID_ARGUMENT);
  EXPECT_EQ(received[0].status, LUNA_INVALID_ARGUMENT);
  EXPECT_EQ(to, std::vector<std::uint8_t>(4, 0));
}

TEST_P(Transfer, PostBeyondRegisteredMemoryOrItsBoundStartsNothing) {
  std::vector<std::uint8_t> bytes(8);
  const std::uint64_t key = a_->add(bytes);
  EXPECT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, key, 9)}), LUNA_INVALID_ARGUMENT);
  EXPECT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, key + 100, 1)}), LUNA_INVALID_ARGUMENT);
  luna_xfer wraps = transfer(LUNA_XFER_SEND, 1, key, ~std::uint64_t{0});
  wraps.offset = 2;
  EXPECT_EQ(a_->post({wraps}), LUNA_INVALID_ARGUMENT);
  wraps.peer = 5;
  EXPECT_EQ(a_->post({wraps}), LUNA_INVALID_ARGUMENT);
  const std::vector<luna_xfer> too_many(5000, transfer(LUNA_XFER_SEND, 1, key, 1));
  EXPECT_EQ(a_->post(too_many), LUNA_EXHAUSTED);
  EXPECT_TRUE(a_->poll().empty());
}

TEST_P(Transfer, PeerOrMemoryThatGoesAwayEndsItsTransfers) {
  std::vector<std::uint8_t> bytes(8);
  std::uint64_t key = a_->add(bytes);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_RECV, 1, key, 8)}), LUNA_OK);
  a_->remove(key);
  EXPECT_EQ(a_->wait_for(1).at(0).status, LUNA_CANCELLED);
  key = a_->add(bytes);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_RECV, 1, key, 8)}), LUNA_OK);
  const auto address = b_->address();
  b_->close();
  EXPECT_EQ(a_->wait_for(1).at(0).status, LUNA_UNAVAILABLE);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_RECV, 1, key, 8)}), LUNA_OK);
  EXPECT_EQ(a_->wait_for(1).at(0).status, LUNA_UNAVAILABLE);
  std::uint32_t peer = 0;
  EXPECT_EQ(a_->connect(address, peer), LUNA_UNAVAILABLE);
  a_->drop(0);
  EXPECT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, key, 8)}), LUNA_OK);
  EXPECT_EQ(a_->wait_for(1).at(0).status, LUNA_UNAVAILABLE);
}

TEST_P(Transfer, EverySizeStreamsIntactBothWaysAtOnce) {
  constexpr std::size_t kMiB = 1U << 20U;
  const std::vector<std::size_t> sizes = {0, 1, 63, 4095, 4096, 4097, kMiB + 3, 16 * kMiB - 1};
  std::size_t n_all = 0;
  for (const std::size_t n : sizes)
    n_all += n;
  std::vector<std::uint8_t> from_a = pattern(n_all, 1), from_b = pattern(n_all, 2);
  std::vector<std::uint8_t> to_a(n_all), to_b(n_all);
  const std::uint64_t a_out = a_->add(from_a), a_in = a_->add(to_a);
  const std::uint64_t b_out = b_->add(from_b), b_in = b_->add(to_b);
  std::vector<luna_xfer> of_a, of_b;
  std::uint64_t offset = 0;
  for (std::uint32_t i = 0; i < sizes.size(); offset += sizes[i++]) {
    of_a.push_back({LUNA_XFER_SEND, 0, i, 0, a_out, offset, sizes[i], i});
    of_a.push_back({LUNA_XFER_RECV, 0, i, 0, a_in, offset, sizes[i], i});
    of_b.push_back({LUNA_XFER_RECV, 0, i, 0, b_in, offset, sizes[i], i});
    of_b.push_back({LUNA_XFER_SEND, 0, i, 0, b_out, offset, sizes[i], i});
  }
  ASSERT_EQ(a_->post(of_a), LUNA_OK);
  ASSERT_EQ(b_->post(of_b), LUNA_OK);
  std::vector<luna_xfer_done> done_a, done_b;
  poll_both(*a_, *b_, of_a.size(), done_a, done_b);
  for (const auto* all : {&done_a, &done_b})
    for (const luna_xfer_done& done : *all)
      EXPECT_EQ(done.status, LUNA_OK);
  EXPECT_EQ(to_a, from_b);
  EXPECT_EQ(to_b, from_a);
}

TEST_P(Transfer, RandomOrdersOfTagsAndCancelledMemoryLeaveTheRestIntact) {
  const std::uint32_t seed = test_seed();
  std::mt19937 random(seed);
  for (int turn = 0; turn < 20; ++turn) {
    constexpr std::uint32_t kTransfers = 64;
    constexpr std::size_t kBytes = 5000;
    std::vector<std::uint8_t> from = pattern(kTransfers * kBytes, seed + turn), to(from.size());
    std::vector<std::uint8_t> doomed(kBytes);
    const std::uint64_t out = a_->add(from), in = b_->add(to), lost = b_->add(doomed);
    const std::uint32_t n_doomed = random() % kTransfers;
    std::vector<luna_xfer> sends, receives;
    for (std::uint32_t i = 0; i < kTransfers; ++i) {
      const std::uint64_t n = random() % (kBytes + 1);
      const bool is_doomed = i == n_doomed;
      sends.push_back({LUNA_XFER_SEND, 0, i, 0, out, i * kBytes, n, i});
      receives.push_back({LUNA_XFER_RECV,
                          0,
                          i,
                          0,
                          is_doomed ? lost : in,
                          is_doomed ? 0 : i * kBytes,
                          is_doomed ? kBytes : n,
                          i});
    }
    std::shuffle(sends.begin(), sends.end(), random);
    std::shuffle(receives.begin(), receives.end(), random);
    ASSERT_EQ(b_->post(receives), LUNA_OK);
    b_->remove(lost);
    // Its send meets nothing now, until a receive of its tag comes.
    ASSERT_EQ(a_->post(sends), LUNA_OK);
    ASSERT_EQ(b_->post({{LUNA_XFER_RECV, 0, n_doomed, 0, in, n_doomed * kBytes, kBytes, 999}}),
              LUNA_OK);
    std::vector<luna_xfer_done> sent, received;
    poll_both(*a_, *b_, kTransfers, sent, received);
    while (received.size() < kTransfers + 1) {
      for (const luna_xfer_done& done : b_->poll())
        received.push_back(done);
      for (const luna_xfer_done& done : a_->poll())
        sent.push_back(done);
    }
    for (const luna_xfer_done& done : sent)
      EXPECT_EQ(done.status, LUNA_OK);
    for (const luna_xfer_done& done : received)
      EXPECT_EQ(done.status, done.cookie == n_doomed ? LUNA_CANCELLED : LUNA_OK);
    for (const luna_xfer& send : sends)
      EXPECT_EQ(std::memcmp(&to[send.offset], &from[send.offset], send.n_bytes), 0);
    a_->remove(out);
    b_->remove(in);
  }
}

TEST_P(Transfer, AnEndpointCanSendToItself) {
  std::uint32_t itself = 99;
  while (a_->connect(a_->address(), itself) == LUNA_AGAIN) {}
  ASSERT_EQ(itself, 1U);
  std::vector<std::uint8_t> from = pattern(10'000, 3), to(10'000);
  const std::uint64_t out = a_->add(from), in = a_->add(to);
  ASSERT_EQ(a_->post({{LUNA_XFER_SEND, itself, 1, 0, out, 0, 10'000, 1},
                      {LUNA_XFER_RECV, itself, 1, 0, in, 0, 10'000, 2}}),
            LUNA_OK);
  for (const luna_xfer_done& done : a_->wait_for(2))
    EXPECT_EQ(done.status, LUNA_OK);
  EXPECT_EQ(to, from);
}

TEST_P(Transfer, AForeignAddressIsRefused) {
  std::uint32_t peer = 0;
  EXPECT_EQ(a_->connect({}, peer), LUNA_INVALID_ARGUMENT);
  EXPECT_EQ(a_->connect(std::vector<std::uint8_t>(256, 0x5A), peer), LUNA_INVALID_ARGUMENT);
}

TEST_P(Transfer, AnEstimateGrowsWithTheBytes) {
  EXPECT_GT(a_->estimate_ns(0, 0), 0U);
  EXPECT_GT(a_->estimate_ns(0, 1U << 30U), a_->estimate_ns(0, 1U << 20U));
}

INSTANTIATE_TEST_SUITE_P(Transports, Transfer, ::testing::ValuesIn(transport_cases()), case_name);

TEST(InprocTransfer, ConnectAnswersAddressesOfNoEndpoint) {
  const auto* table = load_table<luna_transport_if>("transport_inproc", LUNA_KIND_TRANSPORT);
  ASSERT_NE(table, nullptr);
  const FakeHost host;
  Endpoint endpoint(*table, host, {});
  std::uint32_t peer = 0;
  auto address = endpoint.address();
  address.back() = 0x7F;  // an endpoint that does not exist yet
  EXPECT_EQ(endpoint.connect(address, peer), LUNA_AGAIN);
  address = endpoint.address();
  address[12] ^= 0xFFU;  // another process
  EXPECT_EQ(endpoint.connect(address, peer), LUNA_UNSUPPORTED);
}

}  // namespace
}  // namespace luna::test
