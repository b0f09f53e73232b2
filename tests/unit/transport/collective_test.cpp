// Communicators of each transport: what ranks on threads of one process can rely on.
#include "support/test_seed.hpp"
#include "unit/transport/transport_case.hpp"

#include <luna/transport.hpp>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace luna::test {
namespace {

constexpr std::uint64_t kMiB = 1U << 20U;

class Collective : public ::testing::TestWithParam<TransportCase> {
 protected:
  void SetUp() override {
    table_ = load_table<luna_transport_if>(GetParam().file, LUNA_KIND_TRANSPORT);
    ASSERT_NE(table_, nullptr);
    auto made = make_instance(*table_, host_, GetParam().settings);
    ASSERT_TRUE(made) << made.error().message();
    self_ = *made;
    collective_ =
        static_cast<const luna_collective_if*>(table_->head.ext(self_, LUNA_EXT_COLLECTIVE));
    ASSERT_NE(collective_, nullptr);
  }
  void TearDown() override {
    if (self_ != nullptr) table_->head.destroy(self_);
  }

  Result<const luna_comm*> open(std::uint32_t rank,
                                std::uint32_t n_ranks,
                                std::uint64_t message_bytes_max,
                                std::string_view group = "main") {
    luna_comm_open options{};
    options.struct_size = sizeof(options);
    options.rank = rank;
    options.n_ranks = n_ranks;
    options.message_bytes_max = message_bytes_max;
    options.group = to_abi(group);
    const luna_comm* comm = nullptr;
    luna_err err = make_err();
    LUNA_TRY(to_result(collective_->open(self_, &options, &comm, &err), err, "open"));
    return comm;
  }
  std::vector<const luna_comm*> open_all(std::uint32_t n_ranks, std::uint64_t message_bytes_max) {
    std::vector<const luna_comm*> comms;
    for (std::uint32_t rank = 0; rank < n_ranks; ++rank) {
      auto opened = open(rank, n_ranks, message_bytes_max);
      EXPECT_TRUE(opened);
      comms.push_back(*opened);
    }
    return comms;
  }
  void close_all(const std::vector<const luna_comm*>& comms) {
    for (const luna_comm* comm : comms)
      collective_->close(self_, comm);
  }

  FakeHost host_;
  const luna_transport_if* table_ = nullptr;
  const luna_collective_if* collective_ = nullptr;
  void* self_ = nullptr;
};

TEST_P(Collective, LanesAreMadeAndCountedAtTheStart) {
  const luna_comm_lane lanes[] = {{0, 7}, {2, 9}};
  luna_comm_open options{};
  options.struct_size = sizeof(options);
  options.rank = 1;
  options.n_ranks = 3;
  options.message_bytes_max = 1000;
  options.group = to_abi("lanes");
  std::uint64_t bytes_without = 0, bytes = 0;
  luna_err err = make_err();
  ASSERT_EQ(collective_->comm_bytes(self_, &options, &bytes_without, &err), LUNA_OK);
  options.n_lanes = 2;
  options.lanes = lanes;
  ASSERT_EQ(collective_->comm_bytes(self_, &options, &bytes, &err), LUNA_OK);
  EXPECT_EQ(bytes - bytes_without, 2 * GetParam().lane_bytes);
  options.n_messages_max = 65;
  EXPECT_EQ(collective_->comm_bytes(self_, &options, &bytes, &err), LUNA_INVALID_ARGUMENT);
  options.n_messages_max = 0;
  const luna_comm* comm = nullptr;
  ASSERT_EQ(collective_->open(self_, &options, &comm, &err), LUNA_OK);
  collective_->close(self_, comm);
  const luna_comm_lane to_itself[] = {{1, 7}};
  options.n_lanes = 1;
  options.lanes = to_itself;
  EXPECT_EQ(collective_->comm_bytes(self_, &options, &bytes, &err), LUNA_INVALID_ARGUMENT);
  EXPECT_EQ(collective_->open(self_, &options, &comm, &err), LUNA_INVALID_ARGUMENT);
}

TEST_P(Collective, AsManyMessagesAsAskedForAreSentWithoutAReceiver) {
  // transport_tcp keeps four of a lane whatever is asked: who sends more waits for the receiver.
  const std::uint32_t n_kept_max = GetParam().file == "transport_tcp" ? 4 : 8;
  for (const std::uint32_t n : {1U, 3U, n_kept_max}) {
    std::array<const luna_comm*, 2> comms{};
    const std::string group = "ahead" + std::to_string(n);
    const luna_comm_lane lane{0, 7};
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      luna_comm_open options{};
      options.struct_size = sizeof(options);
      options.rank = rank;
      options.n_ranks = 2;
      options.message_bytes_max = 4096;
      options.group = to_abi(group);
      options.n_lanes = rank;  // the second receives
      options.lanes = &lane;
      options.n_messages_max = n;
      luna_err err = make_err();
      ASSERT_EQ(collective_->open(self_, &options, &comms[rank], &err), LUNA_OK) << text_of(err);
    }
    for (std::uint32_t i = 0; i < n; ++i) {
      const auto bytes = pattern(4096, i);
      ASSERT_EQ(comms[0]->send(comms[0]->self, 1, 7, bytes.data(), bytes.size()), LUNA_OK);
    }
    for (std::uint32_t i = 0; i < n; ++i) {
      std::vector<std::uint8_t> got(4096);
      ASSERT_EQ(comms[1]->recv(comms[1]->self, 0, 7, got.data(), got.size()), LUNA_OK);
      EXPECT_EQ(got, pattern(4096, i));
    }
    for (const luna_comm* comm : comms)
      collective_->close(self_, comm);
  }
}

