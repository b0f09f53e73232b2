#include "link.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace luna::shm {
namespace {

/// Behind a segment's head.
struct InboxTerms {
  std::uint64_t ring_bytes = 0;
};
constexpr std::uint64_t kTermsAt = sizeof(SegmentHead);
constexpr std::uint64_t kClosedAt = 128;
constexpr std::uint64_t kDoorsAt = 192;
constexpr std::uint64_t kRingsAt = (kDoorsAt + Inbox::kDoors * sizeof(Door) + 4095) / 4096 * 4096;

std::uint64_t inbox_bytes(std::uint64_t ring_bytes) {
  return kRingsAt + Inbox::kDoors * ring_bytes;
}

/// Of a transfer's bytes in one frame: other frames come between, and a head costs little beside.
constexpr std::uint64_t kPieceBytesMax = std::uint64_t{64} * 1024;
constexpr std::uint64_t kPieceBytesMin = 1024;
/// Not yet written; withdrawn transfers leave theirs, so it is more than transfers there can be.
constexpr std::size_t kControlFramesMax = 4 * Link::kTransfersMax;
/// A peer who never stops to write or read must not keep a poll from returning.
constexpr std::uint64_t kBytesPerRead = 1U << 20U;
constexpr int kPiecesPerWrite = 16;
/// How late a peer's death is seen.
constexpr std::chrono::milliseconds kLookInterval{20};

/// Small ones for the latency, then some of a piece for the rate: the quickest of each counts.
constexpr std::uint32_t kSmallPings = 4;
constexpr std::uint32_t kPiecePings = 4;
constexpr std::uint64_t kNoiseShare = 8;  // of a round trip, that one differs from the next by

}  // namespace

Result<Inbox> Inbox::create(std::uint64_t ring_bytes) {
  static_assert(kTermsAt + sizeof(InboxTerms) <= kClosedAt && kDoorsAt % alignof(Door) == 0);
  LUNA_TRY(auto segment, Segment::create(SegmentUse::inbox, inbox_bytes(ring_bytes)));
  const InboxTerms terms{ring_bytes};
  std::memcpy(segment.at(kTermsAt), &terms, sizeof(terms));
  return Inbox(std::move(segment), ring_bytes);
}

Result<Inbox> Inbox::attach(const SegmentAddress& address) {
  LUNA_TRY(auto segment, Segment::attach(address, SegmentUse::inbox));
  InboxTerms terms;
  if (segment.n_bytes() >= kRingsAt) std::memcpy(&terms, segment.at(kTermsAt), sizeof(terms));
  const std::uint64_t size = terms.ring_bytes;
  const bool is_sound = size >= kRingBytesMin && size <= kRingBytesMax && (size & (size - 1)) == 0;
  if (!is_sound || segment.n_bytes() != inbox_bytes(size)) {
    return Error{Code::corrupt,
                 "a peer's segment of " + std::to_string(segment.n_bytes()) +
                     " bytes says that its rings have " + std::to_string(size)};
  }
  return Inbox(std::move(segment), size);
}

Door& Inbox::door(std::uint32_t number) const {
  return *reinterpret_cast<Door*>(segment_.at(kDoorsAt + number * sizeof(Door)));
}

std::span<std::byte> Inbox::ring(std::uint32_t number) const {
  return {segment_.at(kRingsAt + number * ring_bytes_), ring_bytes_};
}

void Inbox::give_back_ring(std::uint32_t number) const {
  segment_.give_back(kRingsAt + number * ring_bytes_, ring_bytes_);
}

std::atomic<std::uint32_t>& Inbox::closed() const {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(segment_.at(kClosedAt));
}

Result<std::uint32_t> Inbox::enter(const Epoch& visitor) const {
  for (std::uint32_t number = 0; number < kDoors; ++number) {
    auto expected = Door::State::free;
    if (!door(number).state.compare_exchange_strong(
            expected, Door::State::taken, std::memory_order_acq_rel)) {
      continue;
    }
    LUNA_TRY(segment_.reserve(kRingsAt + number * ring_bytes_, ring_bytes_));
    door(number).visitor = visitor;
    door(number).state.store(Door::State::open, std::memory_order_release);
    return number;
  }
  return Error{Code::exhausted,
               "the peer has been connected to " + std::to_string(kDoors) +
                   " times, which is all that an endpoint takes in its life"};
}

