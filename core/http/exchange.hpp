// One request on a connection and the way back: whole replies and event streams.
#pragma once

#include "core/http/output_lane.hpp"
#include "core/http/reply.hpp"
#include "core/http/service.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace luna::http {

using HttpRequest = boost::beast::http::request<boost::beast::http::string_body>;

/// Lives in its session's coroutine, on one I/O thread. Every write has a deadline; false means
/// that the client is gone.
class Exchange {
 public:
  /// lane   of the I/O thread that the connection is on
  Exchange(std::shared_ptr<boost::beast::tcp_stream> stream,
           HttpRequest& request,
           Service& service,
           std::shared_ptr<OutputLane> lane);

  [[nodiscard]] const HttpRequest& request() const { return request_; }
  /// The request's body, which then is gone from it: nothing holds it while an answer streams.
  [[nodiscard]] std::string take_body() { return std::move(request_.body()); }
  [[nodiscard]] const std::shared_ptr<boost::beast::tcp_stream>& stream() const { return stream_; }
  [[nodiscard]] Service& service() { return service_; }
  /// None while they are loaded; the same for the whole exchange.
  [[nodiscard]] const ModelService* models() const { return models_; }
  [[nodiscard]] const std::shared_ptr<OutputLane>& lane() const { return lane_; }
  [[nodiscard]] std::uint32_t tenant() const { return tenant_; }
  void set_tenant(std::uint32_t tenant) { tenant_ = tenant; }
  [[nodiscard]] bool keep_alive() const { return keep_alive_; }
  /// The connection ends after this answer.
  void close_after() { keep_alive_ = false; }

  /// Writes a whole answer; HEAD gets its head alone.
  boost::asio::awaitable<bool> send(Reply reply);

  // ---- event stream: the head, then pieces of a SseWriter
  boost::asio::awaitable<bool> begin_events();
  /// How pieces are framed; `is_last` ends the stream.
  [[nodiscard]] SseWriter::Framing framing(bool is_last) const;
  /// Writes as much as the socket takes at once, which is all but for slow readers.
  ///
  /// Returns  what is left of the bytes; nothing: the client is gone
  std::optional<std::string_view> write_now(std::string_view bytes);
  /// Writes what write_now() has left, whenever the client takes it within its time. The bytes are
  /// copied before it suspends.
  boost::asio::awaitable<bool> write_rest(std::optional<std::string_view> left);

 private:
  template <typename Message>
  void set_common_headers(Message& message) const;
  void count(unsigned status) const;

  std::shared_ptr<boost::beast::tcp_stream> stream_;  // shared with watchers of the socket
  HttpRequest& request_;
  Service& service_;
  const ModelService* const models_;
  const std::shared_ptr<OutputLane> lane_;
  bool keep_alive_;
  std::uint32_t tenant_ = 0;
};

}  // namespace luna::http
