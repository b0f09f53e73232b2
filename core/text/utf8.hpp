// Reading UTF-8 that may be broken: what is not a character is a single byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace luna::text {

/// One step through a text.
struct Utf8Step {
  char32_t point = 0;        // the character, or the byte where the step is not valid
  std::uint8_t n_bytes = 0;  // 1 where not valid
  bool valid = false;
};

/// What the bytes at the front of a text are.
enum class Utf8Front : std::uint8_t {
  character,   // a whole character
  incomplete,  // may become a character with more bytes
  broken,      // can never become one
};

struct Utf8Prefix {
  Utf8Front kind;
  std::uint8_t n_bytes;  // of the character, or of the longest beginning of one (at least 1)
};

/// Looks at the front of a text that is not empty. A broken front is as long as the longest
/// beginning of a character it holds, so that each gives one U+FFFD (Unicode 15, section 3.9,
/// U+FFFD Substitution of Maximal Subparts).
Utf8Prefix utf8_front(std::string_view text);

/// Reads the step that begins at `pos`, which is inside the text.
Utf8Step utf8_step(std::string_view text, std::size_t pos);

/// Appends a character (not a surrogate, at most U+10FFFF).
void append_utf8(std::string& out, char32_t point);

/// Characters of a text that is valid UTF-8.
std::size_t count_characters(std::string_view text);

/// True when the whole text is valid UTF-8.
bool is_utf8(std::string_view text);

}  // namespace luna::text
