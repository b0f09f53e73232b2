// Bytes from one writer to one reader through shared memory.
//
// The other side may be broken or hostile: each side keeps its own position in its own memory, and
// takes the other's by one load that is checked before it is used.
#pragma once

#include <luna/abi/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace luna::shm {

/// How far a ring's two sides are, in bytes since its start; each on a cache line of its own, since
/// each is written by one side. Lies in shared memory, where zeros are an empty ring.
struct RingIndices {
  alignas(64) std::atomic<std::uint64_t> n_written{0};
  alignas(64) std::atomic<std::uint64_t> n_read{0};
};

/// The writing end. A value; one for each ring.
class RingWriter {
 public:
  /// bytes   the ring's room, a power of two, in shared memory, as are the indices
  RingWriter(RingIndices& indices, std::span<std::byte> bytes)
      : indices_(&indices), bytes_(bytes) {}

  /// Bytes that fit now. LUNA_CORRUPT: the reader says what cannot be.
  luna_status room(std::uint64_t& n_bytes);
  /// Behind what was put before; `from` is no longer than the room. Seen after publish().
  void put(std::span<const std::byte> from);
  void publish() { indices_->n_written.store(n_written_, std::memory_order_release); }

 private:
  RingIndices* indices_;
  std::span<std::byte> bytes_;
  std::uint64_t n_written_ = 0;
  std::uint64_t n_read_seen_ = 0;
};

/// The reading end. A value; one for each ring.
class RingReader {
 public:
  RingReader(RingIndices& indices, std::span<const std::byte> bytes)
      : indices_(&indices), bytes_(bytes) {}

  /// Bytes that have come. LUNA_CORRUPT: the writer says what cannot be.
  luna_status ready(std::uint64_t& n_bytes);
  /// The next bytes; `to` is no longer than what is ready. Their room is free after release().
  void take(std::span<std::byte> to);
  void skip(std::uint64_t n_bytes) { n_read_ += n_bytes; }
  void release() { indices_->n_read.store(n_read_, std::memory_order_release); }

 private:
  RingIndices* indices_;
  std::span<const std::byte> bytes_;
  std::uint64_t n_read_ = 0;
  std::uint64_t n_written_seen_ = 0;
};

}  // namespace luna::shm
