// A hash of 32-bit words that spreads well and is the same everywhere. Not for secrets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace luna {

/// Both halves of a product of 64 x 64 bits, folded into one.
constexpr std::uint64_t fold_product(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = Wide{a} * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
}

/// Goes on from `state`, so that hash(hash(s, a), b) depends on all words of a and b.
///
/// Source  Wang Yi, wyhash: a product of 64 x 64 bits with both halves kept, a pair of words a time
constexpr std::uint64_t hash_words(std::uint64_t state, std::span<const std::uint32_t> words) {
  constexpr std::uint64_t kMul0 = 0xA0761D6478BD642FU;
  constexpr std::uint64_t kMul1 = 0xE7037ED1A0B428DBU;
  state ^= kMul0;
  std::size_t i = 0;
  for (; i + 1 < words.size(); i += 2)
    state = fold_product((std::uint64_t{words[i]} << 32U | words[i + 1]) ^ kMul1, state ^ kMul0);
  if (i < words.size()) state = fold_product(words[i] ^ kMul1, state ^ kMul0);
  return fold_product(state ^ words.size(), kMul1);
}

}  // namespace luna
