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
  /// Binds and listens, so that the port is known and taken before anything slow begins; serves
  /// nothing yet. [start-up]
  ///
  /// keys    of clients; without any, only a loopback address is served
  /// Errors  invalid_argument (host; a public address without keys); io (port in use)
  static Result<std::unique_ptr<Server>> open(ServerOptions options, KeyRing keys);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// The port listened on. [any]
  [[nodiscard]] std::uint16_t port() const { return port_; }
  /// Starts the I/O threads: probes are answered, the rest is told to come again. Both outlive the
  /// server. [main]
  void start(telemetry::HttpStats& stats,
             const telemetry::Health& health,
             const ClusterPage& cluster = {});
  /// From here on the models are served. What it refers to outlives the server. [main]
  void serve(const ModelService& models);
  /// Takes no new connection, ends idle ones; running requests go on until they end or `timeout`
  /// has passed, then their connections are cut. Returns when all are gone. [main]
  void drain(std::chrono::milliseconds timeout);

  struct Impl;

 private:
  Server(std::unique_ptr<Impl> impl, std::uint16_t port);
  std::unique_ptr<Impl> impl_;
  const std::uint16_t port_;
};

}  // namespace luna::http
