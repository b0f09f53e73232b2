#include "session.hpp"

#include "peer.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>

#include <exception>
#include <string>
#include <utility>

namespace luna::tcp {
namespace {

// About 200 us of copying.
constexpr std::size_t kBytesBetweenTurns = std::size_t{1} << 20U;

/// The fence of a session's coroutines: what a library throws ends the connection.
auto fence(std::shared_ptr<Session> session) {
  return [session = std::move(session)](const std::exception_ptr& thrown) {
    if (thrown == nullptr) return;
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
      session->close(std::string("an exception: ") + e.what());
    }
  };
}

}  // namespace

Session::Session(asio::io_context& context,
                 std::shared_ptr<Stream> stream,
                 std::shared_ptr<Peer> peer)
    : context_(context), stream_(std::move(stream)), peer_(std::move(peer)), wake_(context) {}

void Session::start() {
  asio::co_spawn(context_, read_loop(shared_from_this()), fence(shared_from_this()));
  asio::co_spawn(context_, write_loop(shared_from_this()), fence(shared_from_this()));
}

void Session::close(std::string_view reason) {
  stream_->close(reason);
  wake_.set();
  end();
}

void Session::end() {
  peer_->session_ended(*this);
}

asio::awaitable<bool> Session::let_others_run(std::size_t& n_bytes) {
  if (n_bytes < kBytesBetweenTurns) co_return stream_->is_open();
  n_bytes = 0;
  auto executor = co_await asio::this_coro::executor;
  co_await asio::post(executor, asio::use_awaitable);
  co_return stream_->is_open();
}

asio::awaitable<bool> Session::read_payload(Header header) {
  std::uint64_t n_done = 0;
  while (n_done < header.n_bytes) {
    const std::span<std::byte> to = peer_->place(header, n_done);
    const Stream::Moved moved = stream_->read_some(to);
    n_done += moved.n_bytes;
    n_read_bytes_ += moved.n_bytes;
    if (moved.n_bytes > 0) peer_->heard();
    const bool is_going_on = co_await stream_->wait(moved.need);
    if (!is_going_on) co_return false;
    const bool is_still_open = co_await let_others_run(n_read_bytes_);
    if (!is_still_open) co_return false;
  }
  co_return true;
}

asio::awaitable<void> Session::read_loop(std::shared_ptr<Session> self) {
  HeaderBytes bytes{};
  for (;;) {
    const bool has_head = co_await self->stream_->read_all(bytes);
    if (!has_head) break;
    self->peer_->heard();
    const auto header = parse_header(bytes, self->peer_->message_bytes_max());
    if (!header) {
      self->close(header.error().message());
      break;
    }
    if (!self->peer_->begin(*header)) break;  // it has closed this session
    const bool has_payload = co_await self->read_payload(*header);
    if (!has_payload) break;
    self->peer_->finish(*header);
    if (!self->stream_->is_open()) break;
  }
  self->wake_.set();
  self->end();
}

asio::awaitable<void> Session::write_loop(std::shared_ptr<Session> self) {
  Batch& batch = self->batch_;
  while (self->stream_->is_open()) {
    batch.clear();
    self->peer_->fill(batch);
    if (batch.is_empty()) {
      co_await self->wake_.wait();
      continue;
    }
    while (!batch.is_written()) {
      const Stream::Moved moved = self->stream_->write_some(batch.rest());
      batch.advance(moved.n_bytes);
      self->n_written_bytes_ += moved.n_bytes;
      const bool is_going_on = co_await self->stream_->wait(moved.need);
      if (!is_going_on) break;
      const bool is_still_open = co_await self->let_others_run(self->n_written_bytes_);
      if (!is_still_open) break;
    }
    if (self->stream_->is_open() && batch.is_written()) self->peer_->written();
  }
  self->end();
}

}  // namespace luna::tcp
