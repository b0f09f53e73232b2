// One request on a connection and the way back: whole replies and event streams.
#pragma once

#include "core/http/reply.hpp"
#include "core/http/service.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace luna::http {

using HttpRequest = boost::beast::http::request<boost::beast::http::string_body>;

/// Lives in its session's coroutine, on one I/O thread. Every write has a deadline; false means
/// that the client is gone.
class Exchange {
 public:
  Exchange(std::shared_ptr<boost::beast::tcp_stream> stream,
           const HttpRequest& request,
           Service& service,
           bool keep_alive);

  [[nodiscard]] const HttpRequest& request() const { return request_; }
  [[nodiscard]] const std::shared_ptr<boost::beast::tcp_stream>& stream() const { return stream_; }
  [[nodiscard]] Service& service() { return service_; }
  [[nodiscard]] std::uint32_t tenant() const { return tenant_; }
  void set_tenant(std::uint32_t tenant) { tenant_ = tenant; }
  [[nodiscard]] bool keep_alive() const { return keep_alive_; }
  /// The connection ends after this answer.
  void close_after() { keep_alive_ = false; }

  /// Writes a whole answer; HEAD gets its head alone.
  boost::asio::awaitable<bool> send(Reply reply);

  // ---- event stream: begin, events, end
  boost::asio::awaitable<bool> begin_events();
  /// Writes `data: <json>` events, all in one piece.
  boost::asio::awaitable<bool> send_events(std::vector<std::string> events);
  /// A comment line, so that nobody takes a long prefill for a dead connection.
  boost::asio::awaitable<bool> send_ping();
  boost::asio::awaitable<bool> end_events();

 private:
  template <typename Message>
  void set_common_headers(Message& message) const;
  boost::asio::awaitable<bool> write_chunk(std::string bytes);
  void count(unsigned status) const;

  std::shared_ptr<boost::beast::tcp_stream> stream_;
  const HttpRequest& request_;
  Service& service_;
  bool keep_alive_;
  std::uint32_t tenant_ = 0;
};

}  // namespace luna::http
