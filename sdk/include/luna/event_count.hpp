// A number that threads wait on until it changes.
//
// std::atomic::wait would do, but libstdc++ 12 yields its core four times before it sleeps: on a
// busy machine each yield lasts as long as the other programs' time slices, many times a barrier.
// It also looks for sleepers without ordering that after a release store, which can lose a wake-up.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <unistd.h>

namespace luna {

/// Counts events. A resource: must outlive every call on it, that of raise() included. [any]
class EventCount {
 public:
  EventCount() = default;
  EventCount(const EventCount&) = delete;
  EventCount& operator=(const EventCount&) = delete;

  /// Read it before looking for work; if there is none, wait for it to change.
  [[nodiscard]] std::uint32_t value() const { return value_.load(std::memory_order_acquire); }
  /// What this thread wrote before is visible to whoever sees the new value.
  void raise() {
    // Both sequentially consistent: either we see the sleeper, or it sees the new value.
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (n_sleepers_.load(std::memory_order_seq_cst) != 0) futex(FUTEX_WAKE_PRIVATE, INT_MAX);
  }
  /// Returns once the value is no longer `seen`; gives the core away at once.
  void sleep(std::uint32_t seen) {
    n_sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (value_.load(std::memory_order_seq_cst) == seen)
      futex(FUTEX_WAIT_PRIVATE, seen);
    n_sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
  /// As sleep(), but looks for a moment first: for what should come within microseconds.
  void spin_then_sleep(std::uint32_t seen) {
    const auto start = std::chrono::steady_clock::now();
    do {
      for (int i = 0; i < kPausesPerLook; ++i) {
        if (value() != seen) return;
        pause();
      }
    } while (std::chrono::steady_clock::now() - start < kSpin);
    sleep(seen);
  }

 private:
  // A meeting of threads that all run takes a few microseconds; a longer wait means that a peer
  // lost its core or that there is no work, and then spinning takes time from whoever has.
  static constexpr std::chrono::microseconds kSpin{50};
  static constexpr int kPausesPerLook = 32;  // the clock costs about as much as the pauses

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  /// Its result needs no look: a wait that ends early looks at the value again.
  void futex(int operation, std::uint32_t number) {
    syscall(SYS_futex, &value_, operation, number, nullptr, nullptr, 0);
  }

  std::atomic<std::uint32_t> value_{0};
  std::atomic<std::uint32_t> n_sleepers_{0};
  static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
};

}  // namespace luna
