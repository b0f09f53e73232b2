#include "core/http/sse_writer.hpp"

namespace luna::http {
namespace {

// Memory that one large piece took is given back.
constexpr std::size_t kKeptBytesMax = std::size_t{1} << 20U;

}  // namespace

void SseWriter::begin() {
  if (bytes_.capacity() > kKeptBytesMax) bytes_ = std::string();
  bytes_.resize(kHeadRoom, ' ');
}

std::string& SseWriter::open_event() {
  bytes_ += "data: ";
  return bytes_;
}

void SseWriter::close_event() {
  bytes_ += "\n\n";
}

void SseWriter::add_ping() {
  bytes_ += ": ping\n\n";
}

std::string_view SseWriter::finish(Framing framing) {
  std::size_t begin = kHeadRoom;
  if (framing != Framing::none && !empty()) {
    std::size_t n_bytes = bytes_.size() - kHeadRoom;
    bytes_[--begin] = '\n';
    bytes_[--begin] = '\r';
    for (; n_bytes > 0; n_bytes >>= 4U)
      bytes_[--begin] = "0123456789abcdef"[n_bytes & 15U];
    bytes_ += "\r\n";
  }
  if (framing == Framing::last_chunk) bytes_ += "0\r\n\r\n";
  return std::string_view(bytes_).substr(begin);
}

}  // namespace luna::http
