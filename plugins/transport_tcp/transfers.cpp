#include "transfers.hpp"

#include "peer.hpp"

#include <algorithm>
#include <string>

namespace luna::tcp {
namespace {

luna_status status_of(std::uint64_t value) {
  const auto status = static_cast<luna_status>(static_cast<std::int64_t>(value));
  return status >= LUNA_INTERNAL && status <= LUNA_OK ? status : LUNA_INTERNAL;
}

// Shorter ones take about as long as the way there and back, so they tell nothing.
constexpr std::uint64_t kMeasuredBytesMin = kProbeBytes;

}  // namespace

Result<void> Completions::open(std::size_t n) {
  const std::lock_guard lock(mutex_);
  if (n_open_ + n > kTransfersMax) {
    return Error{Code::exhausted,
                 std::to_string(n_open_) + " transfers are open and " + std::to_string(n) +
                     " more were posted: at most " + std::to_string(kTransfersMax)};
  }
  n_open_ += n;
  return {};
}

void Completions::finish(std::uint64_t cookie, luna_status status, std::uint64_t n_bytes) {
  const std::lock_guard lock(mutex_);
  done_.push_back({cookie, status, 0, status == LUNA_OK ? n_bytes : 0});
}

std::uint32_t Completions::poll(std::span<luna_xfer_done> done) {
  const std::lock_guard lock(mutex_);
  std::uint32_t n = 0;
  while (n < done.size() && !done_.empty()) {
    done[n++] = done_.front();
    done_.pop_front();
  }
  n_open_ -= n;
  return n;
}

void Transfers::finish(const Transfer& transfer, luna_status status, std::uint64_t n_bytes) {
  completions_.finish(transfer.cookie, status, n_bytes);
}

void Transfers::send_frame(FrameType type,
                           std::uint64_t id,
                           std::uint64_t value,
                           std::uint32_t tag) {
  Outgoing frame;
  frame.header.type = type;
  frame.header.argument = id;
  frame.header.value = value;
  frame.header.tag = tag;
  peer_.send(std::move(frame));
}

void Transfers::post_send(const Transfer& send) {
  if (!meet(send)) sends_.push_back(send);
}

bool Transfers::meet(const Transfer& send) {
  const auto ready = std::find_if(
      readies_.begin(), readies_.end(), [&](const Ready& r) { return r.tag == send.tag; });
  if (ready == readies_.end()) return false;
  const Ready met = *ready;
  readies_.erase(ready);
  fly(send, met);
  return true;
}

void Transfers::post_receive(const Transfer& receive) {
  const std::uint64_t id = next_id_++;
  receives_[id] = receive;
  send_frame(FrameType::ready, id, receive.n_bytes, receive.tag);
}

void Transfers::fly(const Transfer& send, const Ready& ready) {
  if (send.n_bytes > ready.n_bytes_max) {  // the receiver's room is too small
    finish(send, LUNA_INVALID_ARGUMENT, 0);
    send_frame(FrameType::failed, ready.id, static_cast<std::uint64_t>(LUNA_INVALID_ARGUMENT));
    return;
  }
  flying_[ready.id] = {send, peer_.now_ns(), flying_.empty()};
  Outgoing frame;
  frame.header.type = FrameType::data;
  frame.header.argument = ready.id;
  frame.payload = {send.begin, send.n_bytes};
  frame.owner = send.key;
  peer_.send(std::move(frame));
}

void Transfers::forget_memory(std::uint64_t key) {
  std::erase_if(sends_, [&](const Transfer& send) {
    if (send.key != key) return false;
    finish(send, LUNA_CANCELLED, 0);
    return true;
  });
  std::erase_if(flying_, [&](const auto& entry) {
    if (entry.second.send.key != key) return false;
    finish(entry.second.send, LUNA_CANCELLED, 0);
    return true;
  });
  peer_.take_back(key);
  std::erase_if(receives_, [&](const auto& entry) {
    if (entry.second.key != key) return false;
    finish(entry.second, LUNA_CANCELLED, 0);
    send_frame(FrameType::withdraw, entry.first, 0);
    return true;
  });
}

void Transfers::end(luna_status status) {
  for (const Transfer& send : sends_)
    finish(send, status, 0);
  for (const auto& [id, flying] : flying_) {
    peer_.take_back(flying.send.key);
    finish(flying.send, status, 0);
  }
  for (const auto& [id, receive] : receives_) {
    send_frame(FrameType::withdraw, id, 0);
    finish(receive, status, 0);
  }
  sends_.clear();
  flying_.clear();
  receives_.clear();
}

bool Transfers::on_ready(const Header& header) {
  const Ready ready{header.argument, header.value, header.tag};
  if (flying_.contains(ready.id)) return false;
  const auto send = std::find_if(
      sends_.begin(), sends_.end(), [&](const Transfer& s) { return s.tag == ready.tag; });
  if (send == sends_.end()) {
    readies_.push_back(ready);
    return readies_.size() <= Completions::kTransfersMax;
  }
  const Transfer met = *send;
  sends_.erase(send);
  fly(met, ready);
  return true;
}

void Transfers::on_withdraw(const Header& header) {
  std::erase_if(readies_, [&](const Ready& ready) { return ready.id == header.argument; });
}

bool Transfers::begin_data(const Header& header) {
  const auto receive = receives_.find(header.argument);
  return receive == receives_.end() || header.n_bytes <= receive->second.n_bytes;
}

std::span<std::byte> Transfers::place(const Header& header, std::uint64_t n_done) {
  const auto receive = receives_.find(header.argument);
  if (receive == receives_.end()) return {};  // withdrawn meanwhile
  return {receive->second.begin + n_done, static_cast<std::size_t>(header.n_bytes - n_done)};
}

void Transfers::finish_data(const Header& header) {
  const auto receive = receives_.find(header.argument);
  const luna_status status = receive == receives_.end() ? LUNA_CANCELLED : LUNA_OK;
  if (status == LUNA_OK) {
    finish(receive->second, LUNA_OK, header.n_bytes);
    receives_.erase(receive);
  }
  send_frame(FrameType::taken, header.argument, static_cast<std::uint64_t>(status));
}

void Transfers::on_failed(const Header& header) {
  const auto receive = receives_.find(header.argument);
  if (receive == receives_.end()) return;
  finish(receive->second, status_of(header.value), 0);
  receives_.erase(receive);
}

void Transfers::on_taken(const Header& header) {
  const auto found = flying_.find(header.argument);
  if (found == flying_.end()) return;  // its memory was taken back meanwhile
  const Flying flying = found->second;
  flying_.erase(found);
  const luna_status status = status_of(header.value);
  if (status == LUNA_CANCELLED) {  // the receive was withdrawn while the bytes were on their way
    if (!meet(flying.send)) sends_.push_front(flying.send);
    return;
  }
  if (flying.is_alone && flying.send.n_bytes >= kMeasuredBytesMin)
    peer_.status().note_bandwidth(flying.send.n_bytes, peer_.now_ns() - flying.start_ns);
  finish(flying.send, status, flying.send.n_bytes);
}

}  // namespace luna::tcp
