#include "ring.hpp"

#include <algorithm>
#include <cstring>

namespace luna::shm {

luna_status RingWriter::room(std::uint64_t& n_bytes) {
  const std::uint64_t n_read = indices_->n_read.load(std::memory_order_acquire);
  // The reader goes forward, and never past what was written.
  if (n_read < n_read_seen_ || n_read > n_written_) return LUNA_CORRUPT;
  n_read_seen_ = n_read;
  n_bytes = bytes_.size() - (n_written_ - n_read);
  return LUNA_OK;
}

void RingWriter::put(std::span<const std::byte> from) {
  if (from.empty()) return;
  const std::size_t place = n_written_ & (bytes_.size() - 1);
  const std::size_t n_first = std::min(from.size(), bytes_.size() - place);
  std::memcpy(bytes_.data() + place, from.data(), n_first);
  std::memcpy(bytes_.data(), from.data() + n_first, from.size() - n_first);
  n_written_ += from.size();
}

luna_status RingReader::ready(std::uint64_t& n_bytes) {
  const std::uint64_t n_written = indices_->n_written.load(std::memory_order_acquire);
  if (n_written < n_written_seen_ || n_written - n_read_ > bytes_.size()) return LUNA_CORRUPT;
  n_written_seen_ = n_written;
  n_bytes = n_written - n_read_;
  return LUNA_OK;
}

void RingReader::take(std::span<std::byte> to) {
  if (to.empty()) return;
  const std::size_t place = n_read_ & (bytes_.size() - 1);
  const std::size_t n_first = std::min(to.size(), bytes_.size() - place);
  std::memcpy(to.data(), bytes_.data() + place, n_first);
  std::memcpy(to.data() + n_first, bytes_.data(), to.size() - n_first);
  n_read_ += to.size();
}

}  // namespace luna::shm
