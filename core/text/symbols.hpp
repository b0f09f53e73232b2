// Characters as symbols of a merger, where a vocabulary has no token for them.
#pragma once

#include "core/text/vocabulary.hpp"

#include <cstdint>

namespace luna::text {

/// How vocabularies over characters write a space.
inline constexpr char32_t kSpaceMark = 0x2581;

// Vocabularies have fewer than 2^31 tokens: the ids above are free.
inline constexpr TokenId kSymbolBit = 0x80000000U;
constexpr TokenId symbol_of(char32_t point) {
  return kSymbolBit | static_cast<TokenId>(point);
}
constexpr bool is_symbol(TokenId id) {
  return (id & kSymbolBit) != 0;
}
constexpr char32_t point_of(TokenId symbol) {
  return symbol & ~kSymbolBit;
}

}  // namespace luna::text
