// Server-sent events, several in one piece, in a buffer that is used again and again.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace luna::http {

/// begin(), events, finish(); the bytes stay until the next begin(). One I/O thread has one, for
/// all its connections, so whoever fills it writes it to a socket, or copies it, before it
/// suspends.
class SseWriter {
 public:
  /// Forgets the last piece.
  void begin();
  /// An event's data goes to the end of this text, which is the writer's buffer; close_event()
  /// follows. The data holds no line break: JSON text has none.
  std::string& open_event();
  void close_event();
  /// A comment line, so that nobody takes a long prefill for a dead connection.
  void add_ping();
  [[nodiscard]] bool empty() const { return bytes_.size() == kHeadRoom; }

  enum class Framing {
    none,        ///< HTTP/1.0: the end of the connection ends the stream
    chunk,       ///< HTTP/1.1: one chunk
    last_chunk,  ///< one chunk, if there is anything to say, and the end of the body
  };
  /// The piece as it goes over the connection.
  std::string_view finish(Framing framing);

 private:
  // Digits of a chunk's length and its line break, before the events: they are known last.
  static constexpr std::size_t kHeadRoom = 18;
  std::string bytes_ = std::string(kHeadRoom, ' ');
};

}  // namespace luna::http
