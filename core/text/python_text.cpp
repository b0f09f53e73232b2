#include "core/text/python_text.hpp"

#include "core/text/utf8.hpp"

namespace luna::text {

bool is_python_space(char32_t point) {
  if (point < 0x80) return (point >= 0x9 && point <= 0xD) || (point >= 0x1C && point <= 0x20);
  return point == 0x85 || point == 0xA0 || point == 0x1680 ||
         (point >= 0x2000 && point <= 0x200A) || point == 0x2028 || point == 0x2029 ||
         point == 0x202F || point == 0x205F || point == 0x3000;
}

bool is_python_line_end(char32_t point) {
  return (point >= 0xA && point <= 0xD) || (point >= 0x1C && point <= 0x1E) || point == 0x85 ||
         point == 0x2028 || point == 0x2029;
}

std::size_t leading_space_bytes(std::string_view text) {
  std::size_t pos = 0;
  while (pos < text.size()) {
    const Utf8Step step = utf8_step(text, pos);
    if (!step.valid || !is_python_space(step.point)) break;
    pos += step.n_bytes;
  }
  return pos;
}

std::size_t trailing_space_bytes(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    const std::size_t begin = previous_char(text, end);
    const Utf8Step step = utf8_step(text, begin);
    if (!step.valid || !is_python_space(step.point)) break;
    end = begin;
  }
  return text.size() - end;
}

std::vector<std::size_t> char_positions(std::string_view text) {
  std::vector<std::size_t> positions;
  positions.reserve(text.size() + 1);
  for (std::size_t pos = 0; pos < text.size(); pos += utf8_step(text, pos).n_bytes) {
    positions.push_back(pos);
  }
  positions.push_back(text.size());
  return positions;
}

std::size_t previous_char(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 &&
         (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80) {
    --begin;
  }
  return utf8_step(text, begin).n_bytes == end - begin ? begin : end - 1;
}

}  // namespace luna::text
