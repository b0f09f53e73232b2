#include "communicator.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace luna::shm {

GroupRank::GroupRank(Group group, std::string name, std::uint32_t rank, bool spins)
    : Communicator(rank, group.terms().n_ranks),
      group_(std::move(group)),
      name_(std::move(name)),
      spins_(spins),
      peers_(n_ranks()) {
  for (Peer& peer : peers_) {
    peer.outgoing.reserve(kCommTagsMax);
    peer.incoming.reserve(kCommTagsMax);
  }
}

GroupRank::Outgoing* GroupRank::outgoing(std::uint32_t peer, std::uint32_t tag) {
  std::vector<Outgoing>& known = peers_[peer].outgoing;
  for (Outgoing& lane : known)
    if (lane.tag == tag) return &lane;
  // First use. Kept here from now on: what the peer makes of the table later changes nothing.
  const auto lane = group_.lane(rank(), peer, tag);
  if (!lane || known.size() == kCommTagsMax) return nullptr;
  return &known.emplace_back(Outgoing{tag, RingWriter(*lane->indices, lane->bytes)});
}

GroupRank::Incoming* GroupRank::incoming(std::uint32_t peer, std::uint32_t tag) {
  std::vector<Incoming>& known = peers_[peer].incoming;
  for (Incoming& lane : known)
    if (lane.tag == tag) return &lane;
  const auto lane = group_.lane(peer, rank(), tag);
  if (!lane || known.size() == kCommTagsMax) return nullptr;
  return &known.emplace_back(Incoming{tag, RingReader(*lane->indices, lane->bytes), std::nullopt});
}

luna_status GroupRank::send(std::uint32_t peer,
                            std::uint32_t tag,
                            std::span<const std::byte> data) {
  if (!is_peer(peer) || data.size() > group_.terms().message_bytes_max)
    return LUNA_INVALID_ARGUMENT;
  Outgoing* const lane = outgoing(peer, tag);
  if (lane == nullptr) return LUNA_EXHAUSTED;
  return put(peer, lane->ring, data);
}

luna_status GroupRank::recv(std::uint32_t peer, std::uint32_t tag, std::span<std::byte> data) {
  if (!is_peer(peer) || data.size() > group_.terms().message_bytes_max)
    return LUNA_INVALID_ARGUMENT;
  Incoming* const lane = incoming(peer, tag);
  if (lane == nullptr) return LUNA_EXHAUSTED;
  if (!lane->front_bytes) {
    MessageHead head;
    const luna_status status = take(peer, lane->ring, std::as_writable_bytes(std::span(&head, 1)));
    if (status != LUNA_OK) return status;
    if (head.n_bytes > group_.terms().message_bytes_max) return broken_ = LUNA_CORRUPT;
    lane->front_bytes = head.n_bytes;
  }
  if (*lane->front_bytes != data.size()) return LUNA_INVALID_ARGUMENT;  // the message stays
  const luna_status status = take(peer, lane->ring, data);
  if (status == LUNA_OK) lane->front_bytes.reset();
  return status;
}

luna_status GroupRank::put(std::uint32_t peer, RingWriter& ring, std::span<const std::byte> data) {
  const MessageHead message{data.size()};
  std::span<const std::byte> head = std::as_bytes(std::span(&message, 1));
  const auto put_some = [&](std::span<const std::byte>& rest, std::uint64_t room) {
    const std::size_t n = std::min<std::uint64_t>(room, rest.size());
    ring.put(rest.first(n));
    rest = rest.subspan(n);
    return room - n;
  };
  const auto look = [&]() -> luna_status {
    if (broken_ != LUNA_OK) return broken_;
    if (group_.is_aborted()) return LUNA_CANCELLED;
    if (group_.is_gone(peer)) return LUNA_UNAVAILABLE;
    std::uint64_t room = 0;
    if (const luna_status status = ring.room(room); status != LUNA_OK) return broken_ = status;
    if (room == 0) return LUNA_AGAIN;
    put_some(data, put_some(head, room));
    ring.publish();
    group_.bell_of(peer).ring();
    return head.empty() && data.empty() ? LUNA_OK : LUNA_AGAIN;
  };
  return wait(group_.bell_of(rank()), spins_, look, [&] { return is_lost(peer); });
}

