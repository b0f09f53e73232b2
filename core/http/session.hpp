// One connection: read a request within its limits, answer it, read the next.
#pragma once

#include "core/http/output_lane.hpp"
#include "core/http/service.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <memory>

namespace luna::http {

/// Owned by its own coroutine; the server holds a weak reference, to close idle connections.
class Session : public std::enable_shared_from_this<Session> {
 public:
  /// lane   of the I/O thread that the connection is on
  Session(boost::asio::ip::tcp::socket socket, Service& service, std::shared_ptr<OutputLane> lane);
  ~Session();

  /// Serves until the client leaves, a limit is passed, or the server drains. [io]
  boost::asio::awaitable<void> run();

  /// Ends the connection now if it is between two requests, else after the running one. [io]
  void drain();
  /// Ends the connection now. [io]
  void close();

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  boost::asio::awaitable<bool> wait_for_request();
  boost::asio::awaitable<bool> read_request(Parser& parser);
  boost::asio::awaitable<void> refuse(boost::beast::error_code error);
  boost::asio::awaitable<void> linger();

  std::shared_ptr<boost::beast::tcp_stream> stream_;
  Service& service_;
  const std::shared_ptr<OutputLane> lane_;
  boost::beast::flat_buffer buffer_;
  bool draining_ = false;
  bool is_idle_ = false;
};

}  // namespace luna::http
