// Posted transfers of transport inproc.
#include "support/plugin_fixture.hpp"

#include <luna/transport.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>
#include <vector>

namespace luna::test {
namespace {

/// One endpoint, as core drives it.
class Endpoint {
 public:
  Endpoint(const luna_transport_if& table, const FakeHost& host) : table_(&table) {
    auto made = make_instance(table, host, {});
    EXPECT_TRUE(made);
    self_ = *made;
  }
  ~Endpoint() { close(); }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  void close() {
    if (self_ != nullptr) table_->head.destroy(self_);
    self_ = nullptr;
  }

  std::vector<std::uint8_t> address() {
    std::vector<std::uint8_t> blob(LUNA_ADDRESS_BYTES_MAX);
    std::uint32_t n = 0;
    EXPECT_EQ(table_->address(self_, blob.data(), &n), LUNA_OK);
    blob.resize(n);
    return blob;
  }
  luna_status connect(const std::vector<std::uint8_t>& blob, std::uint32_t& peer) {
    luna_err err = make_err();
    return table_->connect(
        self_, blob.data(), static_cast<std::uint32_t>(blob.size()), &peer, &err);
  }
  std::uint64_t add(std::vector<std::uint8_t>& bytes) {
    const luna_mem memory{LUNA_MEM_HOST, 0, bytes.data(), bytes.size(), -1, 0};
    std::uint64_t key = 0;
    luna_err err = make_err();
    EXPECT_EQ(table_->register_memory(self_, &memory, &key, &err), LUNA_OK) << err.text;
    return key;
  }
  void remove(std::uint64_t key) { table_->deregister_memory(self_, key); }
  luna_status post(const std::vector<luna_xfer>& transfers) {
    luna_err err = make_err();
    return table_->post(
        self_, transfers.data(), static_cast<std::uint32_t>(transfers.size()), &err);
  }
  std::vector<luna_xfer_done> poll() {
    std::array<luna_xfer_done, 64> done{};
    std::uint32_t n = 0;
    EXPECT_EQ(table_->poll(self_, done.data(), done.size(), &n), LUNA_OK);
    return {done.begin(), done.begin() + n};
  }
  std::vector<luna_xfer_done> wait_for(std::size_t n) {
    std::vector<luna_xfer_done> all;
    while (all.size() < n) {
      for (const luna_xfer_done& done : poll())
        all.push_back(done);
      std::this_thread::yield();
    }
    return all;
  }
  void drop(std::uint32_t peer) { table_->drop_peer(self_, peer); }

 private:
  const luna_transport_if* table_;
  void* self_ = nullptr;
};

luna_xfer transfer(std::uint32_t verb, std::uint32_t tag, std::uint64_t key, std::uint64_t n) {
  return {verb, 0, tag, 0, key, 0, n, tag * 10 + verb};
}

class InprocTransfer : public ::testing::Test {
 protected:
  void SetUp() override {
    table_ = load_table<luna_transport_if>("transport_inproc", LUNA_KIND_TRANSPORT);
    ASSERT_NE(table_, nullptr);
    a_ = std::make_unique<Endpoint>(*table_, host_);
    b_ = std::make_unique<Endpoint>(*table_, host_);
    std::uint32_t peer = 99;
    ASSERT_EQ(a_->connect(b_->address(), peer), LUNA_OK);
    ASSERT_EQ(peer, 0U);
    ASSERT_EQ(b_->connect(a_->address(), peer), LUNA_OK);
    ASSERT_EQ(peer, 0U);
  }
  FakeHost host_;
  const luna_transport_if* table_ = nullptr;
  std::unique_ptr<Endpoint> a_, b_;
};

TEST_F(InprocTransfer, SendMeetsReceiveOfItsTagWhicheverWasPostedFirst) {
  std::vector<std::uint8_t> from(100, 7), to(100, 0);
  const std::uint64_t from_key = a_->add(from), to_key = b_->add(to);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, from_key, 100)}), LUNA_OK);
  ASSERT_EQ(b_->post({transfer(LUNA_XFER_RECV, 2, to_key, 100)}), LUNA_OK);
  EXPECT_TRUE(a_->poll().empty());
  EXPECT_TRUE(b_->poll().empty());
  ASSERT_EQ(b_->post({transfer(LUNA_XFER_RECV, 1, to_key, 100)}), LUNA_OK);
  EXPECT_EQ(to, from);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_SEND, 2, from_key, 50)}), LUNA_OK);
  const auto sent = a_->poll();
  const auto received = b_->poll();
  ASSERT_EQ(sent.size(), 2U);
  ASSERT_EQ(received.size(), 2U);
  EXPECT_EQ(received[1].n_bytes, 50U);
  EXPECT_EQ(received[1].cookie, 22U);
}

