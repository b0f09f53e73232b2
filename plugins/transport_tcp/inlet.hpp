// The way of frames from callers' threads to the I/O thread.
#pragma once

#include "outgoing.hpp"
#include "peer.hpp"

#include <boost/asio/posix/stream_descriptor.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace luna::tcp {

/// A queue that allocates nothing in the long run, so that communicators can be called inside a
/// step. Order is kept. A resource, its endpoint's.
class Inlet {
 public:
  /// Errors   io: no event descriptor
  static Result<std::unique_ptr<Inlet>> open(asio::io_context& context);
  explicit Inlet(asio::io_context& context, int event) : event_(context, event) {}

  /// The peer sends the frame soon. [any]
  void push(std::shared_ptr<Peer> peer, Outgoing frame);
  /// Hands over what was pushed so far. [io]
  void drain();
  /// Drains whenever something was pushed, until stop(). [io]
  asio::awaitable<void> run();
  void stop() { event_.close(); }

 private:
  struct Entry {
    std::shared_ptr<Peer> peer;
    Outgoing frame;
  };

  asio::posix::stream_descriptor event_;
  std::mutex mutex_;
  std::vector<Entry> pushed_;   // guarded by the mutex
  std::vector<Entry> drained_;  // the I/O thread's, empty between calls
};

}  // namespace luna::tcp
