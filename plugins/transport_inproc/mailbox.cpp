#include "mailbox.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>

#include <chrono>
#include <climits>
#include <cstring>
#include <unistd.h>

namespace luna::inproc {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
                  std::atomic<std::uint32_t>::is_always_lock_free,
              "a futex is a plain 32-bit word");

void Signal::notify() {
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (n_sleeping_.load(std::memory_order_seq_cst) == 0) return;
  ::syscall(SYS_futex,
            reinterpret_cast<std::uint32_t*>(&generation_),
            FUTEX_WAKE_PRIVATE,
            INT_MAX,
            nullptr,
            nullptr,
            0);
}

void Signal::sleep_while(std::uint32_t generation) {
  // Returns at once when the word has changed; a spurious return only makes the caller look again.
  ::syscall(SYS_futex,
            reinterpret_cast<std::uint32_t*>(&generation_),
            FUTEX_WAIT_PRIVATE,
            generation,
            nullptr,
            nullptr,
            0);
}

std::uint64_t Signal::monotonic_ns() {
  // How long to spin changes no result, so the machine's clock is fine here.
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

void Signal::relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

Mailbox::Mailbox(std::uint64_t message_bytes_max, std::uint32_t n_messages_max)
    : message_bytes_max_(message_bytes_max),
      bytes_(new std::byte[static_cast<std::size_t>(message_bytes_max) * n_messages_max]),
      n_bytes_(n_messages_max) {}

void Mailbox::write(std::span<const std::byte> data) {
  const std::uint32_t n = n_sent_.load(std::memory_order_relaxed);
  const std::size_t place = n % n_bytes_.size();
  if (!data.empty()) {
    std::memcpy(bytes_.get() + place * message_bytes_max_, data.data(), data.size());
  }
  n_bytes_[place] = data.size();
  n_sent_.store(n + 1, std::memory_order_release);
  signal_.notify();
}

std::span<const std::byte> Mailbox::read() const {
  const std::size_t place = n_received_.load(std::memory_order_relaxed) % n_bytes_.size();
  return {bytes_.get() + place * message_bytes_max_, static_cast<std::size_t>(n_bytes_[place])};
}

void Mailbox::pop() {
  n_received_.store(n_received_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  signal_.notify();
}

}  // namespace luna::inproc
