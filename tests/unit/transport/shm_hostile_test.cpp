// Transport shm beside a peer that writes anything into what they share.
#include "plugins/transport_shm/link.hpp"
#include "plugins/transport_shm/ring.hpp"
#include "support/test_seed.hpp"
#include "unit/transport/endpoint.hpp"
#include "unit/transport/shm_rig.hpp"
#include "unit/transport/transport_case.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <random>
#include <thread>
#include <unistd.h>

namespace luna::test {
namespace {

TEST(ShmRing, IndicesThatCannotBeAreRefused) {
  std::vector<std::byte> room(4096);
  const std::vector<std::byte> bytes(100);
  std::uint64_t n = 0;
  {
    shm::RingIndices indices;
    shm::RingWriter writer(indices, room);
    writer.put(bytes);
    writer.publish();
    indices.n_read = 101;  // more than was written
    EXPECT_EQ(writer.room(n), LUNA_CORRUPT);
    indices.n_read = 50;
    EXPECT_EQ(writer.room(n), LUNA_OK);
    EXPECT_EQ(n, 4096U - 50U);
    indices.n_read = 49;  // backward
    EXPECT_EQ(writer.room(n), LUNA_CORRUPT);
  }
  {
    shm::RingIndices indices;
    shm::RingReader reader(indices, room);
    indices.n_written = 4097;  // more than there is room for
    EXPECT_EQ(reader.ready(n), LUNA_CORRUPT);
    indices.n_written = ~std::uint64_t{0};
    EXPECT_EQ(reader.ready(n), LUNA_CORRUPT);
    indices.n_written = 4096;
    EXPECT_EQ(reader.ready(n), LUNA_OK);
    EXPECT_EQ(n, 4096U);
    indices.n_written = 4095;
    EXPECT_EQ(reader.ready(n), LUNA_CORRUPT);
  }
}

/// The first pages of every segment that this process made since the last call, writable.
class Scribbler {
 public:
  explicit Scribbler(std::uint64_t n_bytes) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code ignored;
      const auto target = std::filesystem::read_symlink(entry.path(), ignored).string();
      if (target.find("memfd:luna-shm") == std::string::npos) continue;
      const int file = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
      struct stat status {};
      if (file < 0 || ::fstat(file, &status) != 0) continue;
      const auto n = std::min<std::uint64_t>(n_bytes, static_cast<std::uint64_t>(status.st_size));
      void* const base = ::mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      ::close(file);
      if (base != MAP_FAILED) ranges_.push_back({static_cast<std::uint64_t*>(base), n / 8});
    }
  }
  Scribbler(const Scribbler&) = delete;
  Scribbler& operator=(const Scribbler&) = delete;
  ~Scribbler() {
    for (const Range& range : ranges_)
      ::munmap(range.words, range.n_words * 8);
  }

  [[nodiscard]] std::size_t n_segments() const { return ranges_.size(); }
  /// Writes one word somewhere: small, near what was there, or anything.
  void scribble(std::mt19937_64& random) {
    const Range& range = ranges_[random() % ranges_.size()];
    std::atomic_ref<std::uint64_t> word(range.words[random() % range.n_words]);
    switch (random() % 4) {
      case 0:
        word.store(random() % 16);
        break;
      case 1:
        word.store(word.load() + random() % 8192 - 4096);
        break;
      case 2:
        word.store(random());
        break;
      default:
        word.store(~std::uint64_t{0} - random() % 4);
        break;
    }
  }

 private:
  struct Range {
    std::uint64_t* words;
    std::uint64_t n_words;
  };
  std::vector<Range> ranges_;
};

TEST(ShmHostile, ScribblingOverAGroupEndsItsCallsAndNothingElse) {
  const std::uint32_t seed = test_seed();
  std::mt19937_64 random(seed);
  for (int turn = 0; turn < 20; ++turn) {
    ShmRig rig(private_folder());
    std::array<const luna_comm*, 2> comms{};
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      const auto comm = rig.open("scribbled", rank, 2, 10'000);
      ASSERT_TRUE(comm) << comm.error().message();
      comms[rank] = *comm;
    }
    Scribbler scribbler(16384);  // terms, words, ranks and the first lanes
    ASSERT_GE(scribbler.n_segments(), 2U);
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const luna_comm* const comm = comms[rank];
        std::vector<std::uint8_t> bytes(10'000);
        std::vector<float> values(600);
        luna_status status = LUNA_OK;
        for (std::uint32_t i = 0; status == LUNA_OK || status == LUNA_INVALID_ARGUMENT; ++i) {
          const std::uint32_t tag = i % 3, peer = 1 - rank;
          if (i % 4 == 3)
            status = comm->all_reduce(
                comm->self, values.data(), values.data(), 600, LUNA_REDUCE_SUM_F32);
          else if ((i + rank) % 2 == 0)
            status = comm->send(comm->self, peer, tag, bytes.data(), i * 37 % 10'001);
          else
            status = comm->recv(comm->self, peer, tag, bytes.data(), i * 37 % 10'001);
        }
      });
    }
    for (int i = 0; i < 2000; ++i) {
      scribbler.scribble(random);
      std::this_thread::yield();
    }
    rig.abort(comms[0]);
    for (std::thread& thread : threads)
      thread.join();
    for (const luna_comm* comm : comms)
      rig.close(comm);
  }
}

