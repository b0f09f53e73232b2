#include "core/bench/sse_parser.hpp"

namespace luna::bench {

bool SseParser::feed(std::string_view bytes, const OnData& on_data) {
  while (!bytes.empty()) {
    if (after_cr_ && bytes.front() == '\n') bytes.remove_prefix(1);
    after_cr_ = false;
    const std::size_t end = bytes.find_first_of("\r\n");
    const std::string_view part = bytes.substr(0, end);
    if (line_.size() + part.size() > kEventBytesMax) return false;
    line_ += part;
    if (end == std::string_view::npos) return true;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (data_.size() + line_.size() > kEventBytesMax) return false;
    end_line(on_data);
  }
  return true;
}

void SseParser::end_line(const OnData& on_data) {
  if (line_.empty()) {
    if (has_data_) on_data(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  constexpr std::string_view kField = "data:";
  if (std::string_view(line_).starts_with(kField)) {
    std::string_view value = std::string_view(line_).substr(kField.size());
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
  }
  line_.clear();
}

}  // namespace luna::bench
