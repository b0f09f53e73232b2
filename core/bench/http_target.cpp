#include "core/bench/http_target.hpp"

#include "core/bench/sse_parser.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include <array>
#include <list>
#include <utility>
#include <vector>

namespace luna::bench {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;
namespace json = boost::json;
using asio::ip::tcp;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

constexpr std::size_t kReadBytes = std::size_t{16} * 1024;
constexpr std::size_t kErrorBodyBytesMax = 300;

using Request = bhttp::request<bhttp::string_body>;
using ResponseParser = bhttp::response_parser<bhttp::buffer_body>;

struct Connection {
  explicit Connection(asio::any_io_executor executor) : stream(std::move(executor)) {}
  beast::tcp_stream stream;
  beast::flat_buffer buffer;
};

Request make_request(bhttp::verb verb,
                     const HttpTargetOptions& options,
                     const std::string& path,
                     std::string body) {
  Request request{verb, options.base_path + path, 11};
  request.set(bhttp::field::host, options.host + ":" + options.port);
  request.set(bhttp::field::user_agent, "luna-bench");
  if (!options.api_key.empty())
    request.set(bhttp::field::authorization, "Bearer " + options.api_key);
  if (verb == bhttp::verb::post) {
    request.set(bhttp::field::content_type, "application/json");
    request.set(bhttp::field::accept, "text/event-stream");
  }
  request.keep_alive(true);
  request.body() = std::move(body);
  request.prepare_payload();
  return request;
}

class HttpTarget final : public Target {
 public:
  HttpTarget(asio::any_io_executor executor, const Clock& clock, HttpTargetOptions options)
      : executor_(std::move(executor)), clock_(clock), options_(std::move(options)) {}

  asio::awaitable<void> answer(const Prompt& prompt, RequestRecord& record) override;
  void cancel_all() override;

 private:
  using ConnectionPtr = std::shared_ptr<Connection>;

  asio::awaitable<ConnectionPtr> connect(RequestRecord& record);
  asio::awaitable<bool> exchange(Connection& connection, Request& request, RequestRecord& record);
  asio::awaitable<void> read_refusal(Connection& connection,
                                     ResponseParser& parser,
                                     RequestRecord& record);
  asio::awaitable<void> read_stream(Connection& connection,
                                    ResponseParser& parser,
                                    RequestRecord& record);
  void fail(RequestRecord& record, std::string error) const;
  void read_event(std::string_view data, RequestRecord& record) const;

