// Where the prompts of a load run come from.
#pragma once

#include <luna/result.hpp>

#include <boost/json/array.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace luna::bench {

using TokenIds = std::vector<std::uint32_t>;

/// One request's input. Text and ids go to /v1/completions, messages to /v1/chat/completions.
struct Prompt {
  std::variant<std::string, TokenIds, boost::json::array> input;
  std::uint32_t n_generated_max = 0;
};

/// Prompts made of random token ids, all different after the shared prefix.
struct SyntheticPrompts {
  std::uint32_t n_tokens = 200;
  std::uint32_t n_shared_prefix_tokens = 0;  ///< of these, at the front
  std::uint32_t n_prefixes = 1;              ///< each prompt has one of so many, drawn evenly
  /// Tokens after the prefix, and tokens to generate, are drawn evenly within so many per cent of
  /// the numbers given.
  std::uint32_t spread_percent = 0;
  /// Prompt and output together; what was drawn longer shrinks, both parts alike. None: no bound.
  std::optional<std::uint32_t> n_sequence_tokens_max;
  std::uint32_t token_id_min = 300;          ///< above the control tokens of common vocabularies
  std::uint32_t token_id_max = 20'000;       ///< below the shortest of them
  std::uint64_t seed = 0;                    ///< of the ids after the prefix
  std::optional<std::uint64_t> prefix_seed;  ///< of the prefixes' ids; none: `seed`
  std::optional<std::uint64_t> draw_seed;    ///< of lengths and who has which prefix; none: `seed`
};

/// A value: prompt(i) is a function of i.
class PromptSource {
 public:
  /// Source of synthetic prompts.
  /// Errors  invalid_argument (no tokens, a prefix as long as the prompt, no prefixes, a spread of
  ///         100 % or more, a bound that leaves no room after the prefix, an empty range of ids)
  static Result<PromptSource> synthetic(const SyntheticPrompts& prompts, std::uint32_t n_generated);

  /// Reads a file, one prompt a line, used in turn. A line of a `.jsonl` file is a string, or an
  /// object with "prompt" (a string or a list of token ids) or "messages", and perhaps
  /// "max_tokens"; any other file holds plain text.
  /// Errors  not_found, io, corrupt (with the line's number)
  static Result<PromptSource> from_file(const std::filesystem::path& path,
                                        std::uint32_t n_generated);

  [[nodiscard]] Prompt prompt(std::size_t request_idx) const;
  /// Which of the synthetic prefixes a prompt has; 0 of those of a file.
  [[nodiscard]] std::uint32_t prefix_of(std::size_t request_idx) const;
  /// Prompts before they repeat; none: they never do.
  [[nodiscard]] std::optional<std::size_t> n_distinct() const;

 private:
  struct Lengths {
    std::uint32_t n_fresh = 0;  // after the prefix
    std::uint32_t n_generated = 0;
  };
  [[nodiscard]] Lengths draw_lengths(std::size_t request_idx) const;

  SyntheticPrompts synthetic_;
  std::uint32_t n_generated_ = 0;
  std::vector<Prompt> listed_;  // empty: synthetic
};

}  // namespace luna::bench
