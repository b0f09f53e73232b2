// Transport shm between processes: meeting, exact bytes and sums, and ends of all kinds.
#include "support/test_seed.hpp"
#include "unit/transport/endpoint.hpp"
#include "unit/transport/peer_process.hpp"
#include "unit/transport/shm_rig.hpp"
#include "unit/transport/transport_case.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>
#include <iterator>
#include <thread>

namespace luna::test {
namespace {

constexpr std::uint64_t kMessageBytesMax = 64U << 20U;

/// A fresh folder for ranks to meet in.
std::string meeting_folder() {
  std::string path = private_folder() + "/meet-XXXXXX";
  return ::mkdtemp(path.data());
}

std::ptrdiff_t n_files(const std::string& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

std::vector<std::size_t> random_sizes(std::uint32_t seed, int n) {
  std::mt19937 random(seed);
  std::vector<std::size_t> sizes;
  for (int i = 0; i < n; ++i)
    sizes.push_back(random() % (i % 50 == 0 ? 300'000 : 2'000));
  sizes.push_back(kMessageBytesMax);
  return sizes;
}

std::string to_hex(const std::vector<std::uint8_t>& bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text.push_back("0123456789abcdef"[byte >> 4U]);
    text.push_back("0123456789abcdef"[byte & 15U]);
  }
  return text;
}
std::vector<std::uint8_t> from_hex(const std::string& text) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::uint8_t>(std::stoul(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

// ---- the peer's roles: [role, folder, ...] ------------------------------------------------------

int echo(const std::string& folder, std::uint32_t seed) {
  ShmRig rig(folder);
  const auto comm = rig.open("echo", 1, 2, kMessageBytesMax);
  if (!comm) return 1;
  for (const std::size_t n : random_sizes(seed, 500)) {
    std::vector<std::uint8_t> bytes(n);
    if (receive(*comm, 0, bytes) != LUNA_OK || send(*comm, 0, bytes) != LUNA_OK) return 2;
  }
  rig.close(*comm);
  return 0;
}

int reduce(const std::string& folder,
           std::uint32_t seed,
           std::uint32_t rank,
           std::uint32_t n_ranks) {
  ShmRig rig(folder);
  const auto comm = rig.open("sum", rank, n_ranks, 4096);
  return comm && sums_are_exact(*comm, seed) ? 0 : 1;
}

/// Sends 100 bytes, then more than anybody takes.
int send_without_end(const std::string& folder) {
  ShmRig rig(folder);
  const auto comm = rig.open("kill", 1, 2, kMessageBytesMax);
  if (!comm || send(*comm, 0, pattern(100, 1)) != LUNA_OK) return 1;
  return send(*comm, 0, pattern(kMessageBytesMax, 2));
}

/// Opens a rank, says so, and waits to be killed.
int hold_rank(const std::string& folder, std::uint32_t rank) {
  ShmRig rig(folder);
  if (!rig.open("held", rank, 2, 64)) return 1;
  std::cout << "open" << std::endl;
  std::string line;
  std::getline(std::cin, line);
  return 0;
}

int wait_for_abort(const std::string& folder) {
  ShmRig rig(folder);
  const auto comm = rig.open("abort", 1, 2, 64);
  if (!comm) return 1;
  std::cout << "open" << std::endl;
  std::vector<std::uint8_t> bytes(8);
  return receive(*comm, 0, bytes) == LUNA_CANCELLED ? 0 : 2;
}

struct PeerEndpoint {
  explicit PeerEndpoint(const std::string& folder)
      : endpoint(*load_table<luna_transport_if>("transport_shm", LUNA_KIND_TRANSPORT),
                 host,
                 {{"directory", folder}, {"ring_bytes_max", std::int64_t{4096}}}) {}
  /// Exchanges addresses by lines and connects.
  bool meet() {
    std::cout << to_hex(endpoint.address()) << std::endl;
    std::string line;
    std::getline(std::cin, line);
    std::uint32_t peer = 99;
    luna_status status = LUNA_AGAIN;
    while (status == LUNA_AGAIN)
      status = endpoint.connect(from_hex(line), peer);
    return status == LUNA_OK && peer == 0;
  }
  FakeHost host;
  Endpoint endpoint;
};

/// Receives a million bytes, sends them back and ends as soon as they are on their way.
int mirror(const std::string& folder) {
  PeerEndpoint own(folder);
  std::vector<std::uint8_t> bytes(1'000'000);
  const std::uint64_t key = own.endpoint.add(bytes);
  if (!own.meet()) return 1;
  own.endpoint.post({{LUNA_XFER_RECV, 0, 1, 0, key, 0, bytes.size(), 1}});
  if (own.endpoint.wait_for(1)[0].status != LUNA_OK) return 2;
  own.endpoint.post({{LUNA_XFER_SEND, 0, 2, 0, key, 0, bytes.size(), 2}});
  return own.endpoint.wait_for(1)[0].status == LUNA_OK ? 0 : 3;
}

/// Accepts a transfer and is killed before it is through.
int accept_and_hang(const std::string& folder) {
  PeerEndpoint own(folder);
  std::vector<std::uint8_t> bytes(64U << 20U);
  const std::uint64_t key = own.endpoint.add(bytes);
  if (!own.meet()) return 1;
  own.endpoint.post({{LUNA_XFER_RECV, 0, 1, 0, key, 0, bytes.size(), 1}});
  // Answers pings until the test, too, is connected.
  std::string line;
  std::thread reader([&] { std::getline(std::cin, line); });
  reader.detach();
  for (;;)
    own.endpoint.poll();
}

}  // namespace

int play_role(const std::vector<std::string>& arguments) {
  const std::string& role = arguments.at(0);
  const std::string& folder = arguments.at(1);
  const auto number = [&](std::size_t at) {
    return static_cast<std::uint32_t>(std::stoul(arguments.at(at)));
  };
  if (role == "echo") return echo(folder, number(2));
  if (role == "reduce") return reduce(folder, number(2), number(3), number(4));
  if (role == "send_without_end") return send_without_end(folder);
  if (role == "hold_rank") return hold_rank(folder, number(2));
  if (role == "wait_for_abort") return wait_for_abort(folder);
  if (role == "mirror") return mirror(folder);
  if (role == "accept_and_hang") return accept_and_hang(folder);
  return 126;
}

namespace {

TEST(ShmProcesses, MessagesOfRandomSizesComeBackFromAnotherProcess) {
  const std::string folder = meeting_folder();
  const std::uint32_t seed = test_seed();
  PeerProcess peer({"echo", folder, std::to_string(seed)});
  ShmRig rig(folder);
  const auto comm = rig.open("echo", 0, 2, kMessageBytesMax);
  ASSERT_TRUE(comm) << comm.error().message();
  for (const std::size_t n : random_sizes(seed, 500)) {
    const auto bytes = pattern(n, static_cast<std::uint32_t>(n));
    std::vector<std::uint8_t> got(n);
    ASSERT_EQ(send(*comm, 1, bytes), LUNA_OK);
    ASSERT_EQ(receive(*comm, 1, got), LUNA_OK);
    ASSERT_EQ(got, bytes);
  }
  EXPECT_EQ(peer.wait(), 0);
  EXPECT_EQ(n_files(folder), 0);  // both were there, so nothing is left to be found
}

TEST(ShmProcesses, SumsAreThoseOfRankOrderInEveryProcess) {
  const std::uint32_t seed = test_seed();
  for (const std::uint32_t n_ranks : {2U, 4U}) {
    const std::string folder = meeting_folder();
    std::vector<std::unique_ptr<PeerProcess>> peers;
    for (std::uint32_t rank = 1; rank < n_ranks; ++rank) {
      peers.push_back(std::make_unique<PeerProcess>(std::vector<std::string>{
          "reduce", folder, std::to_string(seed), std::to_string(rank), std::to_string(n_ranks)}));
    }
    ShmRig rig(folder);
    const auto comm = rig.open("sum", 0, n_ranks, 4096);
    ASSERT_TRUE(comm) << comm.error().message();
    EXPECT_TRUE(sums_are_exact(*comm, seed));
    for (const auto& peer : peers)
      EXPECT_EQ(peer->wait(), 0);
  }
}

TEST(ShmProcesses, PeerThatIsKilledInAMessageEndsTheReceive) {
  const std::string folder = meeting_folder();
  PeerProcess peer({"send_without_end", folder});
  ShmRig rig(folder);
  const auto comm = rig.open("kill", 0, 2, kMessageBytesMax);
  ASSERT_TRUE(comm) << comm.error().message();
  std::vector<std::uint8_t> first(100);
  ASSERT_EQ(receive(*comm, 1, first), LUNA_OK);
  EXPECT_EQ(first, pattern(100, 1));
  peer.kill();  // its ring holds a thousandth of the message, at most
  std::vector<std::uint8_t> second(kMessageBytesMax);
  EXPECT_EQ(receive(*comm, 1, second), LUNA_UNAVAILABLE);
  luna_status status = LUNA_OK;
  for (int i = 0; i < 100 && status == LUNA_OK; ++i)  // until the ring is full
    status = send(*comm, 1, pattern(8000, 1));
  EXPECT_EQ(status, LUNA_UNAVAILABLE);
  float value = 1;
  EXPECT_EQ((*comm)->all_reduce((*comm)->self, &value, &value, 1, LUNA_REDUCE_SUM_F32),
            LUNA_UNAVAILABLE);
  EXPECT_EQ(n_files(folder), 0);
}

TEST(ShmProcesses, RanksOfAKilledProcessAreTakenOver) {
  const std::string folder = meeting_folder();
  {
    PeerProcess peer({"hold_rank", folder, "0"});
    ASSERT_EQ(peer.read_line(), "open");
    EXPECT_EQ(n_files(folder), 1);
    peer.kill();
  }
  EXPECT_EQ(n_files(folder), 1);  // what the killed one left
  ShmRig rig(folder), other(folder);
  const auto zero = rig.open("held", 0, 2, 64);
  ASSERT_TRUE(zero) << zero.error().message();
  const auto one = other.open("held", 1, 2, 64);
  ASSERT_TRUE(one) << one.error().message();
  EXPECT_EQ(n_files(folder), 0);
  EXPECT_EQ(send(*zero, 1, pattern(50, 1)), LUNA_OK);
  std::vector<std::uint8_t> got(50);
  EXPECT_EQ(receive(*one, 0, got), LUNA_OK);
  EXPECT_EQ(got, pattern(50, 1));
}

TEST(ShmProcesses, WhatAKilledProcessLeftIsRemovedByTheNext) {
  const std::string folder = meeting_folder();
  PeerProcess peer({"hold_rank", folder, "0"});
  ASSERT_EQ(peer.read_line(), "open");
  ShmRig living(folder);
  ASSERT_TRUE(living.open("another", 0, 2, 64));
  EXPECT_EQ(n_files(folder), 2);  // both still wait for a rank
  peer.kill();
  ShmRig next(folder);
  ASSERT_TRUE(next.open("another", 1, 2, 64));
  EXPECT_EQ(n_files(folder), 0);
}

TEST(ShmProcesses, ARankOfADeadGroupIsNotReused) {
  const std::string folder = meeting_folder();
  ShmRig rig(folder);
  PeerProcess peer({"hold_rank", folder, "0"});
  ASSERT_EQ(peer.read_line(), "open");
  const auto one = rig.open("held", 1, 3, 64);
  EXPECT_FALSE(one);  // the group has two ranks
  peer.kill();
  // The same name in a new epoch, with terms of its own.
  const auto fresh = rig.open("held", 1, 3, 64);
  ASSERT_TRUE(fresh) << fresh.error().message();
  rig.close(*fresh);
  EXPECT_EQ(n_files(folder), 0);  // who closes before all are there leaves nothing
}

TEST(ShmProcesses, AbortWakesAWaiterInAnotherProcess) {
  const std::string folder = meeting_folder();
  PeerProcess peer({"wait_for_abort", folder});
  ShmRig rig(folder);
  const auto comm = rig.open("abort", 0, 2, 64);
  ASSERT_TRUE(comm) << comm.error().message();
  ASSERT_EQ(peer.read_line(), "open");
  rig.abort(*comm);
  EXPECT_EQ(peer.wait(), 0);
}

TEST(ShmProcesses, AFolderThatOthersCanOpenIsRefused) {
  const std::string folder = meeting_folder();
  std::filesystem::permissions(folder, std::filesystem::perms(0755));
  ShmRig rig(folder);
  const auto comm = rig.open("open", 0, 2, 64);
  ASSERT_FALSE(comm);
  EXPECT_EQ(comm.error().code(), Code::unavailable);
  EXPECT_NE(comm.error().message().find(folder), std::string::npos);
}

TEST(ShmProcesses, TransfersGoThereAndBackAndOutliveTheSender) {
  const std::string folder = meeting_folder();
  PeerProcess peer({"mirror", folder});
  PeerEndpoint own(folder);
  std::vector<std::uint8_t> from = pattern(1'000'000, 4), to(from.size());
  const std::uint64_t out = own.endpoint.add(from), in = own.endpoint.add(to);
  const auto theirs = from_hex(peer.read_line());
  peer.write_line(to_hex(own.endpoint.address()));
  std::uint32_t number = 99;
  luna_status status = LUNA_AGAIN;
  while (status == LUNA_AGAIN)
    status = own.endpoint.connect(theirs, number);
  ASSERT_EQ(status, LUNA_OK);
  ASSERT_EQ(own.endpoint.post({{LUNA_XFER_SEND, 0, 1, 0, out, 0, from.size(), 1},
                               {LUNA_XFER_RECV, 0, 2, 0, in, 0, to.size(), 2}}),
            LUNA_OK);
  for (const luna_xfer_done& done : own.endpoint.wait_for(2))
    EXPECT_EQ(done.status, LUNA_OK);
  EXPECT_EQ(to, from);
  EXPECT_EQ(peer.wait(), 0);
  EXPECT_EQ(own.endpoint.connect(theirs, number), LUNA_UNAVAILABLE);
}

TEST(ShmProcesses, PeerThatIsKilledEndsItsTransfers) {
  const std::string folder = meeting_folder();
  PeerProcess peer({"accept_and_hang", folder});
  PeerEndpoint own(folder);
  std::vector<std::uint8_t> from(64U << 20U), to(8);
  const std::uint64_t out = own.endpoint.add(from), in = own.endpoint.add(to);
  const auto theirs = from_hex(peer.read_line());
  peer.write_line(to_hex(own.endpoint.address()));
  std::uint32_t number = 99;
  luna_status status = LUNA_AGAIN;
  while (status == LUNA_AGAIN)
    status = own.endpoint.connect(theirs, number);
  ASSERT_EQ(status, LUNA_OK);
  // Nobody ever sends what the second waits for.
  ASSERT_EQ(own.endpoint.post({{LUNA_XFER_SEND, 0, 1, 0, out, 0, from.size(), 1},
                               {LUNA_XFER_RECV, 0, 2, 0, in, 0, to.size(), 2}}),
            LUNA_OK);
  own.endpoint.poll();
  peer.kill();
  for (const luna_xfer_done& done : own.endpoint.wait_for(2))
    EXPECT_EQ(done.status, LUNA_UNAVAILABLE);
}

}  // namespace
}  // namespace luna::test
