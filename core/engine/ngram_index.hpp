// Where a text has said the same before: the last place of every n-gram, by its length.
#pragma once

#include "core/pipeline/request.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace luna::engine {

/// A sequence's tokens where they lie: its prompt, then what was generated. A value; both outlive
/// it.
struct SplitText {
  std::span<const pipeline::TokenId> prompt;
  std::span<const pipeline::TokenId> output;

  [[nodiscard]] std::uint32_t size() const {
    return static_cast<std::uint32_t>(prompt.size() + output.size());
  }
  [[nodiscard]] pipeline::TokenId operator[](std::uint32_t i) const {
    return i < prompt.size() ? prompt[i] : output[i - prompt.size()];
  }
};

/// Which lengths are looked up; n_max = 0: none.
struct NgramLengths {
  std::uint32_t n_min = 1;
  std::uint32_t n_max = 0;  ///< at most kNgramMax
};
inline constexpr std::uint32_t kNgramMax = 8;

/// The n-grams that end at one place of a text, hashed from their last token on, so that all
/// lengths cost one walk.
class NgramHashes {
 public:
  /// end   one past the last token
  NgramHashes(const SplitText& text, std::uint32_t end, std::uint32_t n_max);
  [[nodiscard]] std::uint32_t n_max() const { return n_max_; }
  [[nodiscard]] std::uint64_t operator[](std::uint32_t n) const { return by_length_[n - 1]; }

 private:
  std::uint32_t n_max_;  // no longer than the text
  std::array<std::uint64_t, kNgramMax> by_length_{};
};

/// A table a length: n-gram to the place where it ended last. Tokens are compared, so hashes decide
/// nothing; an entry is looked for in a few slots only, and the oldest of them makes room, so that
/// no text makes a step slow. Allocates at construction only. A resource of its choice or request.
class NgramIndex {
 public:
  NgramIndex() = default;
  /// n_ends_max   places that will be added
  NgramIndex(const NgramLengths& lengths, std::size_t n_ends_max);

  /// Notes the n-grams that end before `end`, which is past all that were added. Cost  O(n_max)
  void add(const SplitText& text, std::uint32_t end);
  /// The last place where the n tokens before `end` ended, among those added.
  [[nodiscard]] std::optional<std::uint32_t> find(const SplitText& text,
                                                  std::uint32_t end,
                                                  std::uint32_t n,
                                                  const NgramHashes& hashes) const;

 private:
  [[nodiscard]] std::size_t first_slot(std::uint32_t n, std::uint64_t hash) const;

  NgramLengths lengths_;
  std::size_t mask_ = 0;              // slots of a length, less one
  std::vector<std::uint32_t> slots_;  // [lengths, mask + 1]: the end of an n-gram; 0: free
};

/// A place that the end of the text repeats.
struct NgramMatch {
  std::uint32_t end = 0;       ///< one past the repeated tokens
  std::uint32_t n_tokens = 0;  ///< how many are the same, counted to kMatchMax
};
inline constexpr std::uint32_t kMatchMax = 32;

/// The longest n-gram at the text's end that stood before, at its last place; the match is then
/// measured beyond it. `output` has the places past the prompt, but for the text's end.
/// Cost  O(lengths + kMatchMax)
[[nodiscard]] std::optional<NgramMatch> longest_match(const SplitText& text,
                                                      const NgramLengths& lengths,
                                                      const NgramIndex& prompt,
                                                      const NgramIndex& output);

/// The tokens that followed the match; where they reach the text's end, it is taken to go round.
void continue_match(const SplitText& text,
                    const NgramMatch& match,
                    std::span<pipeline::TokenId> draft);

}  // namespace luna::engine
