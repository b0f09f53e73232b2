// Connections that others make.
#pragma once

#include "registry.hpp"
#include "site.hpp"

#include <chrono>
#include <memory>
#include <set>

namespace luna::tcp {

/// Accepts, and lets nobody in who has not proved to know the token. Strangers are few and have
/// little time. A resource, its endpoint's. [io]
class Listener {
 public:
  /// More are turned away at once. A cluster that starts together dials in turns anyway.
  static constexpr std::size_t kStrangersMax = 32;

  /// Listens from now on. Errors: io: the address is taken or not of this machine
  static Result<std::unique_ptr<Listener>> open(asio::io_context& context, const Options& options);
  explicit Listener(asio::ip::tcp::acceptor acceptor) : acceptor_(std::move(acceptor)) {}

  [[nodiscard]] std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  asio::awaitable<void> run(const Site& site, Registry& registry);
  /// Ends run() and all handshakes.
  void stop();

 private:
  asio::awaitable<void> welcome(const Site& site,
                                Registry& registry,
                                std::shared_ptr<Stream> stream);
  void note(const Site& site, const Stream& stream, std::string_view reason);

  asio::ip::tcp::acceptor acceptor_;
  std::set<std::shared_ptr<Stream>> strangers_;
  std::chrono::steady_clock::time_point next_note_{};
  std::uint64_t n_not_noted_ = 0;
};

}  // namespace luna::tcp