  asio::any_io_executor executor_;
  const Clock& clock_;
  const HttpTargetOptions options_;
  tcp::resolver::results_type endpoints_;  // of the first connection
  std::vector<ConnectionPtr> idle_;
  std::list<ConnectionPtr> busy_;
  bool is_cancelled_ = false;
};

void HttpTarget::fail(RequestRecord& record, std::string error) const {
  record.end = clock_.now();
  record.outcome = is_cancelled_ ? Outcome::cut : Outcome::failed;
  record.error = std::move(error);
}

void HttpTarget::cancel_all() {
  is_cancelled_ = true;
  for (const ConnectionPtr& connection : busy_)
    connection->stream.close();
}

asio::awaitable<HttpTarget::ConnectionPtr> HttpTarget::connect(RequestRecord& record) {
  auto connection = std::make_shared<Connection>(executor_);
  connection->stream.expires_after(options_.timeout);
  if (endpoints_.empty()) {
    tcp::resolver resolver(executor_);
    auto [unresolved, found] =
        co_await resolver.async_resolve(options_.host, options_.port, kAwait);
    if (unresolved) {
      fail(record, "resolve: " + unresolved.message());
      co_return nullptr;
    }
    endpoints_ = found;
  }
  const auto [refused, endpoint] = co_await connection->stream.async_connect(endpoints_, kAwait);
  if (refused) {
    fail(record, "connect: " + refused.message());
    co_return nullptr;
  }
  boost::system::error_code ignored;  // without it a request only leaves later
  connection->stream.socket().set_option(tcp::no_delay(true), ignored);
  co_return connection;
}

asio::awaitable<void> HttpTarget::answer(const Prompt& prompt, RequestRecord& record) {
  const bool is_chat = std::holds_alternative<json::array>(prompt.input);
  Request request = make_request(bhttp::verb::post,
                                 options_,
                                 is_chat ? "/chat/completions" : "/completions",
                                 request_body(prompt, options_));
  for (;;) {
    ConnectionPtr connection;
    const bool is_reused = !idle_.empty();
    if (is_reused) {
      connection = std::move(idle_.back());
      idle_.pop_back();
    } else {
      connection = co_await connect(record);
      if (!connection) co_return;
    }
    connection->stream.expires_after(options_.timeout);
    const auto place = busy_.insert(busy_.end(), connection);
    const bool was_answered = co_await exchange(*connection, request, record);
    busy_.erase(place);
    // The server may have closed a kept connection just then: once more, over a new one.
    if (!was_answered && is_reused && !is_cancelled_) {
      idle_.clear();
      continue;
    }
    if (record.outcome == Outcome::done && connection->stream.socket().is_open())
      idle_.push_back(std::move(connection));
    co_return;
  }
}

/// Returns  false when the connection ended before a byte of the answer
asio::awaitable<bool> HttpTarget::exchange(Connection& connection,
                                           Request& request,
                                           RequestRecord& record) {
  const auto [not_sent, n_sent] = co_await bhttp::async_write(connection.stream, request, kAwait);
  if (not_sent) {
    fail(record, "send: " + not_sent.message());
    co_return false;
  }
  ResponseParser parser;
  parser.body_limit(boost::none);
  const auto [no_head, n_head] =
      co_await bhttp::async_read_header(connection.stream, connection.buffer, parser, kAwait);
  if (no_head) {
    fail(record, "no answer: " + no_head.message());
    co_return parser.got_some();
  }
  if (parser.get().result() == bhttp::status::ok) {
    co_await read_stream(connection, parser, record);
  } else {
    co_await read_refusal(connection, parser, record);
  }
  if (!parser.is_done() || !parser.keep_alive()) connection.stream.close();
  co_return true;
}

asio::awaitable<void> HttpTarget::read_refusal(Connection& connection,
                                               ResponseParser& parser,
                                               RequestRecord& record) {
  std::array<char, kErrorBodyBytesMax> text{};
  parser.get().body().data = text.data();
  parser.get().body().size = text.size();
  // What does not fit is not read: the connection is given up.
  co_await bhttp::async_read(connection.stream, connection.buffer, parser, kAwait);
  const std::size_t n = text.size() - parser.get().body().size;
  connection.stream.close();
  fail(record,
       "HTTP " + std::to_string(parser.get().result_int()) + ": " + std::string(text.data(), n));
}

asio::awaitable<void> HttpTarget::read_stream(Connection& connection,
                                              ResponseParser& parser,
                                              RequestRecord& record) {
  std::vector<char> bytes(kReadBytes);
  SseParser events;
  record.outcome = Outcome::cut;
  record.error.clear();  // of a kept connection that had ended
  const auto on_data = [&](std::string_view data) { read_event(data, record); };
  while (!parser.is_done()) {
    parser.get().body().data = bytes.data();
    parser.get().body().size = bytes.size();
    const auto [broken, n_read] =
        co_await bhttp::async_read_some(connection.stream, connection.buffer, parser, kAwait);
    if (broken && broken != bhttp::error::need_buffer) {
      fail(record, "stream: " + broken.message());
      co_return;
    }
    const std::size_t n = bytes.size() - parser.get().body().size;
    if (!events.feed(std::string_view(bytes.data(), n), on_data)) {
      fail(record, "stream: an event is too long");
      connection.stream.close();
      co_return;
    }
  }
  if (record.outcome == Outcome::cut) fail(record, "stream: it ended without [DONE]");
}

void HttpTarget::read_event(std::string_view data, RequestRecord& record) const {
  CompletionEvent event = read_completion_event(data);
  if (event.error) return fail(record, std::move(*event.error));
  if (event.has_token) record.token_times.push_back(clock_.now());
  if (event.usage) record.usage = event.usage;
  if (event.is_done && record.outcome == Outcome::cut) {
    record.end = clock_.now();
    record.outcome = Outcome::done;
  }
}

}  // namespace