std::optional<std::uint32_t> Inbox::door_of(const Epoch& visitor) const {
  for (std::uint32_t number = 0; number < kDoors; ++number) {
    const auto state = door(number).state.load(std::memory_order_acquire);
    if (state == Door::State::free) break;
    if (state == Door::State::open && door(number).visitor == visitor) return number;
  }
  return std::nullopt;
}

Link::Link(const Inbox& own, Inbox peer, std::uint32_t door, const ProcessId& process)
    : own_(own),
      peer_(std::move(peer)),
      door_(door),
      process_(process),
      writer_(peer_.door(door).ring, peer_.ring(door)),
      n_pings_left_(kSmallPings + kPiecePings) {}

Link::~Link() {
  peer_.door(door_).state.store(Door::State::left, std::memory_order_release);
}

void Link::post(EndpointState& state, const luna_xfer& transfer) {
  if (is_over_) {
    state.finish(transfer, LUNA_UNAVAILABLE);
    return;
  }
  if (control_.size() >= kControlFramesMax) {  // the peer has long stopped to read
    end(state);
    state.finish(transfer, LUNA_UNAVAILABLE);
    return;
  }
  if (transfer.verb == LUNA_XFER_SEND) {
    const std::uint64_t id = next_id_++;
    sending_.emplace(id, Sending{transfer, 0});
    control_.push_back({FrameKind::offer, transfer.tag, id, transfer.n_bytes, LUNA_OK, 0});
    return;
  }
  const auto offer = std::find_if(offers_.begin(), offers_.end(), [&](const Offer& waiting) {
    return waiting.tag == transfer.tag;
  });
  if (offer == offers_.end()) {
    receives_.push_back(transfer);
    return;
  }
  const Offer met = *offer;
  offers_.erase(offer);
  match(state, met, transfer);
}

void Link::match(EndpointState& state, const Offer& offer, luna_xfer receive) {
  if (offer.n_bytes > receive.n_bytes) {  // the room is too small: both sides learn it
    state.finish(receive, LUNA_INVALID_ARGUMENT);
    control_.push_back({FrameKind::refuse, 0, offer.id, 0, LUNA_INVALID_ARGUMENT, 0});
    return;
  }
  receive.n_bytes = offer.n_bytes;
  receiving_.emplace(offer.id, Receiving{receive, 0});
  control_.push_back({FrameKind::accept, 0, offer.id, 0, LUNA_OK, 0});
}

void Link::advance(EndpointState& state, LinkSpeed& speed) {
  if (is_over_) return;
  // Before the ring: what a peer sent before it went away is delivered.
  const bool has_left = peer_.is_closed() || peer_.door(door_).has_left() ||
                        (reader_ && own_.door(own_door_).has_left()) || is_peer_dead();
  find_reader();
  if (reader_) read(state, speed, has_left ? own_.ring(own_door_).size() : kBytesPerRead);
  if (has_left) end(state);
  if (!is_over_) write(state);
}

void Link::find_reader() {
  if (reader_) return;
  const auto number = own_.door_of(peer_.epoch());
  if (!number) return;
  own_door_ = *number;
  reader_.emplace(own_.door(own_door_).ring, own_.ring(own_door_));
}

bool Link::is_peer_dead() {
  // When to look changes no result but how soon it comes.
  const auto now = Time::now();
  if (now < next_look_) return false;
  next_look_ = now + kLookInterval;
  return !process_.is_alive();
}

/// Frames are written whole, so one that is not there as a whole is broken.
void Link::read(EndpointState& state, LinkSpeed& speed, std::uint64_t n_bytes_max) {
  for (std::uint64_t n_read = 0; n_read < n_bytes_max && !is_over_;) {
    std::uint64_t ready = 0;
    bool is_sound = reader_->ready(ready) == LUNA_OK;
    if (is_sound && ready == 0) return;
    Frame frame;
    is_sound = is_sound && ready >= sizeof(frame);
    if (is_sound) {
      // Copied once; all checks look at the copy.
      reader_->take(std::as_writable_bytes(std::span(&frame, 1)));
      const bool has_bytes = frame.kind == FrameKind::bytes || frame.kind == FrameKind::ping;
      is_sound = !has_bytes || frame.n_bytes <= ready - sizeof(frame);
      n_read += sizeof(frame) + (has_bytes ? frame.n_bytes : 0);
    }
    if (!is_sound || !handle(state, speed, frame)) {
      end(state);
      return;
    }
    reader_->release();
  }
}

