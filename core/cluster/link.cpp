#include "core/cluster/link.hpp"

#include "core/base/assert.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace luna::cluster {

namespace asio = boost::asio;
using boost::system::error_code;

Link::Link(Socket socket) : socket_(std::move(socket)), timer_(socket_.get_executor()) {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.native_non_blocking(true, ignored);
  const auto peer = socket_.remote_endpoint(ignored);
  const std::string host = peer.address().to_string();
  peer_ = (peer.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(peer.port());
  own_host_ = socket_.local_endpoint(ignored).address().to_string();
}

void Link::start(std::shared_ptr<LinkHandler> handler) {
  handler_ = std::move(handler);
  read();
}

void Link::trust(std::chrono::milliseconds interval,
                 std::chrono::milliseconds timeout,
                 std::optional<FrameSeals> seals) {
  if (seals) {
    reader_.trust(std::move(seals->incoming));
    const std::lock_guard lock(mutex_);
    seal_ = std::move(seals->outgoing);
  } else {
    reader_.trust();
  }
  interval_ = interval;
  n_silent_max_ = static_cast<std::uint32_t>(std::max<std::int64_t>(2, timeout / interval));
  beat();
}

// Counted in beats of this side's timer, of which one that was stopped misses all: the other side's
// bytes are read before the next one comes.
void Link::beat() {
  if (!is_open()) return;
  if (n_silent_++ >= n_silent_max_) {
    return end(
        Error{Code::timeout,
              "nothing came for " + std::to_string(n_silent_max_ * interval_.count()) + " ms"});
  }
  send(FrameType::ping, 0);
  timer_.expires_after(interval_);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error) self->beat();
  });
}

void Link::read() {
  const auto room = reader_.room();
  socket_.async_read_some(asio::buffer(room.data(), room.size()),
                          [self = shared_from_this()](const error_code& error, std::size_t n) {
                            if (!self->is_open()) return;
                            if (error == asio::error::eof || error == asio::error::connection_reset)
                              return self->end({Code::unavailable, "the connection was closed"});
                            if (error) return self->end({Code::io, error.message()});
                            self->take(n);
                          });
}

void Link::take(std::size_t n) {
  reader_.add(n);
  n_silent_ = 0;
  for (;;) {
    auto frame = reader_.next();
    if (!frame) return end(frame.error());
    if (!*frame) return read();
    if ((*frame)->type == FrameType::ping) continue;
    const auto taken = handler_->on_frame(**frame);
    if (!is_open()) return;
    if (!taken) return end(taken.error());
  }
}

void Link::close(Error why) {
  asio::post(socket_.get_executor(), [self = shared_from_this(), why = std::move(why)]() mutable {
    if (self->is_open()) self->end(std::move(why));
  });
}

void Link::end(Error why) {
  {
    const std::lock_guard lock(mutex_);
    is_open_.store(false, std::memory_order_release);
    error_code ignored;
    socket_.shutdown(asio::socket_base::shutdown_both, ignored);
    socket_.close(ignored);
    pending_.clear();
  }
  timer_.cancel();
  const auto handler = std::exchange(handler_, nullptr);
  if (handler != nullptr) handler->on_closed(why);
}

bool Link::send(FrameType type,
                std::uint64_t subject,
                std::span<const std::byte> payload,
                std::span<const std::byte> more) {
  FrameHead head = encode_head(type, subject, payload.size() + more.size());
  FrameSeal::Tag tag{};
  std::array<std::span<const std::byte>, 4> parts = {std::span(head), payload, more, {}};
  const std::lock_guard lock(mutex_);
  if (!is_open()) return false;
  if (seal_) {
    const auto due = seal_->next(std::span(parts).first<3>());
    if (!due) {
      close(due.error());
      return false;
    }
    tag = *due;
    parts[3] = tag;
  }
  std::size_t n_sent = 0;
  if (pending_.empty()) {
    std::array<iovec, 4> vectors{};
    for (std::size_t i = 0; i < parts.size(); ++i)
      vectors[i] = {const_cast<std::byte*>(parts[i].data()), parts[i].size()};
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = vectors.size();
    const ssize_t n = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    // What goes wrong here, the reading side hears of too.
    n_sent = n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  for (const auto part : parts) {
    const std::size_t n_skipped = std::min(n_sent, part.size());
    n_sent -= n_skipped;
    pending_.insert(pending_.end(), part.begin() + static_cast<long>(n_skipped), part.end());
  }
  if (pending_.size() > kPendingBytesMax) {
    close({Code::timeout, "it does not read what it is sent"});
    return false;
  }
  if (pending_.empty() || is_flushing_) return true;
  is_flushing_ = true;
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->flush(); });
  return true;
}

void Link::flush() {
  const std::lock_guard lock(mutex_);
  if (!is_open()) return;
  std::size_t n_sent = 0;
  while (n_sent < pending_.size()) {
    const ssize_t n = ::send(socket_.native_handle(),
                             pending_.data() + n_sent,
                             pending_.size() - n_sent,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n <= 0) break;
    n_sent += static_cast<std::size_t>(n);
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<long>(n_sent));
  is_flushing_ = !pending_.empty();
  if (!is_flushing_) return;
  socket_.async_wait(Socket::wait_write, [self = shared_from_this()](const error_code& error) {
    if (!error) self->flush();
  });
}

}  // namespace luna::cluster
