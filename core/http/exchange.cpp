#include "core/http/exchange.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/write.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace luna::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kRequestIdMax = 128;

/// The caller's request id if it is harmless in a header and a log.
bool is_usable_id(std::string_view id) {
  return !id.empty() && id.size() <= kRequestIdMax && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

bool allows_origin(const std::vector<std::string>& allowed, std::string_view origin) {
  return std::any_of(allowed.begin(), allowed.end(), [&](const std::string& entry) {
    return entry == "*" || entry == origin;
  });
}

std::string_view header(const HttpRequest& request, std::string_view name) {
  const auto value = request[beast::string_view(name.data(), name.size())];
  return {value.data(), value.size()};
}

}  // namespace

Exchange::Exchange(std::shared_ptr<beast::tcp_stream> stream,
                   HttpRequest& request,
                   Service& service,
                   std::shared_ptr<OutputLane> lane)
    : stream_(std::move(stream)),
      request_(request),
      service_(service),
      models_(service.models.load(std::memory_order_acquire)),
      lane_(std::move(lane)),
      keep_alive_(request.keep_alive()) {}

template <typename Message>
void Exchange::set_common_headers(Message& message) const {
  message.set(bhttp::field::server, "luna");
  const std::string_view id = header(request_, "x-request-id");
  if (is_usable_id(id)) message.set("x-request-id", id);
  const std::string_view origin = header(request_, "origin");
  if (!origin.empty() && allows_origin(service_.options.cors_origins, origin)) {
    message.set(bhttp::field::access_control_allow_origin, origin);
    message.set(bhttp::field::vary, "Origin");
  }
  message.keep_alive(keep_alive_);
}

void Exchange::count(unsigned status) const {
  auto& stats = service_.stats;
  auto& counter = status < 400 ? stats.n_2xx : status < 500 ? stats.n_4xx : stats.n_5xx;
  counter.fetch_add(1, std::memory_order_relaxed);
}

asio::awaitable<bool> Exchange::send(Reply reply) {
  bhttp::response<bhttp::string_body> message;
  message.version(request_.version());
  message.result(reply.status);
  if (!reply.body.empty()) message.set(bhttp::field::content_type, reply.content_type);
  set_common_headers(message);
  for (const auto& [name, value] : reply.headers)
    message.set(name, value);
  const std::size_t n_body = reply.body.size();
  if (request_.method() != bhttp::verb::head) message.body() = std::move(reply.body);
  message.prepare_payload();
  if (request_.method() == bhttp::verb::head) message.content_length(n_body);
  count(reply.status);
  stream_->expires_after(service_.options.write_timeout);
  auto [error, n] = co_await bhttp::async_write(*stream_, message, kAwait);
  co_return !error;
}

asio::awaitable<bool> Exchange::begin_events() {
  bhttp::response<bhttp::empty_body> message;
  message.version(request_.version());
  message.result(bhttp::status::ok);
  message.set(bhttp::field::content_type, "text/event-stream; charset=utf-8");
  message.set(bhttp::field::cache_control, "no-cache");
  message.set("x-accel-buffering", "no");
  // HTTP/1.0 knows no chunks: the end of the connection ends the stream.
  if (request_.version() < 11) keep_alive_ = false;
  set_common_headers(message);
  if (request_.version() >= 11) message.chunked(true);
  count(200);
  bhttp::response_serializer<bhttp::empty_body> serializer{message};
  stream_->expires_after(service_.options.write_timeout);
  auto [error, n] = co_await bhttp::async_write_header(*stream_, serializer, kAwait);
  co_return !error;
}

SseWriter::Framing Exchange::framing(bool is_last) const {
  if (request_.version() < 11) return SseWriter::Framing::none;
  return is_last ? SseWriter::Framing::last_chunk : SseWriter::Framing::chunk;
}

std::optional<std::string_view> Exchange::write_now(std::string_view bytes) {
  auto& socket = stream_->socket();
  beast::error_code error;
  if (!socket.non_blocking()) socket.non_blocking(true, error);
  while (!error && !bytes.empty())
    bytes.remove_prefix(socket.write_some(asio::buffer(bytes), error));
  if (error && error != asio::error::would_block) return std::nullopt;
  return bytes;
}

asio::awaitable<bool> Exchange::write_rest(std::optional<std::string_view> left) {
  if (!left) co_return false;
  const std::string bytes(*left);
  stream_->expires_after(service_.options.write_timeout);
  auto [error, n] = co_await asio::async_write(*stream_, asio::buffer(bytes), kAwait);
  co_return !error;
}

}  // namespace luna::http
