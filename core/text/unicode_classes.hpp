// Which characters are letters, numbers and white space, in the eyes of the reference tokenizers.
#pragma once

#include <cstdint>

namespace luna::text {

/// What the word patterns ask of a character.
enum class CharClass : std::uint8_t {
  other = 0,
  letter,  // \p{L}
  number,  // \p{N}
  space,   // \s
};

/// The class of a character. O(1) for ASCII, else a binary search.
CharClass char_class(char32_t point);

/// Whether the reference's digit rule isolates the character: a newer Unicode than \p{N} knows.
bool is_digit_rule_number(char32_t point);

/// A letter, number or underscore, as `\w` asks.
bool is_word_char(char32_t point);

}  // namespace luna::text
