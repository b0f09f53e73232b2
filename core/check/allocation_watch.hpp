// Counts what a loaded library takes from the heap, and can refuse it.
#pragma once

#include <cstdint>

namespace luna::check {

/// Puts itself between a library and malloc, by the tables through which the library and the C++
/// runtime call it. One a process, for good: a child's. Not under a sanitizer, which has a heap of
/// its own.
class AllocationWatch {
 public:
  /// address  of anything in the library
  /// Returns  false: it cannot be watched in this build
  static bool install(const void* address);

  /// Counts from now on, from zero.
  ///
  /// fail_at  the n-th allocation gets no memory; 0: all do
  static void begin(std::uint64_t fail_at = 0);
  /// Counts no more. Returns how many there were.
  static std::uint64_t end();
  [[nodiscard]] static bool is_counting();

  /// Fails one allocation while it lives, however the scope is left.
  class Failing {
   public:
    /// fail_at  0: nothing is done
    /// n        set to the number of allocations at the end
    Failing(std::uint64_t fail_at, std::uint64_t& n) : is_on_(fail_at != 0), n_(n) {
      if (is_on_) begin(fail_at);
    }
    Failing(const Failing&) = delete;
    Failing& operator=(const Failing&) = delete;
    ~Failing() {
      if (is_on_) n_ = end();
    }

   private:
    bool is_on_;
    std::uint64_t& n_;
  };
};

}  // namespace luna::check
