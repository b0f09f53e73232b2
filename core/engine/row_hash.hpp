// A row's bits as one number, to tell whether two runs computed the same.
#pragma once

#include "core/base/word_hash.hpp"
#include "core/engine/sampler.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace luna::engine {

/// Goes on from the hash of the rows before. Every logit and every candidate counts, to the bit.
inline std::uint64_t hash_row(std::uint64_t state, const LogitsRow& row) {
  std::array<std::uint32_t, 64> words{};
  std::size_t n = 0;
  const auto put = [&](std::uint32_t word) {
    words[n++] = word;
    if (n < words.size()) return;
    state = hash_words(state, words);
    n = 0;
  };
  for (const float logit : row.logits)
    put(std::bit_cast<std::uint32_t>(logit));
  for (const model::Candidate& candidate : row.candidates) {
    put(std::bit_cast<std::uint32_t>(candidate.logit));
    put(candidate.token_id);
  }
  put(std::bit_cast<std::uint32_t>(row.log_sum_exp));
  return hash_words(state, std::span(words).first(n));
}

}  // namespace luna::engine
