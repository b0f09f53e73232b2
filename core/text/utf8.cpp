#include "core/text/utf8.hpp"

namespace luna::text {
namespace {

constexpr unsigned char byte_at(std::string_view text, std::size_t pos) {
  return static_cast<unsigned char>(text[pos]);
}

/// How many bytes a character with this first byte has; 0 where none begins so.
constexpr std::uint8_t length_by_first(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return 2;
  if (first >= 0xE0 && first <= 0xEF) return 3;
  if (first >= 0xF0 && first <= 0xF4) return 4;
  return 0;
}

/// Whether `second` may follow `first`: shuts out overlong forms, surrogates, and above U+10FFFF.
constexpr bool second_fits(unsigned char first, unsigned char second) {
  switch (first) {
    case 0xE0:
      return second >= 0xA0 && second <= 0xBF;
    case 0xED:
      return second >= 0x80 && second <= 0x9F;
    case 0xF0:
      return second >= 0x90 && second <= 0xBF;
    case 0xF4:
      return second >= 0x80 && second <= 0x8F;
    default:
      return second >= 0x80 && second <= 0xBF;
  }
}

}  // namespace

Utf8Prefix utf8_front(std::string_view text) {
  const unsigned char first = byte_at(text, 0);
  const std::uint8_t length = length_by_first(first);
  if (length == 0) return {Utf8Front::broken, 1};
  for (std::uint8_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Front::incomplete, i};
    const unsigned char next = byte_at(text, i);
    const bool fits = i == 1 ? second_fits(first, next) : (next >= 0x80 && next <= 0xBF);
    if (!fits) return {Utf8Front::broken, i};
  }
  return {Utf8Front::character, length};
}

Utf8Step utf8_step(std::string_view text, std::size_t pos) {
  const unsigned char first = byte_at(text, pos);
  if (first < 0x80) return {first, 1, true};
  const Utf8Prefix front = utf8_front(text.substr(pos, 4));
  if (front.kind != Utf8Front::character) return {first, 1, false};
  char32_t point = first & (0xFFU >> (front.n_bytes + 1U));
  for (std::size_t i = 1; i < front.n_bytes; ++i)
    point = (point << 6U) | (byte_at(text, pos + i) & 0x3FU);
  return {point, front.n_bytes, true};
}

void append_utf8(std::string& out, char32_t point) {
  const auto put = [&out](char32_t bits) { out.push_back(static_cast<char>(bits)); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xC0 | (point >> 6U));
    put(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    put(0xE0 | (point >> 12U));
    put(0x80 | ((point >> 6U) & 0x3F));
    put(0x80 | (point & 0x3F));
  } else {
    put(0xF0 | (point >> 18U));
    put(0x80 | ((point >> 12U) & 0x3F));
    put(0x80 | ((point >> 6U) & 0x3F));
    put(0x80 | (point & 0x3F));
  }
}

std::size_t count_characters(std::string_view text) {
  std::size_t n = 0;
  for (const char c : text)
    n += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  return n;
}

bool is_utf8(std::string_view text) {
  for (std::size_t pos = 0; pos < text.size();) {
    const Utf8Step step = utf8_step(text, pos);
    if (!step.valid) return false;
    pos += step.n_bytes;
  }
  return true;
}

}  // namespace luna::text
