// Messages on their way from one rank to another, and the waiting for them.
#pragma once

#include <luna/plugin.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace luna::inproc {

/// Wakes threads that wait for a condition over atomics. Waiters may spin before they sleep, since
/// inside a step the peer is usually about to answer.
class Signal {
 public:
  /// Says that a condition may have become true. [any]
  void notify();

  /// Returns when `is_true()` is. Whoever makes it true calls notify() afterwards. [any]
  template <typename Condition>
  void wait(bool spins, const Condition& is_true) {
    if (spins ? spin(is_true) : is_true()) return;
    n_sleeping_.fetch_add(1, std::memory_order_seq_cst);
    for (;;) {
      const std::uint32_t seen = generation_.load(std::memory_order_seq_cst);
      if (is_true()) break;
      sleep_while(seen);
    }
    n_sleeping_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  /// Two context switches cost about 5 us on a busy machine; a peer that is later than ten times
  /// that is given the core.
  static constexpr std::uint64_t kSpinNsMax = 50'000;
  static constexpr int kChecksPerClockRead = 64;

  template <typename Condition>
  static bool spin(const Condition& is_true) {
    const std::uint64_t start = monotonic_ns();
    do {
      for (int i = 0; i < kChecksPerClockRead; ++i) {
        if (is_true()) return true;
        relax();
      }
    } while (monotonic_ns() - start < kSpinNsMax);
    return false;
  }
  static std::uint64_t monotonic_ns();
  static void relax();
  void sleep_while(std::uint32_t generation);

  std::atomic<std::uint32_t> generation_{0};
  std::atomic<std::uint32_t> n_sleeping_{0};
};

/// A ring of messages with one sender, one receiver and one tag. A resource, owned by its group.
class Mailbox {
 public:
  /// n_messages_max  how far the sender may run ahead of its receiver
  ///
  /// Reserves them all; pages are touched only as far as messages reach.
  Mailbox(std::uint64_t message_bytes_max, std::uint32_t n_messages_max);

  /// Copies a message in; waits while the ring is full.
  /// spins     whether waiting may keep a core for a moment
  /// is_over   checked while waiting; LUNA_OK to go on, else what send() returns
  template <typename IsOver>
  luna_status send(std::span<const std::byte> data, bool spins, const IsOver& is_over) {
    luna_status over = LUNA_OK;
    signal_.wait(spins, [&] {
      over = is_over();
      return over != LUNA_OK || has_room();
    });
    if (over != LUNA_OK) return over;
    write(data);
    return LUNA_OK;
  }

  /// Waits for the oldest message. It stays valid until pop(). A message that has arrived is
  /// delivered even when its sender has gone since.
  template <typename IsOver>
  luna_status front(std::span<const std::byte>& message, bool spins, const IsOver& is_over) {
    luna_status over = LUNA_OK;
    signal_.wait(spins, [&] {
      over = is_over();
      return over != LUNA_OK || has_message();
    });
    if (over == LUNA_CANCELLED || !has_message()) return over;
    message = read();
    return LUNA_OK;
  }
  void pop();

  /// Makes waiters look at `is_over` again. [any]
  void wake() { signal_.notify(); }

 private:
  [[nodiscard]] bool has_room() const {
    return n_sent_.load(std::memory_order_relaxed) - n_received_.load(std::memory_order_acquire) <
           n_bytes_.size();
  }
  [[nodiscard]] bool has_message() const {
    return n_sent_.load(std::memory_order_acquire) != n_received_.load(std::memory_order_relaxed);
  }
  void write(std::span<const std::byte> data);
  [[nodiscard]] std::span<const std::byte> read() const;

  const std::uint64_t message_bytes_max_;
  const std::unique_ptr<std::byte[]> bytes_;  // [n_messages_max, message_bytes_max]
  std::vector<std::uint64_t> n_bytes_;        // [n_messages_max]
  std::atomic<std::uint32_t> n_sent_{0};
  std::atomic<std::uint32_t> n_received_{0};
  Signal signal_;
};

}  // namespace luna::inproc
