// Time as an interface, so that the same engine runs in real and in virtual time. Nothing else in
// core reads time or sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

namespace luna {

/// Nanoseconds since an arbitrary start; never goes back.
using Nanoseconds = std::chrono::nanoseconds;

/// Something that wakes the engine thread: the inbox, a device's completion. Any thread may set
/// it; one thread waits on it, through the clock.
class WakeSignal {
 public:
  /// Wakes the waiter, now or at its next wait. [any]
  void set();

 private:
  friend class RealClock;
  friend class VirtualClock;
  std::atomic<std::uint32_t> pending_{0};
  std::atomic<std::uint32_t> sleeping_{0};
};

/// An interface: real time in production, virtual time in simulation and tests.
class Clock {
 public:
  virtual ~Clock() = default;

  /// Time since the clock's start. [any]
  [[nodiscard]] virtual Nanoseconds now() const = 0;

  /// Returns when the signal was set since the last wait, or when `deadline` has come.
  /// Thread  the one thread that owns the signal
  virtual void wait(WakeSignal& signal, std::optional<Nanoseconds> deadline) = 0;
};

/// The machine's monotonic clock. Sleeps at once: a step takes milliseconds, and whoever spins for
/// it takes a core from the threads that compute it.
class RealClock final : public Clock {
 public:
  [[nodiscard]] Nanoseconds now() const override;
  void wait(WakeSignal& signal, std::optional<Nanoseconds> deadline) override;

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Jumps to the deadline when nothing is pending. Single-threaded use: whoever sets a signal does
/// so from the thread that waits.
class VirtualClock final : public Clock {
 public:
  [[nodiscard]] Nanoseconds now() const override {
    return Nanoseconds(now_ns_.load(std::memory_order_relaxed));
  }
  void wait(WakeSignal& signal, std::optional<Nanoseconds> deadline) override;
  void advance(Nanoseconds by) { now_ns_.fetch_add(by.count(), std::memory_order_relaxed); }

 private:
  std::atomic<Nanoseconds::rep> now_ns_{0};  // helpers of the engine read it from their threads
};

}  // namespace luna