TEST_P(Collective, MessagesOfOneTagArriveInOrderAndComplete) {
  const auto comms = open_all(2, 4096);
  constexpr std::uint32_t kMessages = 2000;
  std::thread sender([&] {
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      const auto bytes = pattern(i % 4097, i);
      EXPECT_EQ(comms[0]->send(comms[0]->self, 1, 7, bytes.data(), bytes.size()), LUNA_OK);
    }
  });
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    std::vector<std::uint8_t> got(i % 4097);
    ASSERT_EQ(comms[1]->recv(comms[1]->self, 0, 7, got.data(), got.size()), LUNA_OK);
    ASSERT_EQ(got, pattern(i % 4097, i)) << "message " << i;
  }
  sender.join();
  close_all(comms);
}

TEST_P(Collective, EverySizeFromOneByteTo64MiBAndUnalignedEndsArriveIntact) {
  const auto comms = open_all(2, 64 * kMiB);
  const std::vector<std::size_t> sizes = {1,
                                          2,
                                          3,
                                          63,
                                          64,
                                          65,
                                          4095,
                                          4097,
                                          kMiB - 1,
                                          kMiB + 3,
                                          8191,
                                          16 * kMiB + 5,
                                          64 * kMiB - 1,
                                          64 * kMiB};
  std::thread sender([&] {
    for (const std::size_t n : sizes) {
      const auto bytes = pattern(n + 3, 5);
      EXPECT_EQ(comms[0]->send(comms[0]->self, 1, 0, bytes.data() + 3, n), LUNA_OK);
    }
  });
  for (const std::size_t n : sizes) {
    std::vector<std::uint8_t> got(n + 1);
    ASSERT_EQ(comms[1]->recv(comms[1]->self, 0, 0, got.data() + 1, n), LUNA_OK);
    const auto want = pattern(n + 3, 5);
    ASSERT_EQ(std::memcmp(got.data() + 1, want.data() + 3, n), 0) << n << " bytes";
  }
  sender.join();
  close_all(comms);
}

TEST_P(Collective, TagsAndDirectionsDoNotMix) {
  const auto comms = open_all(2, 64);
  const std::uint32_t a = 1, b = 2, c = 3;
  ASSERT_EQ(comms[0]->send(comms[0]->self, 1, 10, &a, sizeof(a)), LUNA_OK);
  ASSERT_EQ(comms[0]->send(comms[0]->self, 1, 11, &b, sizeof(b)), LUNA_OK);
  ASSERT_EQ(comms[1]->send(comms[1]->self, 0, 10, &c, sizeof(c)), LUNA_OK);
  std::uint32_t got = 0;
  ASSERT_EQ(comms[1]->recv(comms[1]->self, 0, 11, &got, sizeof(got)), LUNA_OK);
  EXPECT_EQ(got, b);
  ASSERT_EQ(comms[1]->recv(comms[1]->self, 0, 10, &got, sizeof(got)), LUNA_OK);
  EXPECT_EQ(got, a);
  ASSERT_EQ(comms[0]->recv(comms[0]->self, 1, 10, &got, sizeof(got)), LUNA_OK);
  EXPECT_EQ(got, c);
  close_all(comms);
}

