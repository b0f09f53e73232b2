// Long work over bytes in pieces: progress, and an end before the end.
#pragma once

#include "core/base/mapped_file.hpp"
#include "core/base/units.hpp"
#include "core/model/shard_writer.hpp"

#include <luna/result.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>

namespace luna::model {

/// Counts the bytes that are done and asks whether to go on. Shared by the threads of one work.
class ShardWork {
 public:
  ShardWork(const ShardProgress& progress, std::uint64_t n_bytes)
      : progress_(progress), n_bytes_(std::max<std::uint64_t>(n_bytes, 1)) {}

  /// Calls body(piece) for one piece after the other, and lets each go from memory afterwards.
  /// Errors  what `body` answers; cancelled
  template <typename Body>
  Result<void> in_pieces(std::span<const std::byte> bytes, const Body& body) {
    // Large enough that a call costs nothing, small enough for a cache and for a quick end.
    constexpr std::size_t kPieceBytes = kMiB;
    while (!bytes.empty()) {
      if (is_stopped()) return stopped();
      const auto piece = bytes.first(std::min(bytes.size(), kPieceBytes));
      LUNA_TRY(body(piece));
      MappedFile::let_go(piece);
      tell(piece.size());
      bytes = bytes.subspan(piece.size());
    }
    return {};
  }

  void stop() { is_stopped_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool is_stopped() const { return is_stopped_.load(std::memory_order_relaxed); }
  [[nodiscard]] static Result<void> stopped() {
    return Error{Code::cancelled, "stopped before the end"};
  }

 private:
  void tell(std::uint64_t n_bytes) {
    const std::lock_guard lock(mutex_);
    n_done_ = std::min(n_done_ + n_bytes, n_bytes_);
    if (progress_ && !progress_(static_cast<double>(n_done_) / static_cast<double>(n_bytes_)))
      stop();
  }

  const ShardProgress& progress_;
  const std::uint64_t n_bytes_;
  std::atomic<bool> is_stopped_{false};
  std::mutex mutex_;
  std::uint64_t n_done_ = 0;  // under the mutex
};

}  // namespace luna::model
