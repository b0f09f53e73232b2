// The named ways of cutting a text into words before merging, as the families publish them.
#pragma once

#include <luna/result.hpp>

#include <cstdint>
#include <string_view>

namespace luna::text {

/// Which regular expression of the reference cuts words.
enum class WordPattern : std::uint8_t {
  whole,   // no cut
  gpt2,    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  llama3,  // (?i:'s|...)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
           // \s*[\r\n]+|\s+(?!\S)|\s+
  qwen2,   // llama3 with \p{N} for \p{N}{1,3}
};

/// What stands before the word pattern.
enum class DigitRule : std::uint8_t {
  joined,   // digits are left to the word pattern
  single,   // each numeric character is a word of its own
  grouped,  // each run of numeric characters is
};

/// How one family normalises and splits. A value.
struct SplitRules {
  WordPattern pattern = WordPattern::gpt2;
  DigitRule digits = DigitRule::joined;
  bool nfc = false;             // canonical composition first
  bool ignores_merges = false;  // a word that is a token is taken whole, whatever the merges say
  bool by_characters = false;   // symbols are characters, U+2581 for a space; otherwise bytes
  bool adds_space = false;      // by characters: one more space before a text

  friend bool operator==(const SplitRules&, const SplitRules&) = default;
};

/// The rules that a GGUF file names in `tokenizer.ggml.pre`.
/// Errors  unsupported, with the list of known names: a name is refused, never guessed
Result<SplitRules> split_rules_by_name(std::string_view name);

/// The pattern whose source a `tokenizer.json` gives, character for character.
/// Errors  unsupported, with the source
Result<WordPattern> word_pattern_by_source(std::string_view source);

}  // namespace luna::text
