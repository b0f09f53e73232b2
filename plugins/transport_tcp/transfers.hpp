// Posted sends and receives of an endpoint with one peer.
//
// A receive is announced (`ready`), the sender matches it with its oldest send of the same tag, and
// the bytes go straight into the receiver's registered memory. So nothing waits inside the
// transport, and a message nobody wants yet stands in nobody's way.
#pragma once

#include "frame.hpp"

#include <luna/abi/transport.h>
#include <luna/result.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <span>

namespace luna::tcp {

class Peer;

/// Finished transfers of an endpoint, until they are polled. [any]
class Completions {
 public:
  /// Transfers of one endpoint that were posted and not yet polled.
  static constexpr std::size_t kTransfersMax = 4096;

  /// Counts n transfers as open; exhausted: none of them.
  Result<void> open(std::size_t n);
  void finish(std::uint64_t cookie, luna_status status, std::uint64_t n_bytes);
  std::uint32_t poll(std::span<luna_xfer_done> done);

 private:
  std::mutex mutex_;
  std::deque<luna_xfer_done> done_;
  std::size_t n_open_ = 0;
};

/// A transfer with its memory resolved.
struct Transfer {
  std::uint64_t cookie = 0;
  std::uint64_t key = 0;
  std::byte* begin = nullptr;
  std::uint64_t n_bytes = 0;
  std::uint32_t tag = 0;
};

/// A resource, its peer's. [io]
class Transfers {
 public:
  Transfers(Peer& peer, Completions& completions) : peer_(peer), completions_(completions) {}

  void post_send(const Transfer& send);
  void post_receive(const Transfer& receive);
  /// Ends those that use the memory: cancelled.
  void forget_memory(std::uint64_t key);
  /// Ends all.
  void end(luna_status status);

  // Frames of the peer. False: they break the protocol.
  bool on_ready(const Header& header);
  void on_withdraw(const Header& header);
  bool begin_data(const Header& header);
  std::span<std::byte> place(const Header& header, std::uint64_t n_done);
  void finish_data(const Header& header);
  void on_failed(const Header& header);
  void on_taken(const Header& header);

 private:
  struct Ready {
    std::uint64_t id = 0;
    std::uint64_t n_bytes_max = 0;
    std::uint32_t tag = 0;
  };
  struct Flying {
    Transfer send;
    std::uint64_t start_ns = 0;
    bool is_alone = false;  // nothing else was under way, so its time tells the bandwidth
  };

  /// Starts a send that a receive waits for. False: none does.
  bool meet(const Transfer& send);
  void fly(const Transfer& send, const Ready& ready);
  void finish(const Transfer& transfer, luna_status status, std::uint64_t n_bytes);
  void send_frame(FrameType type, std::uint64_t id, std::uint64_t value, std::uint32_t tag = 0);

  Peer& peer_;
  Completions& completions_;
  std::deque<Transfer> sends_;                  // that met no receive
  std::deque<Ready> readies_;                   // the peer's receives that met no send
  std::map<std::uint64_t, Flying> flying_;      // by the peer's id of the receive
  std::map<std::uint64_t, Transfer> receives_;  // by own id
  std::uint64_t next_id_ = 1;
};

}  // namespace luna::tcp
