// Who an endpoint is connected with.
#pragma once

#include "greeting.hpp"
#include "peer.hpp"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

namespace luna::tcp {

/// The peers of an endpoint. At most one live peer an endpoint, except for the own one: who talks
/// to itself has both ends of a connection. A resource, its endpoint's. [io], but for status_of()
class Registry {
 public:
  /// on_peer   told of each new peer, which it keeps connected
  Registry(PeerServices& services,
           const Address& self,
           std::function<void(std::shared_ptr<Peer>)> on_peer)
      : services_(services), self_(self), on_peer_(std::move(on_peer)) {}

  /// What callers see of an endpoint, from before its first connection on. [any]
  std::shared_ptr<PeerStatus> status_of(std::uint64_t endpoint);
  /// Its next connection is a new beginning. [any]
  void forget_status(std::uint64_t endpoint);

  /// The live peer, or nullptr.
  [[nodiscard]] std::shared_ptr<Peer> find(std::uint64_t endpoint) const;
  /// The end of a connection that receives what the peer's end sends: of oneself the other one.
  [[nodiscard]] std::shared_ptr<Peer> receiver_of(const std::shared_ptr<Peer>& peer) const;
  /// The live peer, made and dialed where there is none. Errors: internal: no random numbers
  Result<std::shared_ptr<Peer>> reach(const Address& address);
  /// Whether a caller, who has proved himself, may go on, and as whom. Ends the connection that he
  /// replaces.
  std::variant<std::shared_ptr<Peer>, Refusal> admit(const Caller& caller);

  void tick(std::chrono::milliseconds elapsed);
  [[nodiscard]] const std::vector<std::shared_ptr<Peer>>& peers() const { return peers_; }

 private:
  static constexpr std::size_t kPeersMax = 1024;

  [[nodiscard]] std::shared_ptr<Peer> find(std::uint64_t endpoint, Side side) const;
  std::shared_ptr<Peer> add(const Address& address, Side side, std::uint64_t epoch);

  PeerServices& services_;
  const Address& self_;  // the endpoint's, whose number comes later
  const std::function<void(std::shared_ptr<Peer>)> on_peer_;
  std::vector<std::shared_ptr<Peer>> peers_;  // shared with their sessions and groups
  std::mutex mutex_;                          // guards the statuses
  std::map<std::uint64_t, std::shared_ptr<PeerStatus>> statuses_;  // by endpoint
};

}  // namespace luna::tcp