bool Link::handle(EndpointState& state, LinkSpeed& speed, const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::offer:
      return handle_offer(state, frame);
    case FrameKind::accept:
      // Of a send that was withdrawn meanwhile: it goes its own way.
      if (sending_.contains(frame.id) && accepted_.size() < kTransfersMax)
        accepted_.push_back(frame.id);
      return true;
    case FrameKind::refuse:
      if (const auto refused = sending_.find(frame.id); refused != sending_.end()) {
        const bool is_status = frame.status < LUNA_OK && frame.status >= LUNA_INTERNAL;
        state.finish(refused->second.transfer, is_status ? frame.status : LUNA_INTERNAL);
        sending_.erase(refused);
      }
      return true;
    case FrameKind::withdraw:
      offers_.remove_if([&](const Offer& offer) { return offer.id == frame.id; });
      if (const auto ended = receiving_.find(frame.id); ended != receiving_.end()) {
        state.finish(ended->second.transfer, LUNA_CANCELLED);
        receiving_.erase(ended);
      }
      return true;
    case FrameKind::bytes:
      return handle_bytes(state, frame);
    case FrameKind::ping:
      reader_->skip(frame.n_bytes);
      return !std::exchange(owes_pong_, true);  // one at a time
    case FrameKind::pong:
      return handle_pong(speed);
  }
  return false;
}

bool Link::handle_offer(EndpointState& state, const Frame& frame) {
  // Numbers go upward, so none comes twice.
  if (offers_.size() + receiving_.size() >= kTransfersMax || frame.id <= last_offer_id_)
    return false;
  last_offer_id_ = frame.id;
  const Offer offer{frame.id, frame.tag, frame.n_bytes};
  const auto receive = std::find_if(receives_.begin(), receives_.end(), [&](const luna_xfer& own) {
    return own.tag == offer.tag;
  });
  if (receive == receives_.end()) {
    offers_.push_back(offer);
    return true;
  }
  const luna_xfer met = *receive;
  receives_.erase(receive);
  match(state, offer, met);
  return true;
}

bool Link::handle_bytes(EndpointState& state, const Frame& frame) {
  const auto found = receiving_.find(frame.id);
  if (found == receiving_.end()) {  // its memory was deregistered meanwhile
    reader_->skip(frame.n_bytes);
    return true;
  }
  Receiving& receiving = found->second;
  if (frame.n_bytes > receiving.transfer.n_bytes - receiving.n_received) return false;
  reader_->take(state.memory_of(receiving.transfer).subspan(receiving.n_received, frame.n_bytes));
  receiving.n_received += frame.n_bytes;
  if (receiving.n_received == receiving.transfer.n_bytes) {
    state.finish(receiving.transfer, LUNA_OK);
    receiving_.erase(found);
  }
  return true;
}

bool Link::handle_pong(LinkSpeed& speed) {
  if (!ping_sent_) return false;
  const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(Time::now() - *ping_sent_);
  const auto took_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(took.count(), 1));
  ping_sent_.reset();
  if (n_pings_left_-- > kPiecePings) {
    round_trip_ns_ = std::min(round_trip_ns_, took_ns);
    speed.latency_ns.store(std::max<std::uint64_t>(round_trip_ns_ / 2, 1));
    return true;
  }
  piece_trip_ns_ = std::min(piece_trip_ns_, took_ns);
  if (n_pings_left_ > 0) return true;
  // A copy that is lost in the noise of the wake-ups says nothing: then what was assumed stays.
  const std::uint64_t copied_ns =
      piece_trip_ns_ > round_trip_ns_ ? piece_trip_ns_ - round_trip_ns_ : 0;
  if (copied_ns > round_trip_ns_ / kNoiseShare)
    speed.bytes_per_ns.store(static_cast<double>(ping_bytes()) / static_cast<double>(copied_ns));
  return true;
}

