// Server-sent events out of a stream of bytes, cut anywhere.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace luna::bench {

/// Collects the `data` of events; other fields (event, id, retry, comments) are skipped. A value.
class SseParser {
 public:
  /// An event's data, its lines joined by '\n'; valid during the call.
  using OnData = std::function<void(std::string_view data)>;

  /// More than a line or an event of a completion can need: a server that sends more is refused.
  static constexpr std::size_t kEventBytesMax = std::size_t{1} << 20;

  /// Takes the next bytes and hands over the events that they complete.
  /// Returns  false when a line or an event is longer than kEventBytesMax; nothing works afterwards
  /// Source   HTML Living Standard, section 9.2.6 (a byte order mark is not expected)
  [[nodiscard]] bool feed(std::string_view bytes, const OnData& on_data);

 private:
  void end_line(const OnData& on_data);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;  // "\r\n" is one end of line, wherever it is cut
};

}  // namespace luna::bench
