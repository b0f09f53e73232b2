#include "core/text/split_rules.hpp"

#include <array>
#include <string>

namespace luna::text {
namespace {

struct NamedRules {
  std::string_view name;
  SplitRules rules;
};

constexpr SplitRules kGpt2{};
constexpr SplitRules kSmollm{.digits = DigitRule::single};
constexpr SplitRules kLlama3{.pattern = WordPattern::llama3, .ignores_merges = true};
constexpr SplitRules kQwen2{.pattern = WordPattern::qwen2, .nfc = true};

constexpr std::array kByName{
    NamedRules{"gpt-2", kGpt2},
    NamedRules{"gpt2", kGpt2},
    NamedRules{"smollm", kSmollm},
    NamedRules{"llama-bpe", kLlama3},
    NamedRules{"llama3", kLlama3},
    NamedRules{"llama-v3", kLlama3},
    NamedRules{"qwen2", kQwen2},
};

constexpr std::string_view kGpt2Source =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Two spellings of the same contractions are in use.
constexpr std::string_view kContractions = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";
constexpr std::string_view kLlama3Rest =
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Rest =
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

Result<SplitRules> split_rules_by_name(std::string_view name) {
  std::string known;
  for (const NamedRules& entry : kByName) {
    if (entry.name == name) return entry.rules;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  return Error{Code::unsupported,
               "pre-tokenizer \"" + std::string(name.substr(0, 64)) +
                   "\" is not known; known are: " + known};
}

Result<WordPattern> word_pattern_by_source(std::string_view source) {
  if (source == kGpt2Source) return WordPattern::gpt2;
  if (source.starts_with(kContractions)) {
    const std::string_view rest = source.substr(kContractions.size());
    if (rest == kLlama3Rest) return WordPattern::llama3;
    if (rest == kQwen2Rest) return WordPattern::qwen2;
  }
  return Error{Code::unsupported,
               "pre-tokenizer pattern is not known (gpt-2, llama-3 and qwen2 are): " +
                   std::string(source.substr(0, 200))};
}

}  // namespace luna::text