Result<HttpTargetOptions> parse_base_url(std::string_view url) {
  const std::string shown = "the URL \"" + std::string(url.substr(0, 200)) + "\"";
  if (url.starts_with("https://"))
    return Error{Code::unsupported, shown + ": only http is measured"};
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme))
    return Error{Code::invalid_argument, shown + " must begin with http://"};
  url.remove_prefix(kScheme.size());
  HttpTargetOptions options;
  const auto slash = url.find('/');
  if (slash != std::string_view::npos) options.base_path = url.substr(slash);
  while (options.base_path.ends_with('/'))
    options.base_path.pop_back();
  if (options.base_path.empty()) options.base_path = "/v1";
  std::string_view authority = url.substr(0, slash);
  const auto bracket = authority.rfind(']');
  const auto colon = authority.rfind(':');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  options.port = has_port ? std::string(authority.substr(colon + 1)) : "80";
  authority = authority.substr(0, has_port ? colon : authority.size());
  if (authority.starts_with('[') && authority.ends_with(']'))
    authority = authority.substr(1, authority.size() - 2);
  options.host = authority;
  const bool is_number = options.port.find_first_not_of("0123456789") == std::string::npos;
  if (options.host.empty() || options.port.empty() || !is_number)
    return Error{Code::invalid_argument, shown + " must be http://HOST[:PORT][/PATH]"};
  return options;
}

std::string request_body(const Prompt& prompt, const HttpTargetOptions& options) {
  json::object body = options.body;
  body["model"] = options.model;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  body["max_tokens"] = prompt.n_generated_max;
  if (!body.contains("temperature")) body["temperature"] = 0;
  if (const auto* text = std::get_if<std::string>(&prompt.input)) {
    body["prompt"] = *text;
  } else if (const auto* ids = std::get_if<TokenIds>(&prompt.input)) {
    body["prompt"] = json::array(ids->begin(), ids->end());
  } else {
    body["messages"] = std::get<json::array>(prompt.input);
  }
  return json::serialize(body);
}

Result<std::string> first_model(const HttpTargetOptions& options) {
  const std::string where = "http://" + options.host + ":" + options.port + options.base_path;
  asio::io_context context;
  beast::tcp_stream stream(context);
  boost::system::error_code failed;
  const auto endpoints = tcp::resolver(context).resolve(options.host, options.port, failed);
  if (!failed) stream.connect(endpoints, failed);
  const Request request = make_request(bhttp::verb::get, options, "/models", "");
  if (!failed) bhttp::write(stream, request, failed);
  beast::flat_buffer buffer;
  bhttp::response<bhttp::string_body> response;
  if (!failed) bhttp::read(stream, buffer, response, failed);
  if (failed) return Error{Code::io, where + "/models: " + failed.message()};
  if (response.result() != bhttp::status::ok)
    return Error{Code::unavailable,
                 where + "/models: HTTP " + std::to_string(response.result_int())};
  const json::value value = json::parse(response.body(), failed);
  const json::value* id = failed ? nullptr : value.find_pointer("/data/0/id", failed);
  if (id == nullptr || !id->is_string())
    return Error{Code::corrupt, where + "/models: names no model; use --served-model"};
  return std::string(id->get_string());
}

TargetFactory http_target(HttpTargetOptions options) {
  return [options = std::move(options)](asio::any_io_executor executor, const Clock& clock) {
    return std::make_unique<HttpTarget>(std::move(executor), clock, options);
  };
}

}  // namespace luna::bench
