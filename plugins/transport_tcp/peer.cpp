#include "peer.hpp"

#include "groups.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace luna::tcp {
namespace {

// Bounds what the other side has to keep; the pings of an idle connection acknowledge the rest.
constexpr std::uint32_t kFramesBetweenAcks = 32;
constexpr std::uint64_t kBytesBetweenAcks = std::uint64_t{1} << 20U;

// Never written: as a constant it would lie in the library's file.
std::array<std::byte, kProbeBytes> probe_zeros;  // NOLINT(*-avoid-non-const-global-variables)

}  // namespace

Peer::Peer(PeerServices& services,
           Address address,
           Side side,
           std::uint64_t epoch,
           std::shared_ptr<PeerStatus> status)
    : services_(services),
      address_(std::move(address)),
      side_(side),
      epoch_(epoch),
      status_(std::move(status)),
      changed_(services.context),
      transfers_(*this, services.completions) {}

std::uint64_t Peer::message_bytes_max() const {
  return services_.options.message_bytes_max;
}

std::uint64_t Peer::now_ns() const {
  // Times of a link change no result, so the machine's clock is fine here.
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

void Peer::become_acceptor(std::uint64_t epoch) {
  side_ = Side::acceptor;
  epoch_ = epoch;
  changed_.set();
}

void Peer::suspend(std::string_view reason) {
  const auto session = session_;  // its end takes the member away
  if (session != nullptr) session->close(reason);
}

bool Peer::resume(std::shared_ptr<Stream> stream, std::uint64_t taken_by_other) {
  suspend("a newer connection has taken its place");
  if (!take_ack(taken_by_other) || is_over_) return false;
  frames_.rewind();
  pong_.reset();
  probe_pong_.reset();
  is_ping_due_ = true;
  is_probe_due_ = status_->state.load() != PeerStatus::State::connected;
  is_ack_due_ = true;
  is_established_ = true;
  silent_ = {};
  session_ = std::make_shared<Session>(services_.context, std::move(stream), shared_from_this());
  session_->start();
  return true;
}

void Peer::session_ended(Session& session) {
  if (session_.get() != &session) return;
  if (!is_over_ && !is_leaving_) {
    services_.host.log(LUNA_LOG_WARN,
                       "connection lost peer=" + session.stream().remote() + " reason=\"" +
                           session.stream().reason() + "\"");
  }
  session_.reset();
  changed_.set();
  if (is_leaving_) give_up("it is not wanted any more");  // it has closed at our good-bye
}

void Peer::leave() {
  if (std::exchange(is_leaving_, true)) return;
  if (session_ == nullptr) {
    give_up("it is not wanted any more");
    return;
  }
  Outgoing bye;
  bye.header.type = FrameType::bye;
  bye.header.flags = kFlagAckNow;
  send(std::move(bye));
}

void Peer::tick(std::chrono::milliseconds elapsed) {
  silent_ += std::min(elapsed, 2 * services_.options.heartbeat_interval);
  status_->silent_ms.store(static_cast<std::uint64_t>(silent_.count()), std::memory_order_relaxed);
  if (is_established_ && silent_ > services_.options.peer_timeout) {
    give_up("it has been silent for " + std::to_string(silent_.count()) + " ms");
    return;
  }
  if (session_ == nullptr) return;
  if (silent_ > services_.options.heartbeat_timeout) {
    suspend("silent for " + std::to_string(silent_.count()) + " ms");
    return;
  }
  is_ping_due_ = true;
  wake();
}

void Peer::give_up(const std::string& reason) {
  if (is_over_) return;
  is_over_ = true;
  suspend(reason);
  if (dialing_ != nullptr) dialing_->close(reason);
  transfers_.end(LUNA_UNAVAILABLE);
  frames_.clear();
  const Error error(Code::unavailable,
                    "the peer at " + address_.host + ":" + std::to_string(address_.port) +
                        " is given up: " + reason);
  services_.host.log(is_leaving_ ? LUNA_LOG_DEBUG : LUNA_LOG_WARN, error.message());
  status_->set(PeerStatus::State::over, error);
  services_.groups.peer_is_over(*this);
  changed_.set();
  services_.peer_is_over();
}

void Peer::wake() {
  if (session_ != nullptr) session_->wake();
}

void Peer::send(Outgoing frame) {
  if (is_over_) return;
  frames_.push(std::move(frame));
  wake();
}

void Peer::take_back(std::uint64_t owner) {
  // What was begun cannot be ended on this connection; the next one says it anew.
  if (frames_.take_back(owner)) suspend("memory of a transfer was taken back");
}

void Peer::fill(Batch& batch) {
  const auto add = [&](Header header, std::span<const std::byte> payload) {
    header.epoch = epoch_;
    header.ack = received_;
    batch.add(header, payload);
  };
  const auto timed = [&](FrameType type) { return Header{.type = type, .argument = now_ns()}; };
  if (pong_) add(*pong_, {});
  if (probe_pong_) add(*probe_pong_, {});
  if (is_ping_due_) add(timed(FrameType::ping), {});
  if (is_probe_due_) add(timed(FrameType::probe), probe_zeros);
  pong_.reset();
  probe_pong_.reset();
  is_ping_due_ = is_probe_due_ = false;
  while (batch.has_room()) {
    const Outgoing* const frame = frames_.take();
    if (frame == nullptr) break;
    add(frame->header, frame->payload);
  }
  if (batch.is_empty() && is_ack_due_) add({.type = FrameType::ack}, {});
  if (batch.is_empty()) return;
  is_ack_due_ = false;
  n_not_acknowledged_ = 0;
  bytes_not_acknowledged_ = 0;
}

bool Peer::take_ack(std::uint64_t ack) {
  if (!frames_.acknowledge(ack)) return false;
  if (is_leaving_ && frames_.is_empty()) give_up("it is not wanted any more");
  return true;
}

bool Peer::begin(const Header& header) {
  if (header.epoch != epoch_ || is_handshake(header.type)) {
    suspend("a frame '" + std::string(name_of(header.type)) + "' of epoch " +
            std::to_string(header.epoch) + " that is out of place");
    return false;
  }
  if (!take_ack(header.ack)) {
    suspend("an acknowledgement of frame " + std::to_string(header.ack) + ", never sent");
    return false;
  }
  is_duplicate_ = false;
  return !is_numbered(header.type) || begin_numbered(header);
}

bool Peer::begin_numbered(const Header& header) {
  if (header.sequence > received_ + 1) {
    suspend("frame " + std::to_string(header.sequence) + " came after frame " +
            std::to_string(received_));
    return false;
  }
  is_duplicate_ = header.sequence <= received_;
  bool is_allowed = true;
  if (!is_duplicate_ && header.type == FrameType::data) is_allowed = transfers_.begin_data(header);
  if (!is_duplicate_ && header.type == FrameType::message)
    is_allowed = services_.groups.begin_message(header);
  // Would come again with every connection.
  if (!is_allowed)
    give_up("it sent a frame '" + std::string(name_of(header.type)) + "' that nobody has room for");
  return is_allowed;
}

std::span<std::byte> Peer::place(const Header& header, std::uint64_t n_done) {
  std::span<std::byte> to;
  if (is_duplicate_) {
    to = {};
  } else if (header.type == FrameType::data) {
    to = transfers_.place(header, n_done);
  } else if (header.type == FrameType::message) {
    to = services_.groups.place(header, n_done);
  } else if (header.type == FrameType::join) {
    to = std::span(shape_).subspan(n_done);
  }
  if (!to.empty()) return to;
  const auto n_left = static_cast<std::size_t>(header.n_bytes - n_done);
  return std::span(dropped_).first(std::min(n_left, dropped_.size()));
}

void Peer::finish(const Header& header) {
  if (is_over_) return;
  if (!is_numbered(header.type)) {
    finish_unnumbered(header);
  } else if (!is_duplicate_) {
    received_ = header.sequence;
    ++n_not_acknowledged_;
    bytes_not_acknowledged_ += header.n_bytes;
    finish_numbered(header);
  }
  if ((header.flags & kFlagAckNow) != 0 || n_not_acknowledged_ >= kFramesBetweenAcks ||
      bytes_not_acknowledged_ >= kBytesBetweenAcks) {
    is_ack_due_ = true;
  }
  if (is_ack_due_ || pong_ || probe_pong_) wake();
}

void Peer::finish_unnumbered(const Header& header) {
  if (header.type == FrameType::pong) on_pong(header);
  if (header.type != FrameType::ping && header.type != FrameType::probe) return;
  Header pong;
  pong.type = FrameType::pong;
  pong.argument = header.argument;
  pong.value = header.n_bytes;
  (header.type == FrameType::ping ? pong_ : probe_pong_) = pong;
}

void Peer::finish_numbered(const Header& header) {
  bool is_allowed = true;
  switch (header.type) {
    case FrameType::ready:
      is_allowed = transfers_.on_ready(header);
      break;
    case FrameType::withdraw:
      transfers_.on_withdraw(header);
      break;
    case FrameType::data:
      transfers_.finish_data(header);
      break;
    case FrameType::failed:
      transfers_.on_failed(header);
      break;
    case FrameType::taken:
      transfers_.on_taken(header);
      break;
    case FrameType::bye:
      give_up("it has closed");
      break;
    case FrameType::nothing:
      break;
    default:
      is_allowed = services_.groups.on_frame(*this, header, shape_);
  }
  if (!is_allowed) give_up("its frame '" + std::string(name_of(header.type)) + "' breaks a bound");
}

void Peer::on_pong(const Header& header) {
  const std::uint64_t now = now_ns();
  if (header.argument > now) return;  // no time of ours
  const std::uint64_t ns = now - header.argument;
  if (header.value == 0) {
    status_->note_answer(ns);
    return;
  }
  status_->note_bandwidth(header.value, ns);
  if (status_->state.exchange(PeerStatus::State::connected) != PeerStatus::State::connected) {
    services_.host.log(LUNA_LOG_INFO,
                       "connected peer=" + address_.host + ":" + std::to_string(address_.port) +
                           " latency_us=" + std::to_string(status_->latency_ns.load() / 1000) +
                           " mbytes_per_s=" + std::to_string(status_->bytes_per_s.load() >> 20U));
  }
}

}  // namespace luna::tcp