luna_status GroupRank::take(std::uint32_t peer, RingReader& ring, std::span<std::byte> bytes) {
  const auto look = [&]() -> luna_status {
    if (broken_ != LUNA_OK) return broken_;
    if (group_.is_aborted()) return LUNA_CANCELLED;
    // Before the ring: what a peer sent before it went away is delivered.
    const bool was_gone = group_.is_gone(peer);
    std::uint64_t ready = 0;
    if (const luna_status status = ring.ready(ready); status != LUNA_OK) return broken_ = status;
    const std::size_t n = std::min<std::uint64_t>(ready, bytes.size());
    if (n > 0) {
      ring.take(bytes.first(n));
      ring.release();
      group_.bell_of(peer).ring();
      bytes = bytes.subspan(n);
    }
    if (bytes.empty()) return LUNA_OK;
    return was_gone ? LUNA_UNAVAILABLE : LUNA_AGAIN;
  };
  return wait(group_.bell_of(rank()), spins_, look, [&] { return is_lost(peer); });
}

// Every rank lays its piece down where all can read it, they meet once, and each adds all pieces in
// rank order: one exchange, and the same bits everywhere. Two places by turns are enough: who comes
// to a round has seen all arrive at the one before, and they came there after reading the one
// before that.
luna_status GroupRank::all_reduce(const void* in,
                                  void* out,
                                  std::uint64_t n,
                                  std::uint32_t operation) {
  if (operation != LUNA_REDUCE_SUM_F32) return LUNA_UNSUPPORTED;
  if (broken_ != LUNA_OK) return broken_;
  if (group_.is_aborted()) return LUNA_CANCELLED;
  constexpr std::uint64_t kPieceMax = Group::kVectorBytes / sizeof(float);
  for (std::uint64_t first = 0; first < n; first += kPieceMax) {
    const std::size_t piece = std::min(kPieceMax, n - first);
    const std::uint32_t turn = n_rounds_;
    std::memcpy(group_.vector_of(rank(), turn).data(),
                static_cast<const float*>(in) + first,
                piece * sizeof(float));
    if (const luna_status status = meet(); status != LUNA_OK) return status;
    const std::span<float> sum(static_cast<float*>(out) + first, piece);
    for (std::uint32_t from = 0; from < n_ranks(); ++from)
      add_rank(from, group_.vector_of(from, turn), sum);
  }
  return LUNA_OK;
}

/// Returns when all ranks have come to this round; the last one wakes the others together.
luna_status GroupRank::meet() {
  ++n_rounds_;
  const std::uint32_t all = n_rounds_ * n_ranks();  // modulo 2^32, as the counter
  if (group_.n_arrived().fetch_add(1, std::memory_order_acq_rel) + 1 == all) {
    group_.all_arrived().ring();
    return LUNA_OK;
  }
  const auto look = [&]() -> luna_status {
    const std::uint32_t past = group_.n_arrived().load(std::memory_order_acquire) - all;
    // Some ranks may be at the next round already, and at this one none may be but this.
    if (past < n_ranks()) return LUNA_OK;
    if (past <= ~n_ranks()) return LUNA_CORRUPT;
    if (group_.is_aborted()) return LUNA_CANCELLED;
    return group_.has_gone_ranks() ? LUNA_UNAVAILABLE : LUNA_AGAIN;
  };
  const luna_status status =
      wait(group_.all_arrived(), spins_, look, [&] { return is_any_lost(); });
  if (status != LUNA_OK) broken_ = status;  // the rounds of the ranks differ from now on
  return status;
}

bool GroupRank::is_lost(std::uint32_t peer) {
  if (group_.is_gone(peer)) return true;
  std::optional<ProcessWatch>& watch = peers_[peer].process;
  if (!watch) {
    const auto process = group_.process_of(peer);
    if (!process) return false;  // it has not come yet
    watch.emplace(*process);
  }
  return !watch->is_alive();
}

bool GroupRank::is_any_lost() {
  for (std::uint32_t peer = 0; peer < n_ranks(); ++peer)
    if (is_peer(peer) && is_lost(peer)) return true;
  return false;
}

}  // namespace luna::shm
