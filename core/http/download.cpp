#include "core/http/download.hpp"

#include "core/http/url.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace luna::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;
using asio::ip::tcp;

constexpr int kRedirectsMax = 5;
constexpr std::chrono::seconds kSilenceMax{60};
constexpr std::size_t kBufferBytes = std::size_t{256} * 1024;

/// What one request led to: done, or somewhere else.
struct Hop {
  std::optional<std::string> redirect;  // as the server wrote it
};

/// One connection, plain or TLS; every wait has a limit.
class Connection {
 public:
  explicit Connection(const Url& url) : url_(url) {
    tls_.set_default_verify_paths();
    tls_.set_verify_mode(asio::ssl::verify_peer);
  }

  Result<void> open() {
    beast::error_code error;
    tcp::resolver resolver(io_);
    const auto endpoints = resolver.resolve(url_.host, url_.port, error);
    if (error) return failure("resolving", error);
    if (url_.secure) {
      secure_.emplace(io_, tls_);
      if (SSL_set_tlsext_host_name(secure_->native_handle(), url_.host.c_str()) != 1)
        return Error{Code::io, "cannot set the TLS host name " + url_.host};
      secure_->set_verify_callback(asio::ssl::host_name_verification(url_.host));
    } else {
      plain_.emplace(io_);
    }
    LUNA_TRY(run("connecting to", [&](auto done) {
      lowest().async_connect(endpoints,
                             [done](beast::error_code e, const tcp::endpoint&) { done(e); });
    }));
    if (secure_)
      LUNA_TRY(run("TLS handshake with", [&](auto done) {
        secure_->async_handshake(asio::ssl::stream_base::client, done);
      }));
    return {};
  }

  template <typename Message>
  Result<void> write(Message& message) {
    return run("writing to", [&](auto done) {
      const auto forward = [done](beast::error_code e, std::size_t) { done(e); };
      if (secure_)
        bhttp::async_write(*secure_, message, forward);
      else
        bhttp::async_write(*plain_, message, forward);
    });
  }

  template <typename Parser>
  Result<void> read_header(Parser& parser) {
    return run("reading from", [&](auto done) {
      const auto forward = [done](beast::error_code e, std::size_t) { done(e); };
      if (secure_)
        bhttp::async_read_header(*secure_, buffer_, parser, forward);
      else
        bhttp::async_read_header(*plain_, buffer_, parser, forward);
    });
  }

  template <typename Parser>
  Result<void> read_body(Parser& parser) {
    return run("reading from", [&](auto done) {
      const auto forward = [done](beast::error_code e, std::size_t) {
        done(e == bhttp::error::need_buffer ? beast::error_code{} : e);
      };
      if (secure_)
        bhttp::async_read(*secure_, buffer_, parser, forward);
      else
        bhttp::async_read(*plain_, buffer_, parser, forward);
    });
  }

 private:
  beast::tcp_stream& lowest() { return secure_ ? beast::get_lowest_layer(*secure_) : *plain_; }

  Error failure(std::string_view what, beast::error_code error) const {
    const Code code = error == beast::error::timeout ? Code::timeout : Code::io;
    return Error{code, std::string(what) + " " + url_.host + ": " + error.message()};
  }

  template <typename Start>
  Result<void> run(std::string_view what, Start start) {
    std::optional<beast::error_code> answer;
    lowest().expires_after(kSilenceMax);
    start([&answer](beast::error_code error) { answer = error; });
    io_.restart();
    io_.run();
    if (answer && *answer) return failure(what, *answer);
    return {};
  }

  const Url& url_;
  asio::io_context io_;
  asio::ssl::context tls_{asio::ssl::context::tls_client};
  std::optional<beast::tcp_stream> plain_;
  std::optional<beast::ssl_stream<beast::tcp_stream>> secure_;
  beast::flat_buffer buffer_;
};

using Parser = bhttp::response_parser<bhttp::buffer_body>;

std::uint64_t size_of(const std::filesystem::path& path) {
  std::error_code none;
  const auto size = std::filesystem::file_size(path, none);
  return none ? 0 : static_cast<std::uint64_t>(size);
}

Result<void> copy_body(Connection& connection,
                       Parser& parser,
                       std::ofstream& file,
                       std::uint64_t n_done,
                       const DownloadProgress& progress) {
  const std::uint64_t n_total = parser.content_length() ? *parser.content_length() + n_done : 0;
  std::vector<char> buffer(kBufferBytes);
  while (!parser.is_done()) {
    parser.get().body().data = buffer.data();
    parser.get().body().size = buffer.size();
    parser.get().body().more = true;
    LUNA_TRY(connection.read_body(parser));
    const std::size_t n = buffer.size() - parser.get().body().size;
    if (!file.write(buffer.data(), static_cast<std::streamsize>(n)))
      return Error{Code::io, std::string("writing the file: ") + std::strerror(errno)};
    n_done += n;
    if (!progress(n_done, n_total))
      return Error{Code::cancelled, "the download was stopped; the same command continues it"};
  }
  return {};
}

