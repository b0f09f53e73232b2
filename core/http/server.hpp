// The HTTP server: accepts connections, spreads them over I/O threads, drains.
#pragma once

#include "core/http/service.hpp"

#include <luna/result.hpp>

#include <chrono>
#include <cstdint>
#include <memory>

namespace luna::http {

class Server {
 public:
  /// Binds and listens, so that the port is known and taken; serves nothing yet. [start-up]
  /// The service's references outlive the server.
  /// Errors  invalid_argument (host; a public address without API keys); io (port in use)
  static Result<std::unique_ptr<Server>> open(Service service);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// The port listened on. [any]
  [[nodiscard]] std::uint16_t port() const;
  /// Starts the I/O threads. [main]
  void start();
  /// Takes no new connection, ends idle ones; running requests go on until they end or `timeout`
  /// has passed, then their connections are cut. Returns when all are gone. [main]
  void drain(std::chrono::milliseconds timeout);

  struct Impl;

 private:
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace luna::http
