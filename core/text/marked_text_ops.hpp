// What Python's str can do, on texts that remember who wrote them.
#pragma once

#include "core/text/marked_text.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace luna::text {

enum class LetterCase : std::uint8_t { lower, upper, title_words, capital_first, swapped };

/// str.lower(), upper(), title(), capitalize(), swapcase().
MarkedText with_case(const MarkedText& text, LetterCase wanted);

enum class Side : std::uint8_t { both, left, right };

/// str.strip(), lstrip(), rstrip(): white space, or the characters of `characters`.
MarkedText stripped(const MarkedText& text,
                    Side side,
                    const std::optional<std::string>& characters);

/// str.replace(): at most `n_max` times.
MarkedText replaced(const MarkedText& text,
                    const MarkedText& from,
                    const MarkedText& to,
                    std::size_t n_max);

/// str.split(), rsplit(): by white space where `separator` is not given; it is not empty.
std::vector<MarkedText> split(const MarkedText& text,
                              const std::optional<std::string>& separator,
                              std::size_t n_max,
                              Side from);

/// str.splitlines().
std::vector<MarkedText> split_lines(const MarkedText& text, bool keeps_ends);

/// Each character of a text in the reverse order.
MarkedText reversed(const MarkedText& text);

/// What precedes and follows a text to make it `n_chars` wide; the fill has one character.
MarkedText padded(const MarkedText& text,
                  const MarkedText& fill,
                  std::size_t n_before,
                  std::size_t n_after);

std::size_t n_chars(const MarkedText& text);

/// Properties of characters, as str.isalpha() and its kin ask.
bool is_python_alpha(char32_t point);
bool is_python_decimal(char32_t point);
bool is_python_numeric(char32_t point);
bool is_python_upper(char32_t point);
bool is_python_lower(char32_t point);

}  // namespace luna::text
