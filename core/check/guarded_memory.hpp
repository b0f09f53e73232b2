// Memory that tells when it is touched: arguments lent to a plugin.
#pragma once

#include <cstddef>
#include <span>

namespace luna::check {

/// Pages of their own. What is written behind the end, what is written while they are read-only,
/// and whatever is touched after they were taken away raises SIGSEGV. A resource.
class GuardedMemory {
 public:
  /// n_bytes of zeros that end at the end of a page, but for what alignment to 16 leaves.
  explicit GuardedMemory(std::size_t n_bytes);
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory();

  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, n_bytes_}; }
  void make_read_only();
  /// The pages stay reserved, so that nothing else comes to lie there.
  void take_away();

 private:
  std::byte* pages_ = nullptr;
  std::size_t pages_bytes_ = 0;
  std::byte* data_ = nullptr;
  std::size_t n_bytes_ = 0;
};

}  // namespace luna::check
