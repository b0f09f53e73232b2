// Registered memory of an endpoint.
#pragma once

#include <luna/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace luna::tcp {

/// Ranges of the caller's memory, by key. [any]
class Regions {
 public:
  /// Errors   unsupported: no host memory; invalid_argument: empty
  Result<void> add(std::uint64_t key, const luna_mem& memory) {
    if (memory.kind != LUNA_MEM_HOST && memory.kind != LUNA_MEM_PINNED) {
      return Error{Code::unsupported,
                   "memory kind " + std::to_string(memory.kind) + ": tcp moves host memory only"};
    }
    if (memory.ptr == nullptr || memory.n_bytes == 0)
      return Error{Code::invalid_argument, "an empty range of memory cannot be registered"};
    const std::lock_guard lock(mutex_);
    regions_[key] = {static_cast<std::byte*>(memory.ptr), memory.n_bytes};
    return {};
  }
  /// False: there is none.
  bool remove(std::uint64_t key) {
    const std::lock_guard lock(mutex_);
    return regions_.erase(key) == 1;
  }
  /// Where the transfer's bytes lie. Errors: invalid_argument: outside of what is registered
  [[nodiscard]] Result<std::byte*> resolve(const luna_xfer& transfer) const {
    const std::lock_guard lock(mutex_);
    const auto region = regions_.find(transfer.key);
    LUNA_TRY(check_range(transfer, region == regions_.end() ? nullptr : &region->second.n_bytes));
    return region->second.begin + transfer.offset;
  }

 private:
  struct Region {
    std::byte* begin = nullptr;
    std::uint64_t n_bytes = 0;
  };
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Region> regions_;  // by key
};

}  // namespace luna::tcp
