// Character rules of Python's str that differ from those of the tokenizers.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace luna::text {

/// str.isspace() of one character.
bool is_python_space(char32_t point);

/// A character at which str.splitlines() breaks.
bool is_python_line_end(char32_t point);

/// The bytes of leading, and of trailing, white space.
std::size_t leading_space_bytes(std::string_view text);
std::size_t trailing_space_bytes(std::string_view text);

/// Where each character begins, and the end: n + 1 positions for n characters.
std::vector<std::size_t> char_positions(std::string_view text);

/// The start of the character that ends at `end`, which is above 0.
std::size_t previous_char(std::string_view text, std::size_t end);

}  // namespace luna::text
