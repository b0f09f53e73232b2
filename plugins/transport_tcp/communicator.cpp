#include "communicator.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace luna::tcp {
namespace {

/// Tells a sender that its uncopied message has arrived. Lives on the sender's stack.
class Arrival final : public AckListener {
 public:
  Arrival(std::mutex& mutex, std::condition_variable& changed) : mutex_(mutex), changed_(changed) {}
  void on_ack() override {
    const std::lock_guard lock(mutex_);
    has_arrived_ = true;
    changed_.notify_all();
  }
  /// Under the mutex.
  [[nodiscard]] bool has_arrived() const { return has_arrived_; }

 private:
  std::mutex& mutex_;
  std::condition_variable& changed_;
  bool has_arrived_ = false;
};

}  // namespace

GroupRank::GroupRank(Endpoint& endpoint, std::shared_ptr<Group> group, std::uint32_t rank)
    : Communicator(rank, group->n_ranks()),
      endpoint_(endpoint),
      group_(std::move(group)),
      reduce_(rank, group_->n_ranks()) {}

luna_status GroupRank::send(std::uint32_t peer,
                            std::uint32_t tag,
                            std::span<const std::byte> data) {
  if (!is_peer(peer) || data.size() > group_->message_bytes_max()) return LUNA_INVALID_ARGUMENT;
  return send_on({rank(), peer, tag, false}, data);
}

luna_status GroupRank::recv(std::uint32_t peer, std::uint32_t tag, std::span<std::byte> data) {
  if (!is_peer(peer) || data.size() > group_->message_bytes_max()) return LUNA_INVALID_ARGUMENT;
  return receive_on({peer, rank(), tag, false}, data);
}

luna_status GroupRank::all_reduce(const void* in,
                                  void* out,
                                  std::uint64_t n,
                                  std::uint32_t operation) {
  if (operation != LUNA_REDUCE_SUM_F32) return LUNA_UNSUPPORTED;
  {
    const std::lock_guard lock(group_->mutex_);
    if (group_->is_aborted_) return LUNA_CANCELLED;
  }
  return reduce_.sum_f32(*this, static_cast<const float*>(in), static_cast<float*>(out), n);
}

luna_status GroupRank::send(std::uint32_t peer, std::span<const std::byte> bytes) {
  return send_on({rank(), peer, 0, true}, bytes);
}

luna_status GroupRank::receive(std::uint32_t peer, std::span<std::byte> bytes) {
  return receive_on({peer, rank(), 0, true}, bytes);
}

luna_status GroupRank::send_on(const LaneKey& key, std::span<const std::byte> data) {
  std::unique_lock lock(group_->mutex_);
  const std::uint64_t copied_bytes_max =
      std::min(kCopiedBytesMax,
               key.is_reduce ? ReduceOverChannels::kPieceBytes : group_->message_bytes_max_);
  LaneRing* const lane = group_->ring(group_->outboxes_, key, copied_bytes_max);
  if (lane == nullptr) return LUNA_EXHAUSTED;
  luna_status over = LUNA_OK;
  own().changed.wait(lock, [&] {
    over = group_->over(key.to);
    return over != LUNA_OK ||
           (group_->ranks_[key.to].state == Group::State::present && !lane->is_full());
  });
  if (over != LUNA_OK) return over;

  Outgoing frame;
  frame.header.type = FrameType::message;
  frame.header.argument = group_->id();
  frame.header.value = own().opening;
  key.name(frame.header);
  frame.payload = data;
  const std::uint32_t n = lane->n_in++;
  if (data.size() > copied_bytes_max) return send_uncopied(lock, std::move(frame), key);
  if (!data.empty()) std::memcpy(lane->slot(n), data.data(), data.size());
  frame.payload = {lane->slot(n), data.size()};
  frame.keep = group_;
  // Under the lock, or a later message could pass this one: not with one call at a time.
  lock.unlock();
  endpoint_.inlet().push(group_->out(key.to), std::move(frame));
  return LUNA_OK;
}

luna_status GroupRank::send_uncopied(std::unique_lock<std::mutex>& lock,
                                     Outgoing frame,
                                     const LaneKey& key) {
  Arrival arrival(group_->mutex_, own().changed);
  const std::uint64_t owner = endpoint_.next_number();
  frame.owner = owner;
  frame.listener = &arrival;
  frame.header.flags |= kFlagAckNow;
  const std::shared_ptr<Peer>& out = group_->out(key.to);
  endpoint_.inlet().push(out, std::move(frame));
  luna_status over = LUNA_OK;
  own().changed.wait(lock, [&] {
    over = group_->over(key.to);
    return over != LUNA_OK || arrival.has_arrived();
  });
  if (arrival.has_arrived()) return LUNA_OK;
  lock.unlock();
  // The caller's memory is his again when this returns.
  endpoint_.call([&] {
    endpoint_.inlet().drain();
    out->take_back(owner);
  });
  return over;
}

luna_status GroupRank::receive_on(const LaneKey& key, std::span<std::byte> data) {
  LaneRing* const lane = group_->inbox(key);
  if (lane == nullptr) return LUNA_EXHAUSTED;
  std::unique_lock lock(group_->mutex_);
  luna_status over = LUNA_OK;
  own().changed.wait(lock, [&] {
    over = group_->over(key.from);
    return over != LUNA_OK || !lane->is_empty();
  });
  // A message that has arrived is delivered even when its sender has gone since.
  if (over == LUNA_CANCELLED || lane->is_empty()) return over;
  const std::uint32_t n = lane->n_out;
  if (lane->n_bytes[n % kLaneDepth] != data.size()) return LUNA_INVALID_ARGUMENT;
  Outgoing credit;
  credit.header.type = FrameType::credit;
  credit.header.argument = group_->id();
  credit.header.value = group_->ranks_[key.from].opening;
  key.name(credit.header);
  auto via = lane->via;
  lock.unlock();
  if (!data.empty()) std::memcpy(data.data(), lane->slot(n), data.size());
  lock.lock();
  ++lane->n_out;
  lock.unlock();
  endpoint_.inlet().push(std::move(via), std::move(credit));
  return LUNA_OK;
}

}  // namespace luna::tcp