TEST_F(InprocTransfer, ManyTransfersBetweenThreadsAllArrive) {
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

TEST_F(InprocTransfer, ReceiveThatIsTooSmallFailsOnBothSides) {
  std::vector<std::uint8_t> from(8, 1), to(4, 0);
  const std::uint64_t from_key = a_->add(from), to_key = b_->add(to);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, from_key, 8)}), LUNA_OK);
  ASSERT_EQ(b_->post({transfer(LUNA_XFER_RECV, 1, to_key, 4)}), LUNA_OK);
  EXPECT_EQ(a_->poll().at(0).status, LUNA_INVALID_ARGUMENT);
  EXPECT_EQ(b_->poll().at(0).status, LUNA_INVALID_ARGUMENT);
  EXPECT_EQ(to, std::vector<std::uint8_t>(4, 0));
}

TEST_F(InprocTransfer, PostBeyondRegisteredMemoryOrItsBoundStartsNothing) {
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

TEST_F(InprocTransfer, PeerOrMemoryThatGoesAwayEndsItsTransfers) {
  std::vector<std::uint8_t> bytes(8);
  std::uint64_t key = a_->add(bytes);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_RECV, 1, key, 8)}), LUNA_OK);
  a_->remove(key);
  EXPECT_EQ(a_->poll().at(0).status, LUNA_CANCELLED);
  key = a_->add(bytes);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_RECV, 1, key, 8)}), LUNA_OK);
  const auto address = b_->address();
  b_->close();
  EXPECT_EQ(a_->poll().at(0).status, LUNA_UNAVAILABLE);
  ASSERT_EQ(a_->post({transfer(LUNA_XFER_RECV, 1, key, 8)}), LUNA_OK);
  EXPECT_EQ(a_->poll().at(0).status, LUNA_UNAVAILABLE);
  std::uint32_t peer = 0;
  EXPECT_EQ(a_->connect(address, peer), LUNA_UNAVAILABLE);
  a_->drop(0);
  EXPECT_EQ(a_->post({transfer(LUNA_XFER_SEND, 1, key, 8)}), LUNA_OK);
  EXPECT_EQ(a_->poll().at(0).status, LUNA_UNAVAILABLE);
}

TEST_F(InprocTransfer, ConnectAnswersForeignAddresses) {
  std::uint32_t peer = 0;
  EXPECT_EQ(a_->connect({}, peer), LUNA_INVALID_ARGUMENT);
  EXPECT_EQ(a_->connect(std::vector<std::uint8_t>(256, 0x5A), peer), LUNA_INVALID_ARGUMENT);
  auto address = b_->address();
  address.back() = 0x7F;  // an endpoint that does not exist yet
  EXPECT_EQ(a_->connect(address, peer), LUNA_AGAIN);
  address = b_->address();
  address[12] ^= 0xFFU;  // another process
  EXPECT_EQ(a_->connect(address, peer), LUNA_UNSUPPORTED);
}

}  // namespace
}  // namespace luna::test
