// The ranks of one communicator as an endpoint sees them: who is there, and the lanes to and from
// the ranks that live here.
#pragma once

#include "outgoing.hpp"

#include <luna/collective.hpp>

#include <compare>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace luna::tcp {

class Peer;

/// Messages of one rank to another with one tag.
struct LaneKey {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint32_t tag = 0;
  bool is_reduce = false;  ///< the all-reduce's own, apart from all tags

  auto operator<=>(const LaneKey&) const = default;
  /// The lane as frames name it.
  void name(Header& header) const;
  static LaneKey of(const Header& header);
};

/// Enough for a sender to run a few micro-batches ahead of its receiver; more would only cost
/// memory, since the slowest rank sets the pace.
inline constexpr std::uint32_t kLaneDepth = 4;

/// Up to this size a message is copied, and send() returns at once. Larger ones go out from the
/// caller's memory, and send() returns when the other side has them: the wait is short beside the
/// time that the bytes take.
inline constexpr std::uint64_t kCopiedBytesMax = std::uint64_t{64} << 10U;

/// A ring of messages. What it lies in lives as long as the group.
struct LaneRing {
  explicit LaneRing(std::uint64_t bytes_max)
      : slot_bytes(bytes_max), bytes(new std::byte[kLaneDepth * bytes_max]) {}

  [[nodiscard]] std::byte* slot(std::uint32_t n) const {
    return bytes.get() + n % kLaneDepth * slot_bytes;
  }
  [[nodiscard]] bool is_full() const { return n_in - n_out == kLaneDepth; }
  [[nodiscard]] bool is_empty() const { return n_in == n_out; }

  const std::uint64_t slot_bytes;
  const std::unique_ptr<std::byte[]> bytes;  // [kLaneDepth, slot_bytes]
  std::array<std::uint64_t, kLaneDepth> n_bytes{};
  std::uint32_t n_in = 0;     // sent; or received
  std::uint32_t n_out = 0;    // of these, consumed by the receiver
  std::shared_ptr<Peer> via;  // an inbox: the way by which the last message came
};

/// What an endpoint's ranks of a communicator share. Frames change it on the I/O thread, calls on
/// the executors' threads, all under one mutex that nobody holds for long.
class Group {
 public:
  enum class State { absent, present, gone };
  struct Rank {
    State state = State::absent;
    bool is_local = false;
    /// Distinguishes it from a rank of an earlier group of the same name.
    std::uint64_t opening = 0;
    std::shared_ptr<Peer> out;        // by which frames reach it; null: nobody sends any
    std::condition_variable changed;  // for the one call of a local rank that may wait
  };

  Group(std::uint64_t id,
        std::string name,
        std::uint64_t message_bytes_max,
        std::vector<std::shared_ptr<Peer>> outs);

  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint32_t n_ranks() const { return static_cast<std::uint32_t>(ranks_.size()); }
  [[nodiscard]] std::uint64_t message_bytes_max() const { return message_bytes_max_; }
  [[nodiscard]] const std::shared_ptr<Peer>& out(std::uint32_t rank) const {
    return ranks_[rank].out;  // fixed since the group was made
  }
  [[nodiscard]] std::uint64_t opening(std::uint32_t rank) const;

  // ---- membership [io] ----
  /// A rank of this endpoint. invalid_argument: it is or was open; unavailable: aborted.
  Result<void> open_local(std::uint32_t rank, std::uint64_t opening);
  /// True: it was the last of this endpoint.
  bool close_local(std::uint32_t rank);
  /// False: there is or was another opening of the rank.
  bool join(std::uint32_t rank, std::uint64_t opening);
  void leave(std::uint32_t rank, std::uint64_t opening);
  void peer_is_over(const Peer& peer);

  /// Every wait, now and later, ends with LUNA_CANCELLED. False: it was so already. [any]
  bool abort();

  // ---- lanes, from the network [io] ----
  /// Makes the lane's memory; nullptr: too many tags.
  LaneRing* inbox(const LaneKey& key);
  /// False: no room, which the sender should have known.
  bool begin_message(const Header& header);
  std::span<std::byte> place(const Header& header, std::uint64_t n_done);
  void finish_message(const Header& header, std::shared_ptr<Peer> via);
  /// False: nothing was owed.
  bool on_credit(const Header& header);

 private:
  friend class GroupRank;

  LaneRing* ring(std::map<LaneKey, LaneRing>& rings, const LaneKey& key, std::uint64_t bytes_max);
  /// LUNA_OK while a call may go on waiting for `peer`.
  [[nodiscard]] luna_status over(std::uint32_t peer) const;
  [[nodiscard]] bool is_current(const Header& header) const;
  void wake_local();

  const std::uint64_t id_;
  const std::string name_;
  const std::uint64_t message_bytes_max_;
  mutable std::mutex mutex_;  // guards everything below
  std::vector<Rank> ranks_;
  std::map<LaneKey, LaneRing> inboxes_;
  std::map<LaneKey, LaneRing> outboxes_;  // slots of small messages, and what was sent and consumed
  bool is_aborted_ = false;
};

}  // namespace luna::tcp
