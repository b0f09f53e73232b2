#include "peer_numbers.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace luna::tcp {

luna_status PeerNumbers::connect(const Address& address, std::uint32_t& number, luna_err* err) {
  using State = PeerStatus::State;
  Registry& registry = endpoint_.registry();
  const std::lock_guard lock(mutex_);
  auto known = std::find_if(numbers_.begin(), numbers_.end(), [&](const Numbered& n) {
    return n.endpoint == address.endpoint;
  });
  const auto status =
      known != numbers_.end() ? known->status : registry.status_of(address.endpoint);
  State seen = status->state.load(std::memory_order_acquire);
  switch (seen) {
    case State::connected:
      if (known == numbers_.end()) known = numbers_.insert(known, {address.endpoint, status});
      number = static_cast<std::uint32_t>(known - numbers_.begin());
      return LUNA_OK;
    case State::connecting:
      return LUNA_AGAIN;
    case State::over:
      // Told once where no number was given; then the next call begins anew.
      if (known == numbers_.end()) registry.forget_status(address.endpoint);
      return report(err, status->reason());
    case State::failed: {
      const Error reason = status->reason();
      // It is tried all the time, and may have come about meanwhile.
      status->state.compare_exchange_strong(seen, State::connecting);
      return report(err, reason);
    }
    case State::idle:
      break;
  }
  // Unless the other side has connected meanwhile.
  status->state.compare_exchange_strong(seen, State::connecting);
  endpoint_.post([&registry, status, to = address] {
    if (const auto reached = registry.reach(to); !reached)
      status->set(State::failed, reached.error());
  });
  return LUNA_AGAIN;
}

Result<std::uint64_t> PeerNumbers::endpoint_of(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  if (number >= numbers_.size()) {
    return Error{Code::invalid_argument, "peer " + std::to_string(number) + " is not connected"};
  }
  const Numbered& peer = numbers_[number];
  const bool is_over =
      peer.status->state.load(std::memory_order_acquire) == PeerStatus::State::over;
  return is_over ? std::uint64_t{0} : peer.endpoint;
}

std::uint64_t PeerNumbers::drop(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  if (number >= numbers_.size()) return 0;
  const std::uint64_t endpoint = std::exchange(numbers_[number].endpoint, 0);
  if (endpoint != 0) endpoint_.registry().forget_status(endpoint);
  return endpoint;
}

std::uint64_t PeerNumbers::estimate_ns(std::uint32_t number, std::uint64_t n_bytes) const {
  std::uint64_t latency_ns = kLatencyNs;
  double bytes_per_ns = kBytesPerNs;
  const std::lock_guard lock(mutex_);
  if (number < numbers_.size() && numbers_[number].endpoint != 0) {
    const PeerStatus& status = *numbers_[number].status;
    const std::uint64_t silent_ms = status.silent_ms.load(std::memory_order_relaxed);
    latency_ns = status.latency_ns.load(std::memory_order_relaxed);
    bytes_per_ns = static_cast<double>(status.bytes_per_s.load(std::memory_order_relaxed)) / 1e9;
    // Whoever has been silent for so long will hardly answer sooner.
    const auto limit_ms = endpoint_.options().heartbeat_timeout.count();
    if (silent_ms > static_cast<std::uint64_t>(limit_ms)) latency_ns += silent_ms * 1'000'000;
  }
  const double ns = static_cast<double>(n_bytes) / std::max(bytes_per_ns, kBytesPerNsMin);
  return latency_ns + static_cast<std::uint64_t>(ns);
}

}  // namespace luna::tcp
