// One endpoint of a transport, as core drives it.
#pragma once

#include "support/plugin_fixture.hpp"

#include <luna/transport.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace luna::test {

class Endpoint {
 public:
  Endpoint(const luna_transport_if& table, const FakeHost& host, const SettingValues& settings = {})
      : table_(&table) {
    auto made = make_instance(table, host, settings);
    EXPECT_TRUE(made) << made.error().message();
    self_ = *made;
    collective_ =
        static_cast<const luna_collective_if*>(table_->head.ext(self_, LUNA_EXT_COLLECTIVE));
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
    const luna_status status =
        table_->connect(self_, blob.data(), static_cast<std::uint32_t>(blob.size()), &peer, &err);
    reason_ = text_of(err);
    return status;
  }
  /// Calls again until the answer is another one than "again".
  luna_status connect_at_last(const std::vector<std::uint8_t>& blob, std::uint32_t& peer) {
    luna_status status = LUNA_AGAIN;
    while ((status = connect(blob, peer)) == LUNA_AGAIN)
      std::this_thread::yield();
    return status;
  }
  /// Of the last connect() that failed.
  [[nodiscard]] const std::string& reason() const { return reason_; }
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
  /// Polls until so many transfers have finished; another thread polls the peer.
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
  [[nodiscard]] std::uint64_t estimate_ns(std::uint32_t peer, std::uint64_t n_bytes) const {
    return table_->estimate_ns(self_, peer, n_bytes);
  }

  /// ranks   address blobs of all; empty: all ranks are here
  Result<const luna_comm*> open(std::uint32_t rank,
                                std::uint32_t n_ranks,
                                std::uint64_t message_bytes_max,
                                std::string_view group,
                                const std::vector<std::vector<std::uint8_t>>& ranks = {}) {
    std::vector<luna_str> addresses;
    for (const auto& blob : ranks)
      addresses.push_back({reinterpret_cast<const char*>(blob.data()), blob.size()});
    luna_comm_open options{};
    options.struct_size = sizeof(options);
    options.rank = rank;
    options.n_ranks = n_ranks;
    options.message_bytes_max = message_bytes_max;
    options.group = to_abi(group);
    options.addresses = ranks.empty() ? nullptr : addresses.data();
    const luna_comm* comm = nullptr;
    luna_err err = make_err();
    LUNA_TRY(to_result(collective_->open(self_, &options, &comm, &err), err, "open"));
    return comm;
  }
  void abort(const luna_comm* comm) { collective_->abort(self_, comm); }
  void close(const luna_comm* comm) { collective_->close(self_, comm); }

 private:
  const luna_transport_if* table_;
  const luna_collective_if* collective_ = nullptr;
  void* self_ = nullptr;
  std::string reason_;
};

/// Connects two endpoints of one thread; each is the other's peer 0.
inline void connect(Endpoint& a, Endpoint& b) {
  const auto address_a = a.address(), address_b = b.address();
  luna_status of_a = LUNA_AGAIN, of_b = LUNA_AGAIN;
  std::uint32_t peer_a = 99, peer_b = 99;
  while (of_a == LUNA_AGAIN || of_b == LUNA_AGAIN) {
    of_a = a.connect(address_b, peer_a);
    of_b = b.connect(address_a, peer_b);
  }
  ASSERT_EQ(of_a, LUNA_OK);
  ASSERT_EQ(of_b, LUNA_OK);
  ASSERT_EQ(peer_a, 0U);
  ASSERT_EQ(peer_b, 0U);
}

/// Polls two endpoints of one thread until each has finished so many transfers in all.
inline void poll_both(Endpoint& a,
                      Endpoint& b,
                      std::size_t n,
                      std::vector<luna_xfer_done>& of_a,
                      std::vector<luna_xfer_done>& of_b) {
  while (of_a.size() < n || of_b.size() < n) {
    for (const luna_xfer_done& done : a.poll())
      of_a.push_back(done);
    for (const luna_xfer_done& done : b.poll())
      of_b.push_back(done);
  }
}

}  // namespace luna::test
