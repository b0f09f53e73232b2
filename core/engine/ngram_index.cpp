#include "core/engine/ngram_index.hpp"

#include "core/base/assert.hpp"

#include <algorithm>
#include <bit>

namespace luna::engine {
namespace {

// Slots that are looked at: half a cache line. At two thirds full a longer run is rare.
constexpr std::size_t kProbes = 8;

bool ends_alike(const SplitText& text, std::uint32_t a, std::uint32_t b, std::uint32_t n) {
  for (std::uint32_t i = 1; i <= n; ++i)
    if (text[a - i] != text[b - i]) return false;
  return true;
}

}  // namespace

NgramHashes::NgramHashes(const SplitText& text, std::uint32_t end, std::uint32_t n_max)
    : n_max_(std::min(n_max, end)) {
  std::uint64_t hash = 0;
  for (std::uint32_t n = 1; n <= n_max_; ++n) {
    hash = (hash + text[end - n] + 1) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 32U;
    by_length_[n - 1] = hash;
  }
}

NgramIndex::NgramIndex(const NgramLengths& lengths, std::size_t n_ends_max) : lengths_(lengths) {
  LUNA_ASSERT(lengths.n_max <= kNgramMax && lengths.n_min >= 1);
  if (lengths.n_max < lengths.n_min) return;
  const std::size_t n_slots = std::bit_ceil(std::max(n_ends_max + n_ends_max / 2, kProbes));
  mask_ = n_slots - 1;
  slots_.resize(n_slots * (lengths.n_max - lengths.n_min + 1));
}

std::size_t NgramIndex::first_slot(std::uint32_t n, std::uint64_t hash) const {
  return (n - lengths_.n_min) * (mask_ + 1) + (hash & mask_ & ~(kProbes - 1));
}

void NgramIndex::add(const SplitText& text, std::uint32_t end) {
  const NgramHashes hashes(text, end, lengths_.n_max);
  for (std::uint32_t n = lengths_.n_min; n <= hashes.n_max(); ++n) {
    const auto first = slots_.begin() + static_cast<std::ptrdiff_t>(first_slot(n, hashes[n]));
    const auto is_its_own = [&](std::uint32_t slot) {
      return slot == 0 || ends_alike(text, slot, end, n);
    };
    auto slot = std::find_if(first, first + kProbes, is_its_own);
    if (slot == first + kProbes) slot = std::min_element(first, first + kProbes);
    *slot = end;
  }
}

std::optional<std::uint32_t> NgramIndex::find(const SplitText& text,
                                              std::uint32_t end,
                                              std::uint32_t n,
                                              const NgramHashes& hashes) const {
  const std::size_t first = first_slot(n, hashes[n]);
  for (std::size_t i = first; i < first + kProbes && slots_[i] != 0; ++i)
    if (ends_alike(text, slots_[i], end, n)) return slots_[i];
  return std::nullopt;
}

std::optional<NgramMatch> longest_match(const SplitText& text,
                                        const NgramLengths& lengths,
                                        const NgramIndex& prompt,
                                        const NgramIndex& output) {
  const std::uint32_t end = text.size();
  const NgramHashes hashes(text, end, lengths.n_max);
  for (std::uint32_t n = hashes.n_max(); n >= lengths.n_min; --n) {
    std::optional<std::uint32_t> found = output.find(text, end, n, hashes);
    if (!found) found = prompt.find(text, end, n, hashes);
    if (!found) continue;
    NgramMatch match{.end = *found, .n_tokens = n};
    while (match.n_tokens < std::min(kMatchMax, match.end) &&
           text[match.end - match.n_tokens - 1] == text[end - match.n_tokens - 1])
      ++match.n_tokens;
    return match;
  }
  return std::nullopt;
}

void continue_match(const SplitText& text,
                    const NgramMatch& match,
                    std::span<pipeline::TokenId> draft) {
  const std::uint32_t n_known = text.size() - match.end;
  LUNA_ASSERT(n_known > 0);
  for (std::uint32_t i = 0; i < draft.size(); ++i)
    draft[i] = i < n_known ? text[match.end + i] : draft[i - n_known];
}

}  // namespace luna::engine
