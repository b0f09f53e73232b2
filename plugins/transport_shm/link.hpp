// The transfers between two endpoints.
//
// A send is offered first; the receiver answers when a receive of its tag is posted, and then the
// bytes follow in pieces. So bytes never lie in the way of others, whatever order tags come in, and
// a ring need not hold a message.
#pragma once

#include "process.hpp"
#include "ring.hpp"
#include "segment.hpp"

#include <luna/collective.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace luna::shm {

/// What an endpoint offers its peers' rings: one door each. Lies in the endpoint's segment.
struct Door {
  enum class State : std::uint32_t { free, taken, open, left };

  alignas(64) std::atomic<State> state{State::free};
  Epoch visitor;  // of the inbox of who writes here; before `state` says open
  RingIndices ring;

  [[nodiscard]] bool has_left() const {
    return state.load(std::memory_order_acquire) == State::left;
  }
};

/// Where an endpoint receives: a segment with doors, and a ring behind each.
class Inbox {
 public:
  /// In an endpoint's life. A door is never used twice, so that no ring is.
  static constexpr std::uint32_t kDoors = 256;
  static constexpr std::uint64_t kRingBytesMin = 4096;
  static constexpr std::uint64_t kRingBytesMax = std::uint64_t{1} << 30U;

  static Result<Inbox> create(std::uint64_t ring_bytes);
  static Result<Inbox> attach(const SegmentAddress& address);

  [[nodiscard]] const SegmentAddress& address() const { return segment_.address(); }
  [[nodiscard]] const Epoch& epoch() const { return segment_.address().epoch; }
  [[nodiscard]] Door& door(std::uint32_t number) const;
  [[nodiscard]] std::span<std::byte> ring(std::uint32_t number) const;
  void give_back_ring(std::uint32_t number) const;

  /// A door for a visitor. exhausted: all have been used, or no memory.
  [[nodiscard]] Result<std::uint32_t> enter(const Epoch& visitor) const;
  [[nodiscard]] std::optional<std::uint32_t> door_of(const Epoch& visitor) const;

  void close() const { closed().store(1, std::memory_order_release); }
  [[nodiscard]] bool is_closed() const { return closed().load(std::memory_order_acquire) != 0; }

 private:
  Inbox(Segment segment, std::uint64_t ring_bytes)
      : segment_(std::move(segment)), ring_bytes_(ring_bytes) {}
  [[nodiscard]] std::atomic<std::uint32_t>& closed() const;

  Segment segment_;
  std::uint64_t ring_bytes_;
};

/// What links of one endpoint share: memory, and what has finished. [io]
struct EndpointState {
  struct Region {
    std::byte* begin = nullptr;
    std::uint64_t n_bytes = 0;
  };
  std::map<std::uint64_t, Region> regions;  // by key
  std::deque<luna_xfer_done> done;

  [[nodiscard]] std::span<std::byte> memory_of(const luna_xfer& transfer) const {
    return {regions.at(transfer.key).begin + transfer.offset, transfer.n_bytes};
  }
  void finish(const luna_xfer& transfer, luna_status status) {
    done.push_back({transfer.cookie, status, 0, status == LUNA_OK ? transfer.n_bytes : 0});
  }
};

/// Measured when two endpoints met; read by planners from any thread.
struct LinkSpeed {
  // Before it is measured: two wake-ups, and copies through the shared cache.
  std::atomic<std::uint64_t> latency_ns{3'000};
  std::atomic<double> bytes_per_ns{4.0};
};

/// One endpoint's view of one peer. A resource, owned by its endpoint, whose inbox and state
/// outlive it. [io]
class Link {
 public:
  /// Transfers of one endpoint that were posted and not yet polled; no peer may offer more.
  static constexpr std::size_t kTransfersMax = 4096;

  Link(const Inbox& own, Inbox peer, std::uint32_t door, const ProcessId& process);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] const Epoch& peer() const { return peer_.epoch(); }
  /// Whether the peer has connected too and the speed is measured.
  [[nodiscard]] bool is_ready() const { return reader_ && n_pings_left_ == 0; }
  [[nodiscard]] bool is_over() const { return is_over_; }

  void post(EndpointState& state, const luna_xfer& transfer);
  /// Reads and writes what can be without waiting.
  void advance(EndpointState& state, LinkSpeed& speed);
  /// Ends the transfers of a registered range: cancelled.
  void cancel(EndpointState& state, std::uint64_t key);
  /// Ends all transfers, now and later: unavailable.
  void end(EndpointState& state);

 private:
  enum class FrameKind : std::uint32_t { offer = 1, accept, refuse, withdraw, bytes, ping, pong };
  /// What every message in a ring begins with.
  struct Frame {
    FrameKind kind = FrameKind::offer;
    std::uint32_t tag = 0;         // of an offer
    std::uint64_t id = 0;          // of a transfer, given by its sender
    std::uint64_t n_bytes = 0;     // offered; or following this frame
    luna_status status = LUNA_OK;  // of a refusal
    std::uint32_t pad = 0;
  };
  struct Offer {
    std::uint64_t id;
    std::uint32_t tag;
    std::uint64_t n_bytes;
  };
  struct Receiving {
    luna_xfer transfer;  // n_bytes: what the sender offered
    std::uint64_t n_received;
  };
  struct Sending {
    luna_xfer transfer;
    std::uint64_t n_sent;
  };
  using Time = std::chrono::steady_clock;

  void read(EndpointState& state, LinkSpeed& speed, std::uint64_t n_bytes_max);
  bool handle(EndpointState& state, LinkSpeed& speed, const Frame& frame);
  bool handle_offer(EndpointState& state, const Frame& frame);
  bool handle_bytes(EndpointState& state, const Frame& frame);
  bool handle_pong(LinkSpeed& speed);
  void match(EndpointState& state, const Offer& offer, luna_xfer receive);
  void write(EndpointState& state);
  bool write_frame(const Frame& frame, std::span<const std::byte> bytes);
  bool write_piece(EndpointState& state);
  void write_ping();
  [[nodiscard]] std::uint64_t ping_bytes() const;
  void find_reader();
  [[nodiscard]] bool is_peer_dead();

  const Inbox& own_;
  const Inbox peer_;
  const std::uint32_t door_;  // of the peer's, where this side writes
  const ProcessWatch process_;
  Time::time_point next_look_{};  // after the process
  bool is_over_ = false;

  RingWriter writer_;
  std::optional<RingReader> reader_;  // once the peer has entered
  std::uint32_t own_door_ = 0;

  std::deque<Frame> control_;                 // to be written
  std::map<std::uint64_t, Sending> sending_;  // by id
  std::deque<std::uint64_t> accepted_;        // sends whose bytes may go
  std::uint64_t next_id_ = 1;
  std::list<luna_xfer> receives_;  // posted, without an offer yet
  std::list<Offer> offers_;        // without a receive yet
  std::uint64_t last_offer_id_ = 0;
  std::map<std::uint64_t, Receiving> receiving_;  // by the sender's id

  std::uint32_t n_pings_left_;
  std::optional<Time::time_point> ping_sent_;
  bool owes_pong_ = false;
  std::uint64_t round_trip_ns_ = ~std::uint64_t{0};  // the shortest so far
  std::uint64_t piece_trip_ns_ = ~std::uint64_t{0};  // likewise, with a piece
};

}  // namespace luna::shm
