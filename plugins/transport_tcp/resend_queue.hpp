// Frames that must not be lost.
#pragma once

#include "outgoing.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>

namespace luna::tcp {

/// Numbers frames and keeps them, in order, until they are acknowledged; a new connection begins
/// again with the first that is not. A resource, its peer's. [io]
class ResendQueue {
 public:
  /// Numbers the frame and keeps it.
  void push(Outgoing frame);
  /// The next frame that this connection has not taken; nullptr: none. Valid until the next call.
  const Outgoing* take();
  /// All that were taken have been written.
  void written() { n_written_ = n_taken_; }
  /// A new connection takes all again.
  void rewind() { n_taken_ = n_written_ = 0; }
  /// Forgets frames up to this number and tells their listeners. False: it was never given.
  bool acknowledge(std::uint64_t sequence);
  /// Nobody looks at payloads of this owner any more: their frames keep their numbers and say that
  /// they failed, or nothing. True: one of them is half written, so the connection must end.
  bool take_back(std::uint64_t owner);
  void clear();
  [[nodiscard]] bool is_empty() const { return frames_.empty(); }

 private:
  std::deque<Outgoing> frames_;  // not acknowledged
  std::size_t n_taken_ = 0;      // of frames_, by the current connection
  std::size_t n_written_ = 0;    // of these, wholly written
  std::uint64_t next_sequence_ = 1;
};

}  // namespace luna::tcp
