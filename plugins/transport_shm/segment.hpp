// Memory that processes of one machine and user share.
#pragma once

#include "descriptor.hpp"
#include "process.hpp"

#include <luna/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace luna::shm {

/// 128 random bits that name a segment for its whole life. Who holds an epoch can tell its segment
/// from every earlier and later one, whatever process numbers and descriptors come again.
struct Epoch {
  std::array<std::uint64_t, 2> words{};

  static Epoch random();
  friend bool operator==(const Epoch&, const Epoch&) = default;
};

/// Where other processes find a segment. Plain bytes, in address blobs and rendezvous files.
struct SegmentAddress {
  ProcessId process;  // that holds it open
  std::uint32_t descriptor = 0;
  std::uint32_t pad = 0;
  Epoch epoch;

  friend bool operator==(const SegmentAddress&, const SegmentAddress&) = default;
};

/// What a segment is for; a segment of another use is not attached.
enum class SegmentUse : std::uint32_t { inbox = 1, group = 2 };

/// First bytes of every segment.
struct SegmentHead {
  std::array<char, 8> magic{'l', 'u', 'n', 'a', '-', 's', 'h', 'm'};
  std::uint32_t version = 1;  // of every layout in this plugin
  SegmentUse use = SegmentUse::inbox;
  std::uint64_t n_bytes = 0;
  Epoch epoch;
};

/// A mapped segment: an anonymous file, reached through the holder's /proc/PID/fd, so that nothing
/// is left behind however its users end. Its size is sealed: no user can take pages away under the
/// others. New segments are all zeros behind their head. A resource. [main] [io]
class Segment {
 public:
  /// Errors   exhausted, io: what the system refused
  /// Cost     takes addresses only; memory comes by reserve() or at the first touch
  static Result<Segment> create(SegmentUse use, std::uint64_t n_bytes);
  /// Errors   unavailable: its process or it has gone; corrupt: not such a segment; io
  static Result<Segment> attach(const SegmentAddress& address, SegmentUse use);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  [[nodiscard]] std::byte* at(std::uint64_t offset) const { return base_ + offset; }
  [[nodiscard]] std::uint64_t n_bytes() const { return n_bytes_; }
  /// For others, as long as this object lives.
  [[nodiscard]] const SegmentAddress& address() const { return address_; }

  /// Takes memory for a range, so that touching it cannot fail. exhausted: there is none.
  Result<void> reserve(std::uint64_t offset, std::uint64_t n_bytes) const;
  /// Gives a range's memory back; it reads as zeros.
  void give_back(std::uint64_t offset, std::uint64_t n_bytes) const;

 private:
  Segment() = default;
  Result<void> map(std::uint64_t n_bytes);

  Descriptor file_;
  std::byte* base_ = nullptr;
  std::uint64_t n_bytes_ = 0;
  SegmentAddress address_;
};

}  // namespace luna::shm
