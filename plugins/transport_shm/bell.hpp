// Waking threads of other processes, and waiting to be woken.
#pragma once

#include <luna/abi/types.h>

#include <linux/futex.h>
#include <sys/syscall.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>
#include <unistd.h>

namespace luna::shm {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
                  sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
                  std::atomic<std::uint64_t>::is_always_lock_free,
              "atomics in shared memory are plain words");

/// What threads sleep on. Lies in shared memory, where zeros are a fresh one; a broken one costs
/// wake-ups or a sleep of kSleep, nothing else.
class Bell {
 public:
  /// The longest sleep: how late a peer's death can be seen.
  static constexpr std::chrono::milliseconds kSleep{100};

  /// After something was written that sleepers look for. [any]
  void ring() {
    // A locked operation on the sleepers' word: either it sees a sleeper, or the sleeper, who
    // counts itself before it looks, sees what was written.
    if (n_sleepers_.fetch_add(0, std::memory_order_acq_rel) == 0) return;
    n_rings_.fetch_add(1, std::memory_order_release);
    futex(FUTEX_WAKE, INT_MAX, nullptr);
  }

  /// Counts itself as a sleeper while it lives.
  class Sleeper {
   public:
    explicit Sleeper(Bell& bell) : bell_(bell) {
      bell_.n_sleepers_.fetch_add(1, std::memory_order_acq_rel);
    }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    ~Sleeper() { bell_.n_sleepers_.fetch_sub(1, std::memory_order_relaxed); }

    /// Read it, then look for what was written, then sleep.
    [[nodiscard]] std::uint32_t n_rings() const {
      return bell_.n_rings_.load(std::memory_order_acquire);
    }
    /// Until the bell has rung since `seen`, for kSleep at most, or shorter for no reason.
    void sleep(std::uint32_t seen) const {
      const timespec most{0, std::chrono::nanoseconds(kSleep).count()};
      bell_.futex(FUTEX_WAIT, seen, &most);
    }

   private:
    Bell& bell_;
  };

 private:
  void futex(int operation, std::uint32_t number, const timespec* most) {
    // Its result needs no look: who wakes looks again. Shared between processes, so not private.
    ::syscall(SYS_futex,
              reinterpret_cast<std::uint32_t*>(&n_rings_),
              operation,
              number,
              most,
              nullptr,
              0);
  }

  std::atomic<std::uint32_t> n_rings_{0};
  std::atomic<std::uint32_t> n_sleepers_{0};
};

inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Two context switches cost about 5 us on a busy machine; a peer that is later than ten times that
/// is given the core. Where cores are fewer than ranks, the peer needs this one: no spinning.
inline constexpr std::chrono::microseconds kSpin{50};

/// Waits until `look` has an answer.
///
/// look     LUNA_AGAIN: nothing yet. Whoever changes what it sees rings the bell afterwards
/// is_lost  may cost system calls; asked once a Bell::kSleep. True: LUNA_UNAVAILABLE, unless what
///          came before the end is an answer
template <typename Look, typename IsLost>
luna_status wait(Bell& bell, bool spins, const Look& look, const IsLost& is_lost) {
  using Time = std::chrono::steady_clock;
  // How long to spin and when to look after a peer change no result, so the machine's clock is
  // fine here.
  constexpr int kLooksPerClockRead = 64;
  luna_status status = look();
  if (status != LUNA_AGAIN) return status;
  auto now = Time::now();
  for (const auto spin_end = now + kSpin; spins && now < spin_end; now = Time::now()) {
    for (int i = 0; i < kLooksPerClockRead; ++i) {
      pause_core();
      if ((status = look()) != LUNA_AGAIN) return status;
    }
  }
  const Bell::Sleeper sleeper(bell);
  auto next_check = now + Bell::kSleep;
  for (;; now = Time::now()) {
    const std::uint32_t seen = sleeper.n_rings();
    if ((status = look()) != LUNA_AGAIN) return status;
    if (now >= next_check) {
      if (is_lost()) {
        status = look();
        return status == LUNA_AGAIN ? LUNA_UNAVAILABLE : status;
      }
      next_check = now + Bell::kSleep;
    }
    sleeper.sleep(seen);
  }
}

}  // namespace luna::shm
