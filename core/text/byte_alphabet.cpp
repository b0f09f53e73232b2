#include "core/text/byte_alphabet.hpp"

#include "core/text/utf8.hpp"

#include <array>

namespace luna::text {
namespace {

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// The bytes that are not printable take the characters from U+0100 on, in their order.
constexpr unsigned kFirstMoved = 0x100;
constexpr unsigned kAlphabetEnd = 0x144;

struct Alphabet {
  std::array<char32_t, 256> char_by_byte{};
  std::array<std::int16_t, kAlphabetEnd> byte_by_char{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (auto& byte : alphabet.byte_by_char)
    byte = -1;
  unsigned moved = kFirstMoved;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const unsigned point = stands_for_itself(byte) ? byte : moved++;
    alphabet.char_by_byte[byte] = point;
    alphabet.byte_by_char[point] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}
constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

char32_t alphabet_char(std::uint8_t byte) {
  return kAlphabet.char_by_byte[byte];
}

std::optional<std::string> alphabet_decode(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t pos = 0; pos < text.size();) {
    const Utf8Step step = utf8_step(text, pos);
    if (!step.valid || step.point >= kAlphabetEnd) return std::nullopt;
    const std::int16_t byte = kAlphabet.byte_by_char[step.point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    pos += step.n_bytes;
  }
  return bytes;
}

}  // namespace luna::text
