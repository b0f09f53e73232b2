#include "core/http/session.hpp"

#include "core/http/exchange.hpp"
#include "core/http/router.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <string_view>
#include <utility>

namespace luna::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

constexpr std::size_t kReadBytes = std::size_t{16} * 1024;
// After a refusal the rest of what the client sends is read for a moment, so that the answer is not
// lost in a reset; then the connection is cut.
constexpr std::chrono::seconds kLinger{1};
constexpr std::size_t kLingerBytesMax = std::size_t{1024} * 1024;

/// A message whose length can be read in two ways is an attack or a broken proxy (RFC 9112, 6.3).
bool has_ambiguous_length(const HttpRequest& request) {
  const auto lengths = request.equal_range(bhttp::field::content_length);
  const auto encodings = request.equal_range(bhttp::field::transfer_encoding);
  const auto n_lengths = std::distance(lengths.first, lengths.second);
  const auto n_encodings = std::distance(encodings.first, encodings.second);
  if (n_lengths > 1 || n_encodings > 1 || (n_lengths > 0 && n_encodings > 0)) return true;
  if (n_encodings == 1 && !beast::iequals(encodings.first->value(), "chunked")) return true;
  if (n_lengths == 0) return false;
  const auto value = lengths.first->value();
  return value.empty() ||
         !std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
}

ApiError read_error(beast::error_code error) {
  ApiError answer =
      invalid_request("", "the request is not valid HTTP: " + error.message(), "invalid_http");
  if (error == bhttp::error::body_limit) {
    answer = invalid_request("", "the body is larger than this server takes", "request_too_large");
    answer.status = 413;
  } else if (error == bhttp::error::header_limit || error == bhttp::error::buffer_overflow) {
    answer = invalid_request("", "the header is larger than this server takes", "header_too_large");
    answer.status = 431;
  }
  return answer;
}

/// Ends that nobody can be told of. A read that is late has closed the socket: tcp_stream does.
bool is_quiet_end(beast::error_code error) {
  return error == beast::error::timeout || error == bhttp::error::end_of_stream ||
         error == asio::error::eof || error == asio::error::connection_reset ||
         error == asio::error::operation_aborted || error == asio::error::bad_descriptor ||
         error == bhttp::error::partial_message;
}

}  // namespace

Session::Session(asio::ip::tcp::socket socket, Service& service, std::shared_ptr<OutputLane> lane)
    : stream_(std::make_shared<beast::tcp_stream>(std::move(socket))),
      service_(service),
      lane_(std::move(lane)) {
  service_.stats.n_connections.fetch_add(1, std::memory_order_relaxed);
}

Session::~Session() {
  service_.stats.n_connections.fetch_sub(1, std::memory_order_relaxed);
}

void Session::drain() {
  draining_ = true;
  if (is_idle_) close();
}

void Session::close() {
  beast::error_code ignored;
  stream_->socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  stream_->close();
}

asio::awaitable<bool> Session::wait_for_request() {
  if (buffer_.size() > 0) co_return true;
  is_idle_ = true;
  stream_->expires_after(service_.options.idle_timeout);
  auto [error, n] = co_await stream_->async_read_some(buffer_.prepare(kReadBytes), kAwait);
  is_idle_ = false;
  if (error) co_return false;
  buffer_.commit(n);
  co_return true;
}

asio::awaitable<bool> Session::read_request(Parser& parser) {
  parser.header_limit(static_cast<std::uint32_t>(service_.options.header_bytes_max));
  parser.body_limit(service_.options.body_bytes_max);
  stream_->expires_after(service_.options.header_timeout);
  auto [head_error, n_head] = co_await bhttp::async_read_header(*stream_, buffer_, parser, kAwait);
  if (head_error) {
    if (!is_quiet_end(head_error)) co_await refuse(head_error);
    co_return false;
  }
  if (has_ambiguous_length(parser.get())) {
    co_await refuse(bhttp::error::bad_content_length);
    co_return false;
  }
  stream_->expires_after(service_.options.body_timeout);
  if (beast::iequals(parser.get()[bhttp::field::expect], "100-continue")) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    auto [error, n] = co_await asio::async_write(*stream_, asio::buffer(kContinue), kAwait);
    if (error) co_return false;
  }
  auto [body_error, n_body] = co_await bhttp::async_read(*stream_, buffer_, parser, kAwait);
  if (body_error) {
    if (!is_quiet_end(body_error)) co_await refuse(body_error);
    co_return false;
  }
  co_return true;
}

asio::awaitable<void> Session::refuse(beast::error_code error) {
  HttpRequest unknown;
  unknown.version(11);
  Exchange exchange(stream_, unknown, service_, lane_);
  exchange.close_after();
  Reply reply = error_reply(read_error(error));
  const bool sent = co_await exchange.send(std::move(reply));
  if (sent) co_await linger();
}

asio::awaitable<void> Session::linger() {
  beast::error_code ignored;
  stream_->socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  std::array<char, kReadBytes> rest;
  std::size_t n_read = 0;
  stream_->expires_after(kLinger);
  while (n_read < kLingerBytesMax) {
    auto [error, n] = co_await stream_->async_read_some(asio::buffer(rest), kAwait);
    if (error) break;
    n_read += n;
  }
}

asio::awaitable<void> Session::run() {
  const auto self = shared_from_this();
  beast::error_code ignored;
  stream_->socket().set_option(asio::ip::tcp::no_delay(true), ignored);
  while (!draining_) {
    const bool has_bytes = co_await wait_for_request();
    if (!has_bytes) break;
    Parser parser;
    const bool whole = co_await read_request(parser);
    if (!whole) break;
    // Room for the next request is taken when it comes: an answer may stream for long.
    if (buffer_.size() == 0) buffer_.shrink_to_fit();
    Exchange exchange(stream_, parser.get(), service_, lane_);
    if (draining_) exchange.close_after();
    co_await route(exchange);
    if (!exchange.keep_alive()) break;
  }
  stream_->socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  stream_->close();
}

}  // namespace luna::http
