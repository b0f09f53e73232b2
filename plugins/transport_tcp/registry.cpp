#include "registry.hpp"

#include <algorithm>
#include <utility>

namespace luna::tcp {

std::shared_ptr<PeerStatus> Registry::status_of(std::uint64_t endpoint) {
  const std::lock_guard lock(mutex_);
  auto& status = statuses_[endpoint];
  if (status == nullptr) status = std::make_shared<PeerStatus>();
  return status;
}

void Registry::forget_status(std::uint64_t endpoint) {
  const std::lock_guard lock(mutex_);
  statuses_.erase(endpoint);
}

std::shared_ptr<Peer> Registry::find(std::uint64_t endpoint, Side side) const {
  const auto found = std::find_if(peers_.begin(), peers_.end(), [&](const auto& peer) {
    return peer->address().endpoint == endpoint && peer->side() == side && !peer->is_over() &&
           !peer->is_leaving();
  });
  return found == peers_.end() ? nullptr : *found;
}

std::shared_ptr<Peer> Registry::find(std::uint64_t endpoint) const {
  auto peer = find(endpoint, Side::dialer);
  if (peer == nullptr && endpoint != self_.endpoint) peer = find(endpoint, Side::acceptor);
  return peer;
}

std::shared_ptr<Peer> Registry::receiver_of(const std::shared_ptr<Peer>& peer) const {
  return peer->address().endpoint == self_.endpoint ? find(self_.endpoint, Side::acceptor) : peer;
}

std::shared_ptr<Peer> Registry::add(const Address& address, Side side, std::uint64_t epoch) {
  // The receiving end of a connection to oneself is nothing that callers see.
  const bool is_hidden = address.endpoint == self_.endpoint && side == Side::acceptor;
  auto status = is_hidden ? std::make_shared<PeerStatus>() : status_of(address.endpoint);
  if (status->state.load() == PeerStatus::State::over) {  // of an earlier connection
    forget_status(address.endpoint);
    status = status_of(address.endpoint);
  }
  auto peer = std::make_shared<Peer>(services_, address, side, epoch, std::move(status));
  peers_.push_back(peer);
  on_peer_(peer);
  return peer;
}

Result<std::shared_ptr<Peer>> Registry::reach(const Address& address) {
  if (auto peer = find(address.endpoint); peer != nullptr) return peer;
  if (peers_.size() >= kPeersMax) {
    return Error{Code::exhausted,
                 std::to_string(peers_.size()) + " peers: an endpoint has no more"};
  }
  LUNA_TRY(const std::uint64_t epoch, random_number());
  return add(address, Side::dialer, epoch);
}

// Both may dial at the same moment: then the connection of the smaller number stays. A caller whose
// own end is the dialed one of a live connection has given that up; this end learns it from him.
std::variant<std::shared_ptr<Peer>, Refusal> Registry::admit(const Caller& caller) {
  const std::uint64_t endpoint = caller.hello.from.endpoint;
  if (const auto ours = find(endpoint, Side::dialer);
      ours != nullptr && endpoint != self_.endpoint) {
    const bool is_ours_first =
        ours->is_established() || (ours->is_greeting() && self_.endpoint < endpoint);
    if (is_ours_first) return Refusal::duplicate;
    if (caller.hello.is_resuming) return Refusal::lost;
    ours->become_acceptor(caller.epoch);
    return ours;
  }
  if (const auto theirs = find(endpoint, Side::acceptor); theirs != nullptr) {
    if (theirs->epoch() == caller.epoch) {
      theirs->suspend("the peer has connected anew");
      return theirs;
    }
    theirs->give_up("it has begun anew");
  }
  if (caller.hello.is_resuming) return Refusal::lost;
  if (peers_.size() >= kPeersMax) return Refusal::full;
  return add(caller.hello.from, Side::acceptor, caller.epoch);
}

void Registry::tick(std::chrono::milliseconds elapsed) {
  const auto peers = peers_;  // giving one up may start or end others
  for (const auto& peer : peers)
    peer->tick(elapsed);
  std::erase_if(peers_, [](const auto& peer) { return peer->is_over(); });
}

}  // namespace luna::tcp
