// One connection of a peer, from its handshake to its end.
#pragma once

#include "event.hpp"
#include "outgoing.hpp"
#include "stream.hpp"

#include <memory>

namespace luna::tcp {

class Peer;

/// Reads and writes frames in two coroutines. As long as its stream is open it is its peer's
/// current session, so neither touches the peer after that. A resource. [io]
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(asio::io_context& context, std::shared_ptr<Stream> stream, std::shared_ptr<Peer> peer);

  /// Spawns both coroutines.
  void start();
  /// Looks again for something to write.
  void wake() { wake_.set(); }
  /// The peer lets go of it first or is told of its end, never both.
  void close(std::string_view reason);
  [[nodiscard]] const Stream& stream() const { return *stream_; }

 private:
  static asio::awaitable<void> read_loop(std::shared_ptr<Session> self);
  static asio::awaitable<void> write_loop(std::shared_ptr<Session> self);
  asio::awaitable<bool> read_payload(Header header);
  /// Once enough bytes have been moved. False: the stream was closed meanwhile.
  asio::awaitable<bool> let_others_run(std::size_t& n_bytes);
  void end();

  asio::io_context& context_;
  const std::shared_ptr<Stream> stream_;
  const std::shared_ptr<Peer> peer_;  // shared: a session may end after its peer was dropped
  Event wake_;
  Batch batch_;
  std::size_t n_read_bytes_ = 0;     // since others could run
  std::size_t n_written_bytes_ = 0;  // likewise
};

}  // namespace luna::tcp
