// Making connections, and making them again.
#pragma once

#include "peer.hpp"
#include "site.hpp"

#include <chrono>
#include <memory>

namespace luna::tcp {

/// Keeps peers connected: whoever dialed first dials again, with growing pauses; the other side
/// only asks whether the port still answers, to tell a dead process from a broken way. [io]
class Dialer {
 public:
  explicit Dialer(const Site& site) : site_(site) {}

  /// Until the peer is over.
  asio::awaitable<void> keep_connected(std::shared_ptr<Peer> peer);

 private:
  /// From about the time a switch takes to fail over, to what a person does not notice.
  static constexpr std::chrono::milliseconds kPauseMin{20};
  static constexpr std::chrono::milliseconds kPauseMax{1000};

  enum class Outcome { connected, port_closed, failed };

  asio::awaitable<Outcome> dial(std::shared_ptr<Peer> peer);
  asio::awaitable<bool> greet_peer(std::shared_ptr<Peer> peer, std::shared_ptr<Stream> stream);
  static void note_refusal(Peer& peer, Refusal refusal);

  const Site& site_;
};

}  // namespace luna::tcp