void Link::write(EndpointState& state) {
  if (owes_pong_ && write_frame({FrameKind::pong, 0, 0, 0, LUNA_OK, 0}, {})) owes_pong_ = false;
  if (n_pings_left_ > 0 && !ping_sent_) write_ping();
  while (!control_.empty() && write_frame(control_.front(), {}))
    control_.pop_front();
  for (int i = 0; i < kPiecesPerWrite && !accepted_.empty() && write_piece(state); ++i) {}
  if (is_over_) end(state);
}

std::uint64_t Link::ping_bytes() const {
  return std::min(kPieceBytesMax, peer_.ring(door_).size() / 2);
}

void Link::write_ping() {
  std::vector<std::byte> bytes;
  if (n_pings_left_ <= kPiecePings) bytes.resize(ping_bytes());
  const auto now = Time::now();
  if (write_frame({FrameKind::ping, 0, 0, bytes.size(), LUNA_OK, 0}, bytes)) ping_sent_ = now;
}

/// Writes a frame with the bytes behind it, whole or not at all.
bool Link::write_frame(const Frame& frame, std::span<const std::byte> bytes) {
  std::uint64_t room = 0;
  if (writer_.room(room) != LUNA_OK) is_over_ = true;
  if (is_over_ || room < sizeof(frame) + bytes.size()) return false;
  writer_.put(std::as_bytes(std::span(&frame, 1)));
  writer_.put(bytes);
  writer_.publish();
  return true;
}

/// The next piece of the first accepted send. False: no room.
bool Link::write_piece(EndpointState& state) {
  const std::uint64_t id = accepted_.front();
  const auto found = sending_.find(id);
  if (found == sending_.end()) {  // withdrawn, refused, or accepted twice
    accepted_.pop_front();
    return true;
  }
  Sending& sending = found->second;
  std::uint64_t room = 0;
  if (writer_.room(room) != LUNA_OK) is_over_ = true;
  const std::uint64_t n_left = sending.transfer.n_bytes - sending.n_sent;
  if (is_over_ || room < sizeof(Frame) + std::min(n_left, kPieceBytesMin)) return false;
  const std::uint64_t n_bytes = std::min({n_left, room - sizeof(Frame), kPieceBytesMax});
  const auto piece = state.memory_of(sending.transfer).subspan(sending.n_sent, n_bytes);
  if (!write_frame({FrameKind::bytes, 0, id, n_bytes, LUNA_OK, 0}, piece)) return false;
  sending.n_sent += n_bytes;
  if (sending.n_sent == sending.transfer.n_bytes) {
    state.finish(sending.transfer, LUNA_OK);
    sending_.erase(found);
    accepted_.pop_front();
  }
  return true;
}

void Link::cancel(EndpointState& state, std::uint64_t key) {
  std::erase_if(sending_, [&](const auto& entry) {
    if (entry.second.transfer.key != key) return false;
    state.finish(entry.second.transfer, LUNA_CANCELLED);
    control_.push_back({FrameKind::withdraw, 0, entry.first, 0, LUNA_OK, 0});
    return true;
  });
  receives_.remove_if([&](const luna_xfer& transfer) {
    if (transfer.key != key) return false;
    state.finish(transfer, LUNA_CANCELLED);
    return true;
  });
  std::erase_if(receiving_, [&](const auto& entry) {
    if (entry.second.transfer.key != key) return false;
    state.finish(entry.second.transfer, LUNA_CANCELLED);
    control_.push_back({FrameKind::refuse, 0, entry.first, 0, LUNA_CANCELLED, 0});
    return true;
  });
}

void Link::end(EndpointState& state) {
  is_over_ = true;
  for (const auto& [id, sending] : sending_)
    state.finish(sending.transfer, LUNA_UNAVAILABLE);
  for (const luna_xfer& transfer : receives_)
    state.finish(transfer, LUNA_UNAVAILABLE);
  for (const auto& [id, receiving] : receiving_)
    state.finish(receiving.transfer, LUNA_UNAVAILABLE);
  sending_.clear();
  receives_.clear();
  receiving_.clear();
  offers_.clear();
  control_.clear();
  accepted_.clear();
  peer_.door(door_).state.store(Door::State::left, std::memory_order_release);
  if (!reader_) return;
  own_.door(own_door_).state.store(Door::State::left, std::memory_order_release);
  own_.give_back_ring(own_door_);
}

}  // namespace luna::shm
