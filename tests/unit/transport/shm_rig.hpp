// One process's end of transport shm, for tests with several processes.
#pragma once

#include "support/plugin_fixture.hpp"

#include <luna/transport.hpp>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace luna::test {

/// A transport instance that meets those of other processes.
class ShmRig {
 public:
  explicit ShmRig(const std::string& directory)
      : table_(load_table<luna_transport_if>("transport_shm", LUNA_KIND_TRANSPORT)) {
    auto made = make_instance(*table_,
                              host_,
                              {{"directory", directory},
                               {"run", std::string("test")},
                               {"ring_bytes_max", std::int64_t{65536}}});
    EXPECT_TRUE(made) << made.error().message();
    self_ = *made;
    collective_ =
        static_cast<const luna_collective_if*>(table_->head.ext(self_, LUNA_EXT_COLLECTIVE));
  }
  ShmRig(const ShmRig&) = delete;
  ShmRig& operator=(const ShmRig&) = delete;
  ~ShmRig() { table_->head.destroy(self_); }

  Result<const luna_comm*> open(const std::string& group,
                                std::uint32_t rank,
                                std::uint32_t n_ranks,
                                std::uint64_t message_bytes_max) {
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
  void abort(const luna_comm* comm) { collective_->abort(self_, comm); }
  void close(const luna_comm* comm) { collective_->close(self_, comm); }

 private:
  FakeHost host_;
  const luna_transport_if* table_;
  const luna_collective_if* collective_ = nullptr;
  void* self_ = nullptr;
};

inline luna_status send(const luna_comm* comm,
                        std::uint32_t peer,
                        const std::vector<std::uint8_t>& bytes) {
  return comm->send(comm->self, peer, 7, bytes.data(), bytes.size());
}
inline luna_status receive(const luna_comm* comm,
                           std::uint32_t peer,
                           std::vector<std::uint8_t>& bytes) {
  return comm->recv(comm->self, peer, 7, bytes.data(), bytes.size());
}

/// What a rank adds, and what all add up to in rank order.
inline std::vector<float> addend(std::uint32_t seed, std::uint32_t rank, std::size_t n) {
  std::mt19937 random(seed * 64 + rank);
  std::uniform_real_distribution<float> distribution(-1e6F, 1e6F);
  std::vector<float> values(n);
  for (float& value : values)
    value = distribution(random);
  return values;
}
inline std::vector<float> rank_sum(std::uint32_t seed, std::uint32_t n_ranks, std::size_t n) {
  std::vector<float> sum = addend(seed, 0, n);
  for (std::uint32_t rank = 1; rank < n_ranks; ++rank) {
    const std::vector<float> values = addend(seed, rank, n);
    for (std::size_t i = 0; i < n; ++i)
      sum[i] += values[i];
  }
  return sum;
}
/// All-reduces of growing sizes, each compared bit by bit.
inline bool sums_are_exact(const luna_comm* comm, std::uint32_t seed) {
  for (std::size_t n : {1U, 576U, 576U, 16384U, 16385U, 40000U}) {
    std::vector<float> values = addend(seed, comm->rank, n);
    if (comm->all_reduce(comm->self, values.data(), values.data(), n, LUNA_REDUCE_SUM_F32) !=
        LUNA_OK) {
      return false;
    }
    const std::vector<float> want = rank_sum(seed, comm->n_ranks, n);
    if (std::memcmp(values.data(), want.data(), n * sizeof(float)) != 0) return false;
    ++seed;
  }
  return true;
}

}  // namespace luna::test
