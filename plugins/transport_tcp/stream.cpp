#include "stream.hpp"

#include <boost/asio/ip/address.hpp>
#include <boost/asio/this_coro.hpp>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace luna::tcp {
namespace {

// A round of one coroutine: others of the thread wait this long, about 100 us of copying.
constexpr std::size_t kReadBytesMax = std::size_t{512} << 10U;

void set_options(asio::ip::tcp::socket& socket, std::chrono::milliseconds user_timeout) {
  boost::system::error_code ignored;  // an option that is not there costs speed of detection only
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto timeout_ms = static_cast<unsigned int>(user_timeout.count());
  const int seconds = std::max(1, static_cast<int>(timeout_ms / 1000));
  const int fd = socket.native_handle();
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
}

}  // namespace

asio::awaitable<boost::system::error_code> Stream::connect(std::string host, std::uint16_t port) {
  boost::system::error_code error;
  asio::ip::tcp::endpoint to(asio::ip::make_address(host, error), port);
  if (error) {
    auto executor = co_await asio::this_coro::executor;
    asio::ip::tcp::resolver resolver(executor);
    const std::string service = std::to_string(port);
    const auto [unknown, found] = co_await resolver.async_resolve(host, service, kAwait);
    if (unknown) co_return unknown;
    to = found.begin()->endpoint();
  }
  if (!is_open()) co_return asio::error::operation_aborted;
  const auto [refused] = co_await socket_.async_connect(to, kAwait);
  co_return refused;
}

Result<void> Stream::prepare(SSL_CTX* context, Side side, std::chrono::milliseconds user_timeout) {
  boost::system::error_code error;
  socket_.native_non_blocking(true, error);
  if (error) return Error{Code::io, "a socket cannot be made non-blocking: " + error.message()};
  set_options(socket_, user_timeout);
  const auto remote = socket_.remote_endpoint(error);
  if (!error) remote_ = remote.address().to_string() + ":" + std::to_string(remote.port());
  if (context != nullptr) {
    LUNA_TRY(ssl_, make_ssl(*context, socket_.native_handle(), side));
  }
  return {};
}

Stream::Moved Stream::read_some(std::span<std::byte> to) {
  if (!is_open()) return {0, Need::end};
  if (first_ahead_ == n_ahead_) {
    if (to.size() >= kAheadBytes) return read_system(to.first(std::min(to.size(), kReadBytesMax)));
    const Moved moved = read_system(ahead_);
    first_ahead_ = 0;
    n_ahead_ = moved.n_bytes;
    if (moved.n_bytes == 0) return moved;
  }
  const std::size_t n = std::min(to.size(), n_ahead_ - first_ahead_);
  std::memcpy(to.data(), ahead_.data() + first_ahead_, n);
  first_ahead_ += n;
  return {n, Need::nothing};
}

Stream::Moved Stream::read_system(std::span<std::byte> to) {
  return ssl_ ? read_tls(to) : read_plain(to);
}

Stream::Moved Stream::write_some(std::span<const iovec> from) {
  if (!is_open()) return {0, Need::end};
  return ssl_ ? write_tls(from) : write_plain(from);
}

Stream::Moved Stream::after_errno() {
  if (errno == EINTR) return {};
  close(std::strerror(errno));
  return {0, Need::end};
}

Stream::Moved Stream::read_plain(std::span<std::byte> to) {
  const ssize_t n = ::recv(socket_.native_handle(), to.data(), to.size(), MSG_DONTWAIT);
  if (n > 0) return {static_cast<std::size_t>(n), Need::nothing};
  if (n == 0) {
    close("the peer closed the connection");
    return {0, Need::end};
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {0, Need::readable};
  return after_errno();
}

Stream::Moved Stream::write_plain(std::span<const iovec> from) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(from.data());
  message.msg_iovlen = from.size();
  const ssize_t n = ::sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n >= 0) return {static_cast<std::size_t>(n), Need::nothing};
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {0, Need::writable};
  return after_errno();
}

Stream::Moved Stream::read_tls(std::span<std::byte> to) {
  ERR_clear_error();
  std::size_t n = 0;
  const int result = SSL_read_ex(ssl_.get(), to.data(), to.size(), &n);
  return after_tls(result, n);
}

Stream::Moved Stream::write_tls(std::span<const iovec> from) {
  ERR_clear_error();
  std::size_t n = 0;
  const int result = SSL_write_ex(ssl_.get(), from.front().iov_base, from.front().iov_len, &n);
  return after_tls(result, n);
}

Stream::Moved Stream::after_tls(int result, std::size_t n_bytes) {
  if (result == 1) return {n_bytes, Need::nothing};
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return {0, Need::readable};
    case SSL_ERROR_WANT_WRITE:
      return {0, Need::writable};
    case SSL_ERROR_ZERO_RETURN:
      close("the peer closed the connection");
      break;
    case SSL_ERROR_SYSCALL:
      close(errno != 0 ? std::strerror(errno) : "the peer closed the connection");
      break;
    default:
      close("TLS: " + last_ssl_error());
  }
  return {0, Need::end};
}

asio::awaitable<bool> Stream::wait(Need need) {
  if (need == Need::end || !is_open()) co_return false;
  if (need == Need::nothing) co_return true;
  const auto kind =
      need == Need::readable ? asio::socket_base::wait_read : asio::socket_base::wait_write;
  const auto [error] = co_await socket_.async_wait(kind, kAwait);
  co_return !error && is_open();
}

asio::awaitable<bool> Stream::read_all(std::span<std::byte> to) {
  while (!to.empty()) {
    const Moved moved = read_some(to);
    to = to.subspan(moved.n_bytes);
    const bool is_going_on = co_await wait(moved.need);
    if (!is_going_on) co_return false;
  }
  co_return true;
}

asio::awaitable<bool> Stream::write_all(std::span<const std::byte> from) {
  while (!from.empty()) {
    const iovec piece{const_cast<std::byte*>(from.data()), from.size()};
    const Moved moved = write_some({&piece, 1});
    from = from.subspan(moved.n_bytes);
    const bool is_going_on = co_await wait(moved.need);
    if (!is_going_on) co_return false;
  }
  co_return true;
}

void Stream::close(std::string_view reason) {
  if (!is_open()) return;
  is_closed_ = true;
  reason_ = reason;
  boost::system::error_code ignored;
  socket_.close(ignored);
}

}  // namespace luna::tcp
