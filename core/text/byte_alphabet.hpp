// GPT-2's printable alphabet: each byte is one character, so that a vocabulary of bytes is text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace luna::text {

/// The character that stands for a byte.
char32_t alphabet_char(std::uint8_t byte);

/// The bytes that a text in the alphabet stands for; nullopt where a character is not of it.
std::optional<std::string> alphabet_decode(std::string_view text);

}  // namespace luna::text
