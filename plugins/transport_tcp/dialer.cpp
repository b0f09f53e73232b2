#include "dialer.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace luna::tcp {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

}  // namespace

asio::awaitable<void> Dialer::keep_connected(std::shared_ptr<Peer> peer) {
  std::chrono::milliseconds pause = kPauseMin;
  std::optional<SteadyTime> closed_since;
  while (!peer->is_over()) {
    if (peer->has_session()) {
      co_await peer->changed().wait();
      pause = kPauseMin;
      closed_since.reset();
      continue;
    }
    const Outcome outcome = co_await dial(peer);
    peer->set_dialing(nullptr);
    const SteadyTime now = std::chrono::steady_clock::now();
    if (outcome != Outcome::port_closed) {
      closed_since.reset();
    } else if (!closed_since) {
      closed_since = now;
    }
    // Before the first connection a closed port only means that the peer starts later.
    if (closed_since && peer->is_established() && !peer->has_session() &&
        now - *closed_since >= site_.options.refused_timeout) {
      peer->give_up("nobody listens at its port any more");
    }
    if (peer->is_over() || peer->has_session()) continue;
    co_await peer->changed().wait_for(pause);
    pause = std::min(2 * pause, kPauseMax);
  }
}

asio::awaitable<Dialer::Outcome> Dialer::dial(std::shared_ptr<Peer> peer) {
  // Its caller is about to go on with the connection that made it.
  if (peer->side() == Side::acceptor && !peer->is_established()) co_return Outcome::failed;
  auto stream = std::make_shared<Stream>(asio::ip::tcp::socket(site_.context));
  const Deadline deadline(site_.context, stream, site_.options.heartbeat_timeout);
  peer->set_dialing(stream);
  std::string host = peer->address().host;
  const auto error = co_await stream->connect(std::move(host), peer->address().port);
  if (error == asio::error::connection_refused) co_return Outcome::port_closed;
  if (error || peer->is_over()) co_return Outcome::failed;
  if (peer->side() == Side::acceptor || peer->has_session()) {
    stream->close("only asked whether it listens");
    co_return Outcome::failed;
  }
  const auto prepared = stream->prepare(site_.ssl, Side::dialer, site_.options.heartbeat_timeout);
  if (!prepared) {
    site_.host.log(LUNA_LOG_ERROR, prepared.error().message());
    co_return Outcome::failed;
  }
  peer->set_greeting(true);
  const bool is_connected = co_await greet_peer(peer, stream);
  peer->set_greeting(false);
  if (!is_connected) stream->close("the handshake failed");
  co_return is_connected ? Outcome::connected : Outcome::failed;
}

asio::awaitable<bool> Dialer::greet_peer(std::shared_ptr<Peer> peer,
                                         std::shared_ptr<Stream> stream) {
  Greeting greeting;
  greeting.target = peer->address().endpoint;
  greeting.epoch = peer->epoch();
  greeting.received = peer->received();
  greeting.is_resuming = peer->is_established();
  auto answer = co_await greet(stream, site_.greeter(), greeting);
  // Meanwhile the other side may have dialed, and this end become the one that is dialed.
  if (peer->is_over() || peer->side() == Side::acceptor || peer->has_session()) co_return false;
  if (!answer) {
    // Others end with the next attempt: a peer that starts later, a broken way.
    const bool is_lasting = answer.error().code() != Code::unavailable && !peer->is_established();
    if (is_lasting) peer->status().set(PeerStatus::State::failed, answer.error());
    co_return false;
  }
  if (answer->refusal) {
    note_refusal(*peer, *answer->refusal);
    co_return false;
  }
  const bool is_resumed = peer->resume(stream, answer->received);
  if (!is_resumed) peer->give_up("it claims to have taken what was never sent");
  co_return is_resumed;
}

void Dialer::note_refusal(Peer& peer, Refusal refusal) {
  switch (refusal) {
    case Refusal::duplicate:
    case Refusal::full:
      return;  // tried again
    case Refusal::endpoint:
      peer.give_up("another endpoint is at its address: it was started anew");
      return;
    case Refusal::lost:
      peer.give_up("it has given up this connection");
      return;
    case Refusal::version:
    case Refusal::token:
      break;
  }
  if (peer.is_established()) return;
  const Address& at = peer.address();
  const std::string where = "the endpoint at " + at.host + ":" + std::to_string(at.port);
  peer.status().set(
      PeerStatus::State::failed,
      refusal == Refusal::token
          ? Error{Code::invalid_argument, where + " refuses our token: token_file must be the same"}
          : Error{Code::unsupported,
                  where + " refuses protocol version " + std::to_string(kProtocolVersion)});
}

}  // namespace luna::tcp
