// A communicator of two ranks in this process, with room for two messages each way, as owner and
// guest of slices have one.
#pragma once

#include <luna/abi/transport.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

namespace luna::test {

/// Outlives whoever uses its ends.
class PairComm {
 public:
  PairComm() {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ends_[rank] = {this, rank};
      comms_[rank] = {sizeof(luna_comm), rank, 2, 0, &ends_[rank], send, recv, all_reduce};
    }
  }
  [[nodiscard]] const luna_comm* rank(std::uint32_t r) const { return &comms_[r]; }
  /// All calls, now and later, end with this.
  void end(luna_status status) {
    const std::lock_guard lock(mutex_);
    over_ = status;
    changed_.notify_all();
  }

 private:
  static constexpr std::size_t kMessagesMax = 2;
  struct End {
    PairComm* owner;
    std::uint32_t rank;
  };

  static luna_status send(
      void* self, std::uint32_t, std::uint32_t, const void* data, std::uint64_t n) {
    const End& end = *static_cast<End*>(self);
    PairComm& pair = *end.owner;
    std::unique_lock lock(pair.mutex_);
    auto& box = pair.boxes_[1 - end.rank];
    pair.changed_.wait(lock, [&] { return pair.over_ != LUNA_OK || box.size() < kMessagesMax; });
    if (pair.over_ != LUNA_OK) return pair.over_;
    const auto* bytes = static_cast<const std::byte*>(data);
    box.emplace_back(bytes, bytes + n);
    pair.changed_.notify_all();
    return LUNA_OK;
  }
  static luna_status recv(void* self, std::uint32_t, std::uint32_t, void* data, std::uint64_t n) {
    const End& end = *static_cast<End*>(self);
    PairComm& pair = *end.owner;
    std::unique_lock lock(pair.mutex_);
    auto& box = pair.boxes_[end.rank];
    pair.changed_.wait(lock, [&] { return pair.over_ != LUNA_OK || !box.empty(); });
    if (box.empty()) return pair.over_;
    if (box.front().size() != n) return LUNA_INVALID_ARGUMENT;
    if (n != 0) std::memcpy(data, box.front().data(), n);
    box.pop_front();
    pair.changed_.notify_all();
    return LUNA_OK;
  }
  static luna_status all_reduce(void*, const void*, void*, std::uint64_t, std::uint32_t) {
    return LUNA_UNSUPPORTED;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<std::deque<std::vector<std::byte>>, 2> boxes_;  // by receiver
  luna_status over_ = LUNA_OK;
  End ends_[2];
  luna_comm comms_[2];
};

}  // namespace luna::test
