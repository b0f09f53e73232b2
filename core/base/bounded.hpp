// A bounded queue between threads: full is an answer, nothing grows.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

namespace luna {

/// Many producers, one consumer, a fixed number of places, no lock (Vyukov's bounded queue).
/// Allocates once, in the constructor.
template <typename T>
class BoundedQueue {
 public:
  /// capacity   rounded up to a power of two
  explicit BoundedQueue(std::size_t capacity)
      : mask_(std::bit_ceil(capacity < 2 ? 2 : capacity) - 1), cells_(new Cell[mask_ + 1]) {
    for (std::size_t i = 0; i <= mask_; ++i)
      cells_[i].sequence.store(i, std::memory_order_relaxed);
  }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  /// False when full; `value` is then untouched. [any]
  bool try_push(T&& value) {
    std::size_t position = tail_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[position & mask_];
      const std::size_t sequence = cell.sequence.load(std::memory_order_acquire);
      if (sequence == position) {
        if (tail_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
          cell.value.emplace(std::move(value));
          cell.sequence.store(position + 1, std::memory_order_release);
          return true;
        }
      } else if (sequence < position) {
        return false;
      } else {
        position = tail_.load(std::memory_order_relaxed);
      }
    }
  }

  /// The oldest element, or nothing. One consumer.
  std::optional<T> try_pop() {
    Cell& cell = cells_[head_ & mask_];
    if (cell.sequence.load(std::memory_order_acquire) != head_ + 1) return std::nullopt;
    std::optional<T> value(std::move(*cell.value));
    cell.value.reset();
    cell.sequence.store(head_ + mask_ + 1, std::memory_order_release);
    ++head_;
    return value;
  }

  [[nodiscard]] std::size_t capacity() const { return mask_ + 1; }

 private:
  struct Cell {
    std::atomic<std::size_t> sequence{0};
    std::optional<T> value;
  };

  const std::size_t mask_;
  const std::unique_ptr<Cell[]> cells_;
  alignas(64) std::atomic<std::size_t> tail_{0};
  alignas(64) std::size_t head_ = 0;
};

}  // namespace luna