TEST_P(Collective, SenderWaitsWhileItsLaneIsFull) {
  const auto comms = open_all(2, 8);
  constexpr std::uint64_t kMessages = 1000;
  std::atomic<std::uint64_t> n_sent{0};
  std::thread sender([&] {
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      EXPECT_EQ(comms[0]->send(comms[0]->self, 1, 0, &i, sizeof(i)), LUNA_OK);
      n_sent.store(i + 1);
    }
  });
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    EXPECT_LE(n_sent.load(), i + GetParam().n_unread_max);
    std::uint64_t got = ~std::uint64_t{0};
    ASSERT_EQ(comms[1]->recv(comms[1]->self, 0, 0, &got, sizeof(got)), LUNA_OK);
    ASSERT_EQ(got, i);
  }
  sender.join();
  close_all(comms);
}

TEST_P(Collective, MessagesOfRandomSizesTagsAndDirectionsArriveIntact) {
  constexpr std::uint32_t kRanks = 3, kMessages = 300, kTags = 5;
  constexpr std::size_t kBytesMax = 20'000;
  const std::uint32_t seed = test_seed();
  const auto comms = open_all(kRanks, kBytesMax);
  // Both ends draw the same sizes and tags from the pair's own generator.
  const auto stream = [&](std::uint32_t from, std::uint32_t to) {
    return std::mt19937(seed + from * kRanks + to);
  };
  const auto draw = [](std::mt19937& random) {
    const auto tag = static_cast<std::uint32_t>(random() % kTags);
    const std::size_t limit = random() % 8 == 0 ? kBytesMax : 300;
    return std::pair<std::uint32_t, std::size_t>(tag, random() % (limit + 1));
  };
  std::vector<std::thread> threads;
  for (std::uint32_t from = 0; from < kRanks; ++from) {
    threads.emplace_back([&, from] {
      const std::uint32_t to = (from + 1) % kRanks, source = (from + kRanks - 1) % kRanks;
      std::mt19937 sends = stream(from, to), receives = stream(source, from);
      for (std::uint32_t i = 0; i < kMessages; ++i) {
        // Around the circle, one after the other: rank 0 begins, so that no wait closes it.
        for (const bool is_send : {from == 0, from != 0}) {
          const auto [tag, n] = draw(is_send ? sends : receives);
          if (is_send) {
            const auto bytes = pattern(n, i);
            EXPECT_EQ(comms[from]->send(comms[from]->self, to, tag, bytes.data(), n), LUNA_OK);
          } else {
            std::vector<std::uint8_t> got(n);
            EXPECT_EQ(comms[from]->recv(comms[from]->self, source, tag, got.data(), n), LUNA_OK);
            EXPECT_EQ(got, pattern(n, i)) << n << " bytes, message " << i;
          }
        }
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  close_all(comms);
}

TEST_P(Collective, AllReduceAddsInRankOrderForAnyNumberOfRanks) {
  for (const std::uint32_t n_ranks : {1U, 2U, 3U, 5U}) {
    const auto comms = open_all(n_ranks, 1024);  // 1000 values need several messages
    constexpr std::size_t kValues = 1000;
    std::mt19937 random(n_ranks);
    std::uniform_real_distribution<float> distribution(-1e6F, 1e6F);
    std::vector<std::vector<float>> inputs(n_ranks, std::vector<float>(kValues));
    for (auto& input : inputs)
      for (float& value : input)
        value = distribution(random);
    std::vector<float> want = inputs[0];
    for (std::uint32_t rank = 1; rank < n_ranks; ++rank)
      for (std::size_t i = 0; i < kValues; ++i)
        want[i] += inputs[rank][i];

    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < n_ranks; ++rank) {
      threads.emplace_back([&, rank] {
        for (int turn = 0; turn < 20; ++turn) {
          std::vector<float> values = inputs[rank];
          const bool in_place = turn % 2 == 0;
          std::vector<float> separate(kValues);
          float* const out = in_place ? values.data() : separate.data();
          EXPECT_EQ(comms[rank]->all_reduce(
                        comms[rank]->self, values.data(), out, kValues, LUNA_REDUCE_SUM_F32),
                    LUNA_OK);
          EXPECT_EQ(std::memcmp(out, want.data(), kValues * sizeof(float)), 0);
        }
      });
    }
    for (std::thread& thread : threads)
      thread.join();
    close_all(comms);
  }
}

TEST_P(Collective, AbortWakesWaitersAndEndsEveryLaterCall) {
  const auto comms = open_all(3, 64);
  int value = 1;
  std::thread receiver([&] {
    int got = 0;
    EXPECT_EQ(comms[0]->recv(comms[0]->self, 1, 0, &got, sizeof(got)), LUNA_CANCELLED);
  });
  std::thread sender([&] {
    luna_status status = LUNA_OK;
    while (status == LUNA_OK) {
      status = comms[1]->send(comms[1]->self, 2, 0, &value, sizeof(value));
    }
    EXPECT_EQ(status, LUNA_CANCELLED);
  });
  std::thread reducer([&] {
    float number = 1;
    EXPECT_EQ(comms[2]->all_reduce(comms[2]->self, &number, &number, 1, LUNA_REDUCE_SUM_F32),
              LUNA_CANCELLED);
  });
  collective_->abort(self_, comms[0]);
  receiver.join();
  sender.join();
  reducer.join();
  EXPECT_EQ(comms[2]->recv(comms[2]->self, 1, 0, &value, sizeof(value)), LUNA_CANCELLED);
  EXPECT_EQ(comms[0]->send(comms[0]->self, 1, 5, &value, sizeof(value)), LUNA_CANCELLED);
  close_all(comms);
}

TEST_P(Collective, PeerThatClosesEndsWaitingButDeliversWhatItSent) {
  const auto comms = open_all(2, 64);
  int value = 42;
  ASSERT_EQ(comms[0]->send(comms[0]->self, 1, 0, &value, sizeof(value)), LUNA_OK);
  std::atomic<bool> got_first{false};
  std::thread receiver([&] {
    int got = 0;
    EXPECT_EQ(comms[1]->recv(comms[1]->self, 0, 0, &got, sizeof(got)), LUNA_OK);
    EXPECT_EQ(got, 42);
    got_first = true;
    EXPECT_EQ(comms[1]->recv(comms[1]->self, 0, 0, &got, sizeof(got)), LUNA_UNAVAILABLE);
  });
  while (!got_first)
    std::this_thread::yield();
  collective_->close(self_, comms[0]);
  receiver.join();
  EXPECT_EQ(comms[1]->send(comms[1]->self, 0, 0, &value, sizeof(value)), LUNA_UNAVAILABLE);
  collective_->close(self_, comms[1]);
  close_all(open_all(2, 128));  // the group's name is free again
}

TEST_P(Collective, WrongArgumentsAreRefusedWithoutHarm) {
  EXPECT_EQ(open(0, 0, 64).error().code(), Code::invalid_argument);
  EXPECT_EQ(open(2, 2, 64).error().code(), Code::invalid_argument);
  EXPECT_EQ(open(0, 65, 64).error().code(), Code::invalid_argument);
  EXPECT_EQ(open(0, 2, 0).error().code(), Code::invalid_argument);
  const auto comms = open_all(2, 64);
  EXPECT_EQ(open(0, 2, 64).error().code(), Code::invalid_argument);  // opened twice
  EXPECT_EQ(open(1, 2, 65).error().code(), Code::invalid_argument);  // sizes differ
  const luna_comm* const comm = comms[0];
  std::vector<std::uint8_t> bytes(65);
  EXPECT_EQ(comm->send(comm->self, 0, 0, bytes.data(), 1), LUNA_INVALID_ARGUMENT);  // itself
  EXPECT_EQ(comm->send(comm->self, 2, 0, bytes.data(), 1), LUNA_INVALID_ARGUMENT);
  EXPECT_EQ(comm->send(comm->self, 1, 0, bytes.data(), 65), LUNA_INVALID_ARGUMENT);
  EXPECT_EQ(comm->all_reduce(comm->self, bytes.data(), bytes.data(), 1, 99), LUNA_UNSUPPORTED);
  ASSERT_EQ(comm->send(comm->self, 1, 0, bytes.data(), 8), LUNA_OK);
  EXPECT_EQ(comms[1]->recv(comms[1]->self, 0, 0, bytes.data(), 4), LUNA_INVALID_ARGUMENT);
  EXPECT_EQ(comms[1]->recv(comms[1]->self, 0, 0, bytes.data(), 8), LUNA_OK);
  luna_status status = LUNA_OK;
  for (std::uint32_t tag = 0; tag < 100 && status == LUNA_OK; ++tag) {
    status = comm->send(comm->self, 1, tag, bytes.data(), 1);
  }
  EXPECT_EQ(status, LUNA_EXHAUSTED);  // tags are bounded
  close_all(comms);
}

INSTANTIATE_TEST_SUITE_P(Transports, Collective, ::testing::ValuesIn(transport_cases()), case_name);

}  // namespace
}  // namespace luna::test