TEST(ShmHostile, ScribblingOverInboxesEndsTransfersAndNothingElse) {
  const std::uint32_t seed = test_seed();
  std::mt19937_64 random(seed);
  const auto* table = load_table<luna_transport_if>("transport_shm", LUNA_KIND_TRANSPORT);
  ASSERT_NE(table, nullptr);
  const FakeHost host;
  for (int turn = 0; turn < 40; ++turn) {
    Endpoint a(*table, host, {{"ring_bytes_max", std::int64_t{4096}}});
    Endpoint b(*table, host, {{"ring_bytes_max", std::int64_t{4096}}});
    connect(a, b);
    std::vector<std::uint8_t> of_a(50'000), of_b(50'000);
    const std::uint64_t key_a = a.add(of_a), key_b = b.add(of_b);
    std::vector<luna_xfer> from_a, from_b;
    for (std::uint32_t i = 0; i < 200; ++i) {
      const std::uint64_t n = random() % 50'001;
      const bool is_send = i % 2 == 0;
      from_a.push_back({is_send ? LUNA_XFER_SEND : LUNA_XFER_RECV, 0, i, 0, key_a, 0, n, i});
      from_b.push_back({is_send ? LUNA_XFER_RECV : LUNA_XFER_SEND, 0, i, 0, key_b, 0, n, i});
    }
    ASSERT_EQ(a.post(from_a), LUNA_OK);
    ASSERT_EQ(b.post(from_b), LUNA_OK);
    Scribbler scribbler(80'000);  // the doors and the first rings
    ASSERT_GE(scribbler.n_segments(), 2U);
    std::size_t n_done = 0;
    for (int i = 0; i < 300; ++i) {
      scribbler.scribble(random);
      n_done += a.poll().size() + b.poll().size();
    }
    EXPECT_LE(n_done, 400U);
    a.drop(0);
    b.drop(0);
    while (n_done < 400)  // each is told of once, whatever its end
      n_done += a.poll().size() + b.poll().size();
    EXPECT_TRUE(a.poll().empty());
    EXPECT_TRUE(b.poll().empty());
  }
}

/// Two inboxes, one of which a test writes into by hand.
class ShmFrames : public ::testing::Test {
 protected:
  struct Frame {
    std::uint32_t kind, tag;
    std::uint64_t id, n_bytes;
    std::int32_t status;
    std::uint32_t pad;
  };
  void SetUp() override {
    auto victim = shm::Inbox::create(4096);
    auto attacker = shm::Inbox::create(4096);
    ASSERT_TRUE(victim && attacker);
    victim_ = std::make_unique<shm::Inbox>(std::move(*victim));
    attacker_ = std::make_unique<shm::Inbox>(std::move(*attacker));
    auto seen = shm::Inbox::attach(attacker_->address());
    ASSERT_TRUE(seen);
    const auto out = seen->enter(victim_->epoch());
    ASSERT_TRUE(out);
    link_ = std::make_unique<shm::Link>(*victim_, std::move(*seen), *out, shm::own_process());
    const auto in = victim_->enter(attacker_->epoch());
    ASSERT_TRUE(in);
    writer_.emplace(victim_->door(*in).ring, victim_->ring(*in));
    link_->advance(state_, speed_);  // sends its first ping
    memory_.resize(1000);
    state_.regions[1] = {reinterpret_cast<std::byte*>(memory_.data()), memory_.size()};
  }
  void write(const Frame& frame, std::size_t n_bytes = 0) {
    writer_->put(std::as_bytes(std::span(&frame, 1)));
    writer_->put(std::vector<std::byte>(n_bytes));
    writer_->publish();
    link_->advance(state_, speed_);
  }
  static constexpr std::uint32_t kOffer = 1, kBytes = 5, kPing = 6, kPong = 7;

  std::unique_ptr<shm::Inbox> victim_, attacker_;
  std::vector<std::uint8_t> memory_;
  shm::EndpointState state_;
  shm::LinkSpeed speed_;
  std::unique_ptr<shm::Link> link_;
  std::optional<shm::RingWriter> writer_;
};

TEST_F(ShmFrames, BytesBeyondTheOfferEndTheLink) {
  link_->post(state_, {LUNA_XFER_RECV, 0, 9, 0, 1, 0, 1000, 7});
  write({kOffer, 9, 1, 100, 0, 0});
  write({kBytes, 0, 1, 60, 0, 0}, 60);
  EXPECT_FALSE(link_->is_over());
  write({kBytes, 0, 1, 41, 0, 0}, 41);
  EXPECT_TRUE(link_->is_over());
  ASSERT_EQ(state_.done.size(), 1U);
  EXPECT_EQ(state_.done[0].status, LUNA_UNAVAILABLE);
}

TEST_F(ShmFrames, AFrameThatSaysMoreThanTheRingHoldsEndsTheLink) {
  write({kBytes, 0, 1, 1, 0, 0});
  EXPECT_TRUE(link_->is_over());
}

TEST_F(ShmFrames, AFrameOfNoKindEndsTheLink) {
  write({77, 0, 1, 0, 0, 0});
  EXPECT_TRUE(link_->is_over());
}

TEST_F(ShmFrames, AnOfferThatComesTwiceEndsTheLink) {
  write({kOffer, 9, 1, 100, 0, 0});
  EXPECT_FALSE(link_->is_over());
  write({kOffer, 9, 1, 100, 0, 0});
  EXPECT_TRUE(link_->is_over());
}

TEST_F(ShmFrames, PongsThatNobodyAskedForEndTheLink) {
  write({kPong, 0, 0, 0, 0, 0});  // to the first ping
  EXPECT_FALSE(link_->is_over());
  for (int i = 0; i < 10; ++i)
    write({kPong, 0, 0, 0, 0, 0});
  EXPECT_TRUE(link_->is_over());
}

TEST_F(ShmFrames, ASecondPingBeforeThePongEndsTheLink) {
  const Frame ping{kPing, 0, 0, 0, 0, 0};
  write(ping);
  EXPECT_FALSE(link_->is_over());
  writer_->put(std::as_bytes(std::span(&ping, 1)));
  write(ping);
  EXPECT_TRUE(link_->is_over());
}

TEST_F(ShmFrames, BytesForUnknownTransfersAreSkipped) {
  write({kBytes, 0, 55, 10, 0, 0}, 10);
  EXPECT_FALSE(link_->is_over());
}

TEST(ShmAddress, OfAnotherEpochOrADeadProcessIsUnavailable) {
  auto inbox = shm::Inbox::create(4096);
  ASSERT_TRUE(inbox);
  auto address = inbox->address();
  EXPECT_TRUE(shm::Inbox::attach(address));
  address.epoch.words[1] ^= 1U;
  EXPECT_EQ(shm::Inbox::attach(address).error().code(), Code::unavailable);
  address = inbox->address();
  address.process.start_ticks ^= 1U;
  EXPECT_EQ(shm::Inbox::attach(address).error().code(), Code::unavailable);
  address = inbox->address();
  address.descriptor = 0;  // whatever standard input is, no segment
  EXPECT_FALSE(shm::Inbox::attach(address));
}

TEST(ShmAddress, ASegmentOfAnotherUseOrSizeIsCorrupt) {
  auto group = shm::Segment::create(shm::SegmentUse::group, 1U << 16U);
  ASSERT_TRUE(group);
  EXPECT_EQ(shm::Inbox::attach(group->address()).error().code(), Code::corrupt);
  auto small = shm::Segment::create(shm::SegmentUse::inbox, 4096);
  ASSERT_TRUE(small);
  EXPECT_EQ(shm::Inbox::attach(small->address()).error().code(), Code::corrupt);
}

TEST(ShmSegment, NobodyCanTakeItsPagesAway) {
  auto segment = shm::Segment::create(shm::SegmentUse::inbox, 1U << 16U);
  ASSERT_TRUE(segment);
  const std::string path = "/proc/self/fd/" + std::to_string(segment->address().descriptor);
  EXPECT_NE(::truncate(path.c_str(), 0), 0);
}

}  // namespace
}  // namespace luna::test
