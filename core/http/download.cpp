#include "core/http/download.hpp"

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

struct Url {
  bool secure = false;
  std::string host;
  std::string port;
  std::string target;
};

Result<Url> parse_url(std::string_view text) {
  Url url;
  const std::string quoted = "\"" + std::string(text.substr(0, 200)) + "\"";
  if (text.starts_with("https://")) {
    url.secure = true;
    text.remove_prefix(8);
  } else if (text.starts_with("http://")) {
    text.remove_prefix(7);
  } else {
    return Error{Code::invalid_argument,
                 "the URL " + quoted + " must begin with http:// or https://"};
  }
  const auto slash = text.find('/');
  std::string_view authority = text.substr(0, slash);
  url.target = slash == std::string_view::npos ? "/" : std::string(text.substr(slash));
  const auto colon = authority.rfind(':');
  url.port = url.secure ? "443" : "80";
  if (colon != std::string_view::npos) {
    url.port = std::string(authority.substr(colon + 1));
    authority = authority.substr(0, colon);
  }
  url.host = std::string(authority);
  const bool bad = url.host.empty() || authority.find('@') != std::string_view::npos ||
                   url.target.find_first_of(" \r\n") != std::string::npos;
  if (bad) return Error{Code::invalid_argument, "the URL " + quoted + " is not valid"};
  return url;
}

/// What one request led to: done, or somewhere else.
struct Hop {
  std::optional<std::string> redirect;
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

/// Fetches one URL into the part file, from where the part ends.
Result<Hop> fetch(const Url& url,
                  const std::filesystem::path& part,
                  const DownloadProgress& progress) {
  std::uint64_t n_have = size_of(part);
  Connection connection(url);
  LUNA_TRY(connection.open());
  bhttp::request<bhttp::empty_body> request(bhttp::verb::get, url.target, 11);
  request.set(bhttp::field::host, url.host);
  request.set(bhttp::field::user_agent, "luna");
  request.keep_alive(false);
  if (n_have > 0) request.set(bhttp::field::range, "bytes=" + std::to_string(n_have) + "-");
  LUNA_TRY(connection.write(request));
  Parser parser;
  parser.body_limit(boost::none);
  LUNA_TRY(connection.read_header(parser));
  const unsigned status = parser.get().result_int();
  if (status >= 300 && status < 400) {
    const auto location = parser.get()[bhttp::field::location];
    return Hop{std::string(location.data(), location.size())};
  }
  if (status == 416) return Hop{};  // nothing beyond what is there: the part is whole
  if (status == 404) return Error{Code::not_found, url.host + url.target + ": not found (404)"};
  if (status != 200 && status != 206)
    return Error{Code::io,
                 url.host + url.target + ": the server answered " + std::to_string(status)};
  if (status == 200) n_have = 0;  // it cannot continue: from the start
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
  std::string next = url;
  for (int hop = 0; hop <= kRedirectsMax; ++hop) {
    LUNA_TRY(const Url parsed, parse_url(next));
    LUNA_TRY(Hop outcome, fetch(parsed, part, progress));
    if (!outcome.redirect) {
      std::error_code error;
      std::filesystem::rename(part, target, error);
      if (error) return Error{Code::io, target.string() + ": " + error.message()};
      return {};
    }
    std::string location = *outcome.redirect;
    if (location.starts_with('/'))
      location = std::string(parsed.secure ? "https://" : "http://") + parsed.host + ":" +
                 parsed.port + location;
    if (parsed.secure && !location.starts_with("https://"))
      return Error{Code::io, url + ": redirects from https to " + location.substr(0, 200)};
    next = std::move(location);
  }
  return Error{Code::io, url + ": more than " + std::to_string(kRedirectsMax) + " redirects"};
}

}  // namespace luna::http
