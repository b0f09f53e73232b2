#include "core/model/link_probe.hpp"

#include "core/base/clock.hpp"
#include "core/base/random_seed.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace luna::model {
namespace {

constexpr std::uint32_t kTag = 0;
constexpr std::uint64_t kRowBytes = 2304;  // 576 values: a hidden state of a small model
constexpr std::uint64_t kLargeBytes = std::uint64_t{512} * 1024;
constexpr int kRowRounds = 200;
constexpr int kLargeRounds = 16;

/// Two ranks in this process; closed at the end.
class Pair {
 public:
  explicit Pair(const Collective& collective) : collective_(collective) {}
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  ~Pair() {
    for (const luna_comm* comm : comms_)
      if (comm != nullptr) collective_.table->close(collective_.self, comm);
  }

  Result<void> open() {
    LUNA_TRY(const std::uint64_t number, random_seed());
    const std::string group = "link probe/" + std::to_string(number);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      const luna_comm_lane lane{1 - rank, kTag};
      luna_comm_open request{};
      request.struct_size = sizeof(request);
      request.rank = rank;
      request.n_ranks = 2;
      request.n_lanes = 1;
      request.message_bytes_max = kLargeBytes;
      request.group = to_abi(group);
      request.lanes = &lane;
      request.n_messages_max = 1;
      luna_err err = make_err();
      const luna_status status =
          collective_.table->open(collective_.self, &request, &comms_[rank], &err);
      LUNA_TRY(to_result(status, err, "link probe: rank " + std::to_string(rank)));
    }
    return {};
  }

  /// Nanoseconds of one way; the other rank answers from a thread of its own.
  Result<double> one_way_ns(std::uint64_t n_bytes, int n_rounds) {
    luna_status echoed = LUNA_OK;
    std::jthread other([&] {
      std::vector<std::byte> bytes(n_bytes);
      const luna_comm& comm = *comms_[1];
      for (int i = 0; i < n_rounds && echoed == LUNA_OK; ++i) {
        echoed = comm.recv(comm.self, 0, kTag, bytes.data(), n_bytes);
        if (echoed == LUNA_OK) echoed = comm.send(comm.self, 0, kTag, bytes.data(), n_bytes);
      }
      if (echoed != LUNA_OK) collective_.table->abort(collective_.self, &comm);
    });
    std::vector<std::byte> bytes(n_bytes);
    const luna_comm& comm = *comms_[0];
    double least_ns = std::numeric_limits<double>::infinity();
    luna_status status = LUNA_OK;
    for (int i = 0; i < n_rounds && status == LUNA_OK; ++i) {
      const Nanoseconds start = clock_.now();
      status = comm.send(comm.self, 1, kTag, bytes.data(), n_bytes);
      if (status == LUNA_OK) status = comm.recv(comm.self, 1, kTag, bytes.data(), n_bytes);
      least_ns = std::min(least_ns, static_cast<double>((clock_.now() - start).count()) / 2.0);
    }
    if (status != LUNA_OK) {
      collective_.table->abort(collective_.self, &comm);  // or the other waits for ever
      return Error{Code::internal,
                   "link probe: a message of " + std::to_string(n_bytes) +
                       " bytes failed with status " + std::to_string(status)};
    }
    return std::max(least_ns, 1.0);
  }

 private:
  const Collective& collective_;
  std::array<const luna_comm*, 2> comms_{};
  RealClock clock_;
};

}  // namespace

Result<LayoutLink> measure_link(const Collective& collective) {
  Pair pair(collective);
  LUNA_TRY(pair.open());
  LayoutLink link;
  LUNA_TRY(link.latency_ns, pair.one_way_ns(kRowBytes, kRowRounds));
  LUNA_TRY(const double large_ns, pair.one_way_ns(kLargeBytes, kLargeRounds));
  link.bytes_per_ns =
      static_cast<double>(kLargeBytes - kRowBytes) / std::max(large_ns - link.latency_ns, 1.0);
  return link;
}

}  // namespace luna::model
