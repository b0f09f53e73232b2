// What callers on other threads see of a peer.
#pragma once

#include <luna/result.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace luna::tcp {

/// Written by the I/O thread, read by anybody. [any]
struct PeerStatus {
  enum class State : std::uint32_t { idle, connecting, connected, failed, over };

  std::atomic<State> state{State::idle};
  std::atomic<std::uint64_t> latency_ns{0};   ///< half the way there and back
  std::atomic<std::uint64_t> bytes_per_s{0};  ///< of large transfers
  std::atomic<std::uint64_t> silent_ms{0};    ///< since it was heard

  /// Why it failed or is over.
  void set(State to, const Error& reason) {
    {
      const std::lock_guard lock(mutex_);
      reason_ = reason;
    }
    state.store(to, std::memory_order_release);
  }
  [[nodiscard]] Error reason() const {
    const std::lock_guard lock(mutex_);
    return reason_;
  }

  /// A ping was answered after `ns`. [io]
  void note_answer(std::uint64_t ns) { mix(latency_ns, ns / 2); }
  /// Bytes were taken within `ns`, the way there and back included. [io]
  void note_bandwidth(std::uint64_t n_bytes, std::uint64_t ns) {
    // The way is no part of it, but an estimate of that may be too long.
    const std::uint64_t way_ns = std::min(2 * latency_ns.load(), ns / 2);
    const double seconds = static_cast<double>(std::max<std::uint64_t>(ns - way_ns, 1)) / 1e9;
    mix(bytes_per_s, static_cast<std::uint64_t>(static_cast<double>(n_bytes) / seconds));
  }

 private:
  // A quarter of what is new: a single late answer does not move an estimate by much.
  static void mix(std::atomic<std::uint64_t>& estimate, std::uint64_t now) {
    const std::uint64_t before = estimate.load(std::memory_order_relaxed);
    estimate.store(before == 0 ? now : before - before / 4 + now / 4, std::memory_order_relaxed);
  }

  mutable std::mutex mutex_;
  Error reason_{Code::unavailable, "the peer has closed"};
};

}  // namespace luna::tcp
