// Frames on their way out.
#pragma once

#include "frame.hpp"

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace luna::tcp {

/// Told on the I/O thread that a frame has been taken by the peer's transport.
class AckListener {
 public:
  virtual ~AckListener() = default;
  virtual void on_ack() = 0;
};

/// A numbered frame. Its payload stays where it is until the peer has acknowledged it, since a new
/// connection sends it again. A value.
struct Outgoing {
  Header header;
  std::span<const std::byte> payload;
  std::shared_ptr<const void> keep;  ///< what the payload lies in, where that is the transport's
  std::uint64_t owner = 0;           ///< by which a payload of others is taken back; 0: nobody's
  AckListener* listener = nullptr;   ///< told once; dropped when the payload is taken back
};

/// Frames that go to the system in one call, straight from where their payloads lie.
class Batch {
 public:
  /// A step's few frames fit; more would not lessen the system calls of large ones.
  static constexpr std::size_t kFramesMax = 16;

  void clear() { n_frames_ = n_pieces_ = first_ = 0; }
  [[nodiscard]] bool is_empty() const { return n_frames_ == 0; }
  [[nodiscard]] bool has_room() const { return n_frames_ < kFramesMax; }
  [[nodiscard]] bool is_written() const { return first_ == n_pieces_; }

  void add(Header header, std::span<const std::byte> payload) {
    header.n_bytes = payload.size();
    HeaderBytes& head = headers_[n_frames_++];
    head = encode_header(header);
    pieces_[n_pieces_++] = {head.data(), head.size()};
    if (payload.empty()) return;
    pieces_[n_pieces_++] = {const_cast<std::byte*>(payload.data()), payload.size()};
  }
  [[nodiscard]] std::span<const iovec> rest() const {
    return std::span(pieces_).subspan(first_, n_pieces_ - first_);
  }
  void advance(std::size_t n_bytes) {
    while (n_bytes > 0) {
      iovec& piece = pieces_[first_];
      if (n_bytes < piece.iov_len) {
        piece.iov_base = static_cast<std::byte*>(piece.iov_base) + n_bytes;
        piece.iov_len -= n_bytes;
        return;
      }
      n_bytes -= piece.iov_len;
      ++first_;
    }
  }

 private:
  std::array<HeaderBytes, kFramesMax> headers_{};
  std::array<iovec, 2 * kFramesMax> pieces_{};
  std::size_t n_frames_ = 0;
  std::size_t n_pieces_ = 0;
  std::size_t first_ = 0;  // piece that is not wholly written
};

}  // namespace luna::tcp
