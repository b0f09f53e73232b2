#include "core/text/unicode_classes.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>

namespace luna::text {
namespace {

struct CodeRange {
  char32_t first;
  char32_t last;
};

#include "core/text/unicode_classes.inc"

bool is_in(std::span<const CodeRange> ranges, char32_t point) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), point, [](char32_t p, const CodeRange& r) {
        return p < r.first;
      });
  return after != ranges.begin() && point <= std::prev(after)->last;
}

constexpr std::array<CharClass, 128> make_ascii_classes() {
  std::array<CharClass, 128> classes{};
  for (char32_t c = 'a'; c <= 'z'; ++c)
    classes[c] = CharClass::letter;
  for (char32_t c = 'A'; c <= 'Z'; ++c)
    classes[c] = CharClass::letter;
  for (char32_t c = '0'; c <= '9'; ++c)
    classes[c] = CharClass::number;
  for (char32_t c = 0x9; c <= 0xD; ++c)
    classes[c] = CharClass::space;
  classes[' '] = CharClass::space;
  return classes;
}
constexpr std::array<CharClass, 128> kAsciiClasses = make_ascii_classes();

}  // namespace

CharClass char_class(char32_t point) {
  if (point < 128) return kAsciiClasses[point];
  if (is_in(kLetters, point)) return CharClass::letter;
  if (is_in(kNumbers, point)) return CharClass::number;
  if (is_in(kSpaces, point)) return CharClass::space;
  return CharClass::other;
}

bool is_digit_rule_number(char32_t point) {
  if (point < 128) return kAsciiClasses[point] == CharClass::number;
  return is_in(kDigits, point);
}

bool is_word_char(char32_t point) {
  const CharClass c = char_class(point);
  return point == '_' || c == CharClass::letter || c == CharClass::number;
}

}  // namespace luna::text
