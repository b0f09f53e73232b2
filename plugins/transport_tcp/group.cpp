#include "group.hpp"

#include "peer.hpp"

#include <algorithm>
#include <utility>

namespace luna::tcp {

void LaneKey::name(Header& header) const {
  header.lane = from << 16U | to;
  header.tag = tag;
  if (is_reduce) header.flags |= kFlagReduce;
}

LaneKey LaneKey::of(const Header& header) {
  return {header.lane >> 16U, header.lane & 0xFFFFU, header.tag, (header.flags & kFlagReduce) != 0};
}

Group::Group(std::uint64_t id,
             std::string name,
             std::uint64_t message_bytes_max,
             std::vector<std::shared_ptr<Peer>> outs)
    : id_(id), name_(std::move(name)), message_bytes_max_(message_bytes_max), ranks_(outs.size()) {
  for (std::size_t rank = 0; rank < outs.size(); ++rank)
    ranks_[rank].out = std::move(outs[rank]);
}

std::uint64_t Group::opening(std::uint32_t rank) const {
  const std::lock_guard lock(mutex_);
  return ranks_[rank].opening;
}

// ---- membership ---------------------------------------------------------------------------------

Result<void> Group::open_local(std::uint32_t rank, std::uint64_t opening) {
  const std::lock_guard lock(mutex_);
  if (is_aborted_) {
    return Error{Code::unavailable,
                 "group " + name_ + " was aborted and its ranks have not all closed"};
  }
  Rank& own = ranks_[rank];
  if (own.state != State::absent) {
    return Error{Code::invalid_argument,
                 "rank " + std::to_string(rank) + " of group " + name_ +
                     (own.state == State::present && own.is_local
                          ? " is open already"
                          : " has closed or is elsewhere; the others must close first")};
  }
  own.state = State::present;
  own.is_local = true;
  own.opening = opening;
  wake_local();
  return {};
}

bool Group::close_local(std::uint32_t rank) {
  const std::lock_guard lock(mutex_);
  ranks_[rank].is_local = false;
  return std::none_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.is_local; });
}

bool Group::join(std::uint32_t rank, std::uint64_t opening) {
  const std::lock_guard lock(mutex_);
  Rank& other = ranks_[rank];
  if (other.state != State::absent) return false;
  other.state = State::present;
  other.opening = opening;
  wake_local();
  return true;
}

void Group::leave(std::uint32_t rank, std::uint64_t opening) {
  const std::lock_guard lock(mutex_);
  if (ranks_[rank].opening != opening) return;
  ranks_[rank].state = State::gone;
  wake_local();
}

void Group::peer_is_over(const Peer& peer) {
  const std::lock_guard lock(mutex_);
  for (Rank& rank : ranks_)
    if (rank.out.get() == &peer) rank.state = State::gone;
  wake_local();
}

bool Group::abort() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_aborted_, true)) return false;
  wake_local();
  return true;
}

luna_status Group::over(std::uint32_t peer) const {
  if (is_aborted_) return LUNA_CANCELLED;
  return ranks_[peer].state == State::gone ? LUNA_UNAVAILABLE : LUNA_OK;
}

void Group::wake_local() {
  for (Rank& rank : ranks_)
    rank.changed.notify_all();
}

// ---- lanes --------------------------------------------------------------------------------------

LaneRing* Group::ring(std::map<LaneKey, LaneRing>& rings,
                      const LaneKey& key,
                      std::uint64_t bytes_max) {
  const auto found = rings.find(key);
  if (found != rings.end()) return &found->second;
  const auto n_tags = std::count_if(rings.begin(), rings.end(), [&](const auto& entry) {
    const LaneKey& other = entry.first;
    return other.from == key.from && other.to == key.to && !other.is_reduce;
  });
  if (!key.is_reduce && n_tags >= static_cast<std::ptrdiff_t>(kCommTagsMax)) return nullptr;
  return &rings.try_emplace(key, bytes_max).first->second;
}

LaneRing* Group::inbox(const LaneKey& key) {
  const std::lock_guard lock(mutex_);
  return ring(inboxes_, key, key.is_reduce ? ReduceOverChannels::kPieceBytes : message_bytes_max_);
}

// Frames of a rank that has closed since, or to one, are dropped: they belong to an earlier group.
bool Group::is_current(const Header& header) const {
  const LaneKey key = LaneKey::of(header);
  return key.from < ranks_.size() && key.to < ranks_.size() &&
         ranks_[key.from].opening == header.value && ranks_[key.from].state != State::absent &&
         ranks_[key.to].is_local;
}

bool Group::begin_message(const Header& header) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_current(header)) return true;
  }
  const LaneRing* const lane = inbox(LaneKey::of(header));
  const std::lock_guard lock(mutex_);
  return lane != nullptr && !lane->is_full() && header.n_bytes <= lane->slot_bytes;
}

std::span<std::byte> Group::place(const Header& header, std::uint64_t n_done) {
  const std::lock_guard lock(mutex_);
  if (!is_current(header)) return {};
  const LaneRing& lane = inboxes_.at(LaneKey::of(header));
  return {lane.slot(lane.n_in) + n_done, static_cast<std::size_t>(header.n_bytes - n_done)};
}

void Group::finish_message(const Header& header, std::shared_ptr<Peer> via) {
  const std::lock_guard lock(mutex_);
  if (!is_current(header)) return;
  const LaneKey key = LaneKey::of(header);
  LaneRing& lane = inboxes_.at(key);
  lane.n_bytes[lane.n_in % kLaneDepth] = header.n_bytes;
  lane.via = std::move(via);
  ++lane.n_in;
  ranks_[key.to].changed.notify_all();
}

bool Group::on_credit(const Header& header) {
  const std::lock_guard lock(mutex_);
  const LaneKey key = LaneKey::of(header);
  if (key.from >= ranks_.size() || ranks_[key.from].opening != header.value) return true;
  const auto lane = outboxes_.find(key);
  if (lane == outboxes_.end() || lane->second.is_empty()) return false;
  ++lane->second.n_out;
  ranks_[key.from].changed.notify_all();
  return true;
}

}  // namespace luna::tcp
