// The bytes of one connection, plain or by TLS.
#pragma once

#include "options.hpp"
#include "tls.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <sys/uio.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace luna::tcp {

namespace asio = boost::asio;
inline constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

/// A connected socket whose reads and writes never wait, so memory is touched inside the call only:
/// whoever takes memory back between two calls leaves no operation behind that still uses it.
/// A resource; a connection's coroutines share it. [io]
class Stream {
 public:
  /// What has to happen before the same call can move more bytes.
  enum class Need { nothing, readable, writable, end };
  struct Moved {
    std::size_t n_bytes = 0;
    Need need = Need::nothing;  ///< end: closed by either side, or broken
  };

  explicit Stream(asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Connects an unconnected socket. The error stands apart because a refusal says more than
  /// others.
  asio::awaitable<boost::system::error_code> connect(std::string host, std::uint16_t port);
  /// Sets the connected socket's options (no delay, keep-alive, user timeout) and prepares TLS
  /// where there is a context. Before all reads and writes.
  Result<void> prepare(SSL_CTX* context, Side side, std::chrono::milliseconds user_timeout);

  /// Small reads come from a buffer that is filled ahead, large ones straight from the system.
  Moved read_some(std::span<std::byte> to);
  Moved write_some(std::span<const iovec> from);
  /// False: the stream was closed meanwhile.
  asio::awaitable<bool> wait(Need need);
  /// False: the stream ended before all bytes had come or gone.
  asio::awaitable<bool> read_all(std::span<std::byte> to);
  asio::awaitable<bool> write_all(std::span<const std::byte> from);

  /// Ends all waiting. The first reason counts.
  void close(std::string_view reason);
  [[nodiscard]] bool is_open() const { return !is_closed_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] const std::string& remote() const { return remote_; }

 private:
  /// A small frame with its payload, so that it costs one call of the system.
  static constexpr std::size_t kAheadBytes = std::size_t{16} << 10U;

  Moved read_system(std::span<std::byte> to);
  Moved read_plain(std::span<std::byte> to);
  Moved write_plain(std::span<const iovec> from);
  Moved read_tls(std::span<std::byte> to);
  Moved write_tls(std::span<const iovec> from);
  Moved after_tls(int result, std::size_t n_bytes);
  Moved after_errno();

  asio::ip::tcp::socket socket_;
  Ssl ssl_;  // null: plain
  bool is_closed_ = false;
  std::array<std::byte, kAheadBytes> ahead_;  // [first_ahead_, n_ahead_) is still to be read
  std::size_t first_ahead_ = 0;
  std::size_t n_ahead_ = 0;
  std::string reason_;
  std::string remote_;
};

/// Closes a stream that has not come through in time. Ends with its scope. [io]
class Deadline {
 public:
  Deadline(asio::io_context& context,
           const std::shared_ptr<Stream>& stream,
           std::chrono::milliseconds limit)
      : timer_(context, limit) {
    timer_.async_wait([weak = std::weak_ptr(stream)](boost::system::error_code error) {
      const auto late = weak.lock();
      if (!error && late != nullptr) late->close("no answer in time");
    });
  }

 private:
  asio::steady_timer timer_;
};

}  // namespace luna::tcp
