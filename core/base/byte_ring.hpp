// Bytes between two threads, in pieces: full is an answer, nothing grows.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

namespace luna {

/// One writer, one reader, no lock. A message is written in pieces and becomes visible when it is
/// whole. Allocates once, in the constructor.
class ByteRing {
 public:
  /// capacity_bytes   rounded up to a power of two
  explicit ByteRing(std::size_t capacity_bytes)
      : mask_(std::bit_ceil(std::max<std::size_t>(capacity_bytes, 2)) - 1),
        bytes_(new std::byte[mask_ + 1]) {}
  ByteRing(const ByteRing&) = delete;
  ByteRing& operator=(const ByteRing&) = delete;

  /// Whether so many bytes can be appended now. [writer]
  [[nodiscard]] bool has_room(std::size_t n_bytes) const {
    return n_bytes <= mask_ + 1 - (unpublished_ - head_.load(std::memory_order_acquire));
  }
  /// Appends a piece, which the reader does not see yet. There is room for it. [writer]
  void append(const void* data, std::size_t n_bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    const std::size_t at = unpublished_ & mask_;
    const std::size_t n_first = std::min(n_bytes, mask_ + 1 - at);
    if (n_first > 0) std::memcpy(bytes_.get() + at, from, n_first);
    if (n_bytes > n_first) std::memcpy(bytes_.get(), from + n_first, n_bytes - n_first);
    unpublished_ += n_bytes;
  }
  /// What was appended is there; wakes the reader. [writer]
  void publish() {
    tail_.store(unpublished_, std::memory_order_release);
    tail_.notify_one();
  }

  /// Bytes that are there. [reader]
  [[nodiscard]] std::size_t n_readable() const {
    return tail_.load(std::memory_order_acquire) - head_.load(std::memory_order_relaxed);
  }
  /// Takes the oldest bytes; so many are there. [reader]
  void take(std::span<std::byte> to) {
    const std::size_t head = head_.load(std::memory_order_relaxed);
    const std::size_t at = head & mask_;
    const std::size_t n_first = std::min(to.size(), mask_ + 1 - at);
    if (n_first > 0) std::memcpy(to.data(), bytes_.get() + at, n_first);
    if (to.size() > n_first) std::memcpy(to.data() + n_first, bytes_.get(), to.size() - n_first);
    head_.store(head + to.size(), std::memory_order_release);
  }
  /// Returns when there are bytes. [reader]
  void wait() const {
    const std::size_t head = head_.load(std::memory_order_relaxed);
    tail_.wait(head, std::memory_order_acquire);
  }

  [[nodiscard]] std::size_t capacity_bytes() const { return mask_ + 1; }

 private:
  const std::size_t mask_;
  const std::unique_ptr<std::byte[]> bytes_;
  alignas(64) std::atomic<std::size_t> tail_{0};
  std::size_t unpublished_ = 0;  // the writer's own
  alignas(64) std::atomic<std::size_t> head_{0};
};

}  // namespace luna
