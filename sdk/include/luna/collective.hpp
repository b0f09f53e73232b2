// What transports with the extension luna.ext.collective/1 share: the bounds of a communicator, and
// the order in which an all-reduce adds, which is part of the promise of equal bits.
#pragma once

#include <luna/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sched.h>
#include <span>
#include <string>
#include <unistd.h>
#include <vector>

namespace luna {

inline constexpr std::uint32_t kCommRanksMax = 64;
/// A program's tags are its borders between devices; a step needs one or two a pair.
inline constexpr std::uint32_t kCommTagsMax = 32;
inline constexpr std::uint64_t kCommMessageBytesMax = std::uint64_t{1} << 30U;
inline constexpr std::uint32_t kCommMessagesMax = 64;

/// Messages of a lane that a communicator has room for: as asked, or where nobody says how many, as
/// far as a sender may usefully run ahead. Two at least: in an all-reduce a rank sends its next
/// piece before all have taken the last. [any]
inline std::uint32_t comm_messages(const CommunicatorOptions& options) {
  constexpr std::uint32_t kDefault = 4;
  constexpr std::uint32_t kMin = 2;
  return options.n_messages_max == 0 ? kDefault : std::max(options.n_messages_max, kMin);
}

/// What every transport asks of a communicator before it opens one or counts its memory. [any]
inline Result<void> check_communicator(const CommunicatorOptions& options) {
  if (options.n_ranks < 1 || options.n_ranks > kCommRanksMax) {
    return Error{Code::invalid_argument,
                 "a communicator of " + std::to_string(options.n_ranks) + " ranks: must be 1.." +
                     std::to_string(kCommRanksMax)};
  }
  if (options.rank >= options.n_ranks) {
    return Error{Code::invalid_argument,
                 "rank " + std::to_string(options.rank) + " of " + std::to_string(options.n_ranks) +
                     " ranks"};
  }
  if (options.message_bytes_max < 1 || options.message_bytes_max > kCommMessageBytesMax) {
    return Error{Code::invalid_argument,
                 "messages of up to " + std::to_string(options.message_bytes_max) +
                     " bytes: must be 1.." + std::to_string(kCommMessageBytesMax)};
  }
  if (options.n_messages_max > kCommMessagesMax) {
    return Error{Code::invalid_argument,
                 std::to_string(options.n_messages_max) + " messages of a lane: at most " +
                     std::to_string(kCommMessagesMax)};
  }
  for (const luna_comm_lane& lane : options.lanes) {
    if (lane.peer < options.n_ranks && lane.peer != options.rank) continue;
    return Error{Code::invalid_argument,
                 "a lane from rank " + std::to_string(lane.peer) + " to rank " +
                     std::to_string(options.rank) + " of " + std::to_string(options.n_ranks)};
  }
  if (options.lanes.size() > std::size_t{kCommTagsMax} * options.n_ranks) {
    return Error{Code::invalid_argument,
                 std::to_string(options.lanes.size()) + " lanes: at most " +
                     std::to_string(kCommTagsMax) + " tags a peer"};
  }
  return {};
}

/// Whether everybody who waits can have a core of this process's to himself. Else a rank that spins
/// while it waits keeps a core from the rank that it waits for. By the process's first thread,
/// since others may be bound to some of its cores. [main]
inline bool has_core_for_each_rank(const CommunicatorOptions& options) {
  const std::uint32_t n = std::max(options.n_ranks, options.n_waiters_max);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(::getpid(), sizeof(cores), &cores) != 0) return false;
  return n <= static_cast<std::uint32_t>(CPU_COUNT(&cores));
}

/// One rank's addend joins a sum. Ranks come upward from 0, each once: rank 0's numbers start the
/// sum, so no zero is added, and the bits are those of ((x0 + x1) + x2) ... on every rank.
///
/// sum      [n] FP32
/// addend   [n] FP32 as bytes, of any alignment; disjoint from sum
inline void add_rank(std::uint32_t rank, std::span<const std::byte> addend, std::span<float> sum) {
  if (rank == 0) {
    std::memcpy(sum.data(), addend.data(), sum.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    float value = 0;
    std::memcpy(&value, addend.data() + i * sizeof(float), sizeof(value));
    sum[i] += value;
  }
}

/// Ordered bytes from and to each peer, apart from all other traffic of the communicator. An
/// interface; called by one rank's executor, one call at a time. [step]
class RankChannels {
 public:
  virtual ~RankChannels() = default;

  /// Returns once the bytes are on their way. Must have room for ReduceOverChannels::kPieceBytes
  /// that the peer has not received yet, and end with a status when the communicator ends.
  virtual luna_status send(std::uint32_t peer, std::span<const std::byte> bytes) = 0;
  /// Waits until all of `bytes` is filled.
  virtual luna_status receive(std::uint32_t peer, std::span<std::byte> bytes) = 0;
};

/// An all-reduce for transports whose ranks share nothing but channels. Every rank gets every other
/// rank's piece and adds in rank order: one exchange, and the same bits everywhere. Each sends its
/// piece to all before it waits for any, so no wait can close a circle. A value that one rank's
/// communicator owns; allocates when it is made only.
class ReduceOverChannels {
 public:
  /// Of FP32. Small enough to lie in a socket's buffer, large enough to fill a link.
  static constexpr std::size_t kPieceBytes = std::size_t{32} * 1024;

  ReduceOverChannels(std::uint32_t rank, std::uint32_t n_ranks)
      : rank_(rank), n_ranks_(n_ranks), received_(kPieceBytes), sum_(kPieceBytes / sizeof(float)) {}

  /// in, out   [n] FP32; the same array or disjoint
  luna_status sum_f32(RankChannels& channels, const float* in, float* out, std::uint64_t n) {
    while (n > 0) {
      const std::size_t piece = std::min<std::uint64_t>(n, sum_.size());
      const luna_status status = sum_piece(channels, std::as_bytes(std::span(in, piece)));
      if (status != LUNA_OK) return status;
      std::memcpy(out, sum_.data(), piece * sizeof(float));
      in += piece;
      out += piece;
      n -= piece;
    }
    return LUNA_OK;
  }

 private:
  luna_status sum_piece(RankChannels& channels, std::span<const std::byte> own) {
    for (std::uint32_t peer = 0; peer < n_ranks_; ++peer) {
      if (peer == rank_) continue;
      if (const luna_status status = channels.send(peer, own); status != LUNA_OK) return status;
    }
    const std::span<float> sum(sum_.data(), own.size() / sizeof(float));
    for (std::uint32_t from = 0; from < n_ranks_; ++from) {
      if (from == rank_) {
        add_rank(from, own, sum);
        continue;
      }
      const std::span<std::byte> addend(received_.data(), own.size());
      if (const luna_status status = channels.receive(from, addend); status != LUNA_OK)
        return status;
      add_rank(from, addend, sum);
    }
    return LUNA_OK;
  }

  const std::uint32_t rank_;
  const std::uint32_t n_ranks_;
  std::vector<std::byte> received_;
  std::vector<float> sum_;
};

}  // namespace luna
