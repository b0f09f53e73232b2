#include "resend_queue.hpp"

#include <luna/abi/types.h>

#include <algorithm>
#include <utility>

namespace luna::tcp {

void ResendQueue::push(Outgoing frame) {
  frame.header.sequence = next_sequence_++;
  frames_.push_back(std::move(frame));
}

const Outgoing* ResendQueue::take() {
  return n_taken_ < frames_.size() ? &frames_[n_taken_++] : nullptr;
}

bool ResendQueue::acknowledge(std::uint64_t sequence) {
  if (sequence >= next_sequence_) return false;
  while (!frames_.empty() && frames_.front().header.sequence <= sequence) {
    AckListener* const listener = frames_.front().listener;
    frames_.pop_front();
    n_taken_ -= std::min<std::size_t>(n_taken_, 1);
    n_written_ -= std::min<std::size_t>(n_written_, 1);
    if (listener != nullptr) listener->on_ack();
  }
  return true;
}

bool ResendQueue::take_back(std::uint64_t owner) {
  bool is_half_written = false;
  for (std::size_t i = 0; i < frames_.size(); ++i) {
    Outgoing& frame = frames_[i];
    if (frame.owner != owner || frame.owner == 0) continue;
    is_half_written = is_half_written || (i >= n_written_ && i < n_taken_);
    frame.payload = {};
    frame.listener = nullptr;
    frame.owner = 0;
    // A receive that met it must not wait for ever; if it has come already, this says nothing new.
    const bool is_data = frame.header.type == FrameType::data;
    frame.header.type = is_data ? FrameType::failed : FrameType::nothing;
    frame.header.value = is_data ? static_cast<std::uint64_t>(LUNA_CANCELLED) : 0;
    frame.header.flags &= kFlagAckNow;
  }
  return is_half_written;
}

void ResendQueue::clear() {
  frames_.clear();
  rewind();
}

}  // namespace luna::tcp
