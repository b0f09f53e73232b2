// Another endpoint: what goes there and what came from there, over however many connections.
#pragma once

#include "handshake.hpp"
#include "outgoing.hpp"
#include "peer_status.hpp"
#include "resend_queue.hpp"
#include "session.hpp"
#include "transfers.hpp"

#include <luna/plugin.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace luna::tcp {

class Groups;

/// What a peer needs of its endpoint, which outlives it.
struct PeerServices {
  asio::io_context& context;
  Groups& groups;
  Completions& completions;
  const Options& options;
  Host host;
  std::function<void()> peer_is_over;  ///< told of each
};

/// Numbers every frame that must not be lost, keeps it until the peer has acknowledged it and sends
/// it again over the next connection; takes each of the peer's exactly once. What is kept lies in
/// registered memory or in lanes of fixed size, so it is bounded. A resource, shared by its
/// sessions. [io]
class Peer : public std::enable_shared_from_this<Peer> {
 public:
  Peer(PeerServices& services,
       Address address,
       Side side,
       std::uint64_t epoch,
       std::shared_ptr<PeerStatus> status);

  [[nodiscard]] const Address& address() const { return address_; }
  [[nodiscard]] Side side() const { return side_; }
  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }
  [[nodiscard]] std::uint64_t received() const { return received_; }
  [[nodiscard]] bool is_over() const { return is_over_; }
  [[nodiscard]] bool has_session() const { return session_ != nullptr; }
  /// Whether a connection was ever made: before that nothing is lost by taking the other's.
  [[nodiscard]] bool is_established() const { return is_established_; }
  /// Whether it is about to be over, by own wish: others are made in its place.
  [[nodiscard]] bool is_leaving() const { return is_leaving_; }
  /// Whether we have reached it and are greeting it.
  [[nodiscard]] bool is_greeting() const { return is_greeting_; }
  void set_greeting(bool is_greeting) { is_greeting_ = is_greeting; }
  /// The stream that is being made, which ends with the peer; null: none.
  void set_dialing(std::shared_ptr<Stream> stream) { dialing_ = std::move(stream); }
  [[nodiscard]] std::uint64_t message_bytes_max() const;
  [[nodiscard]] PeerStatus& status() { return *status_; }
  [[nodiscard]] Transfers& transfers() { return transfers_; }
  [[nodiscard]] std::uint64_t now_ns() const;
  /// Set when a session ends or the peer is over; whoever keeps it connected waits for it.
  [[nodiscard]] Event& changed() { return changed_; }

  // ---- connections ----
  /// Becomes the side that is dialed, in an epoch of the other's.
  void become_acceptor(std::uint64_t epoch);
  /// Ends the current session, if any, so that received() stands still.
  void suspend(std::string_view reason);
  /// Goes on over a new stream. False: the other claims to have taken what was never sent.
  bool resume(std::shared_ptr<Stream> stream, std::uint64_t taken_by_other);
  void session_ended(Session& session);
  /// Pings, and judges silence. Time in which this process did not run is not the peer's.
  void tick(std::chrono::milliseconds elapsed);
  /// Says good-bye behind everything else, then gives it up.
  void leave();
  /// Ends everything with it: unavailable.
  void give_up(const std::string& reason);

  // ---- out ----
  void send(Outgoing frame);
  /// Nobody's payload of this owner is looked at any more after this.
  void take_back(std::uint64_t owner);
  void fill(Batch& batch);
  void written() { frames_.written(); }

  // ---- in ----
  void heard() { silent_ = {}; }
  /// False: the frame broke a rule, and the session has been closed.
  bool begin(const Header& header);
  /// Where the rest of the payload goes; never empty.
  std::span<std::byte> place(const Header& header, std::uint64_t n_done);
  void finish(const Header& header);

 private:
  bool take_ack(std::uint64_t ack);
  bool begin_numbered(const Header& header);
  void finish_numbered(const Header& header);
  void finish_unnumbered(const Header& header);
  void on_pong(const Header& header);
  void wake();

  PeerServices& services_;
  const Address address_;
  Side side_;
  std::uint64_t epoch_;
  const std::shared_ptr<PeerStatus> status_;  // shared with callers, who look after it is over
  Event changed_;
  Transfers transfers_;
  std::shared_ptr<Session> session_;  // shared with its coroutines
  bool is_established_ = false;
  std::shared_ptr<Stream> dialing_;  // shared with its dialer
  bool is_greeting_ = false;
  bool is_leaving_ = false;
  bool is_over_ = false;
  std::chrono::milliseconds silent_{0};

  // Out.
  ResendQueue frames_;
  std::optional<Header> pong_;  // one answer is enough for all pings before it
  std::optional<Header> probe_pong_;
  bool is_ping_due_ = false;
  bool is_probe_due_ = false;
  bool is_ack_due_ = false;

  // In.
  std::uint64_t received_ = 0;
  bool is_duplicate_ = false;             // the frame that is being read
  std::uint32_t n_not_acknowledged_ = 0;  // frames taken since the last ack went out
  std::uint64_t bytes_not_acknowledged_ = 0;
  std::array<std::byte, kGroupShapeBytes> shape_{};
  std::array<std::byte, 16384> dropped_;  // where bytes go that nobody wants; never read
};

}  // namespace luna::tcp
