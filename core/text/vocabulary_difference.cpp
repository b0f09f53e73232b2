#include "core/text/vocabulary_difference.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace luna::text {
namespace {

// A token may be long, and comes from a file.
constexpr std::size_t kQuotedBytesMax = 64;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text.substr(0, kQuotedBytesMax))
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
  return out + (text.size() > kQuotedBytesMax ? "...\"" : "\"");
}

std::string differs(const std::string& what, const std::string& a, const std::string& b) {
  return what + " is " + a + " in the one and " + b + " in the other";
}

std::optional<std::string> first_difference(const std::string& what,
                                            const std::vector<std::string>& a,
                                            const std::vector<std::string>& b) {
  const std::size_t n = std::min(a.size(), b.size());
  for (std::size_t i = 0; i < n; ++i)
    if (a[i] != b[i]) return differs(what + " " + std::to_string(i), quoted(a[i]), quoted(b[i]));
  if (a.size() == b.size()) return std::nullopt;
  return differs("the number of " + what + "s", std::to_string(a.size()), std::to_string(b.size()));
}

}  // namespace

std::optional<std::string> first_difference(const Vocabulary& a, const Vocabulary& b) {
  if (a.model != b.model) return differs("the kind", quoted(a.model), quoted(b.model));
  if (auto difference = first_difference("token", a.tokens, b.tokens)) return difference;
  for (std::size_t i = 0; i < std::min(a.types.size(), b.types.size()); ++i) {
    const auto number = [](TokenType type) { return std::to_string(static_cast<unsigned>(type)); };
    if (a.types[i] != b.types[i])
      return differs(
          "the type of token " + std::to_string(i), number(a.types[i]), number(b.types[i]));
  }
  if (auto difference = first_difference("merge", a.merges, b.merges)) return difference;
  if (a.pre != b.pre) return differs("the pre-tokenizer", quoted(a.pre), quoted(b.pre));
  return std::nullopt;
}

}  // namespace luna::text
