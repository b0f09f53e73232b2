#include "core/base/clock.hpp"

#include "core/base/assert.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>

#include <algorithm>
#include <ctime>
#include <unistd.h>

namespace luna {
namespace {

void futex_wait(std::atomic<std::uint32_t>& word,
                std::uint32_t expected,
                std::optional<Nanoseconds> timeout) {
  timespec spec{};
  if (timeout) {
    spec.tv_sec = static_cast<time_t>(timeout->count() / 1'000'000'000);
    spec.tv_nsec = static_cast<long>(timeout->count() % 1'000'000'000);
  }
  // The kernel reads the word itself; std::atomic<uint32_t> is exactly that word.
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, timeout ? &spec : nullptr, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace

void WakeSignal::set() {
  pending_.store(1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) != 0) futex_wake(pending_);
}

Nanoseconds RealClock::now() const {
  return std::chrono::steady_clock::now() - start_;
}

void RealClock::wait(WakeSignal& signal, std::optional<Nanoseconds> deadline) {
  while (signal.pending_.exchange(0, std::memory_order_acq_rel) == 0) {
    const Nanoseconds t = now();
    if (deadline && t >= *deadline) return;
    signal.sleeping_.store(1, std::memory_order_seq_cst);
    std::optional<Nanoseconds> timeout;
    if (deadline) timeout = std::max(*deadline - t, Nanoseconds{1});
    futex_wait(signal.pending_, 0, timeout);
    signal.sleeping_.store(0, std::memory_order_relaxed);
  }
}

void VirtualClock::wait(WakeSignal& signal, std::optional<Nanoseconds> deadline) {
  if (signal.pending_.exchange(0) != 0) return;
  // Without a deadline nothing could ever happen again: the simulated world has ended wrongly.
  LUNA_VERIFY(deadline.has_value());
  now_ns_.store(std::max(now(), *deadline).count(), std::memory_order_relaxed);
}

}  // namespace luna