std::string_view field(const Parser& parser, bhttp::field name) {
  const auto value = parser.get()[name];
  return {value.data(), value.size()};
}

/// `Content-Range: bytes FIRST-LAST/TOTAL`, or `bytes */TOTAL` with a 416 (RFC 9110, 14.4).
struct ContentRange {
  std::optional<std::uint64_t> first;
  std::optional<std::uint64_t> total;  // none: the server does not know
};

std::optional<ContentRange> parse_content_range(std::string_view text) {
  const auto take_number = [&text]() -> std::optional<std::uint64_t> {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return value;
  };
  const auto take = [&text](std::string_view word) {
    if (!text.starts_with(word)) return false;
    text.remove_prefix(word.size());
    return true;
  };
  ContentRange range;
  if (!take("bytes ")) return std::nullopt;
  if (!take("*")) {
    range.first = take_number();
    if (!range.first || !take("-") || !take_number()) return std::nullopt;
  }
  if (!take("/")) return std::nullopt;
  if (!take("*")) {
    range.total = take_number();
    if (!range.total) return std::nullopt;
  }
  return text.empty() ? std::optional(range) : std::nullopt;
}

/// Whether the answer continues the part where it ends. One that does not would make a file of two
/// halves that are not of one.
Result<void> check_continues(const Parser& parser,
                             const std::filesystem::path& part,
                             std::uint64_t n_have) {
  const std::string_view text = field(parser, bhttp::field::content_range);
  const auto range = parse_content_range(text);
  const bool is_rest = parser.get().result_int() == 206;
  // 416: there is nothing from there on, because the part is the whole.
  const bool good = range && (is_rest ? range->first == n_have : range->total == n_have);
  if (good) return {};
  return Error{Code::io,
               "asked for bytes from " + std::to_string(n_have) + " on, the server answered " +
                   std::to_string(parser.get().result_int()) + " with Content-Range \"" +
                   std::string(text.substr(0, 100)) + "\": remove " + part.string() +
                   " to begin again"};
}

/// Fetches one URL into the part file, from where the part ends.
Result<Hop> fetch(const Url& url,
                  const std::filesystem::path& part,
                  const DownloadProgress& progress) {
  std::uint64_t n_have = size_of(part);
  Connection connection(url);
  LUNA_TRY(connection.open());
  bhttp::request<bhttp::empty_body> request(bhttp::verb::get, url.target, 11);
  request.set(bhttp::field::host, url.host_field());
  request.set(bhttp::field::user_agent, "luna");
  request.keep_alive(false);
  if (n_have > 0) request.set(bhttp::field::range, "bytes=" + std::to_string(n_have) + "-");
  LUNA_TRY(connection.write(request));
  Parser parser;
  parser.body_limit(boost::none);
  LUNA_TRY(connection.read_header(parser));
  const unsigned status = parser.get().result_int();
  const bool is_redirect =
      status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
  if (is_redirect) return Hop{std::string(field(parser, bhttp::field::location))};
  const std::string where = url.host_field() + url.target;
  if (status == 404) return Error{Code::not_found, where + ": not found (404)"};
  if (status != 200 && (n_have == 0 || (status != 206 && status != 416)))
    return Error{Code::io, where + ": the server answered " + std::to_string(status)};
  if (status == 200) n_have = 0;  // it cannot continue: from the start
  if (n_have > 0)
    if (const auto good = check_continues(parser, part, n_have); !good)
      return good.error().in(where);
  if (status == 416) return Hop{};
  std::ofstream file(part, std::ios::binary | (n_have > 0 ? std::ios::app : std::ios::trunc));
  if (!file) return Error{Code::io, part.string() + ": " + std::strerror(errno)};
  LUNA_TRY(copy_body(connection, parser, file, n_have, progress));
  file.close();
  if (!file) return Error{Code::io, part.string() + ": " + std::strerror(errno)};
  return Hop{};
}

}  // namespace

Result<void> download(const std::string& url,
                      const std::filesystem::path& target,
                      const DownloadProgress& progress) {
  std::filesystem::path part = target;
  part += ".part";
  LUNA_TRY(Url next, parse_url(url));
  for (int hop = 0; hop <= kRedirectsMax; ++hop) {
    LUNA_TRY(const Hop outcome, fetch(next, part, progress));
    if (!outcome.redirect) {
      std::error_code error;
      std::filesystem::rename(part, target, error);
      if (error) return Error{Code::io, target.string() + ": " + error.message()};
      return {};
    }
    auto to = resolve_url(next, *outcome.redirect);
    if (!to) return to.error().in(url + ": redirect");
    if (next.secure && !to->secure)
      return Error{Code::io, url + ": redirects from https to http: " + to->host_field()};
    next = *std::move(to);
  }
  return Error{Code::io, url + ": more than " + std::to_string(kRedirectsMax) + " redirects"};
}

}  // namespace luna::http
