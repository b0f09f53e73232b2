// What the whole text must and must not be like.
#pragma once

#include "../role_pattern/pattern.hpp"

#include <luna/result.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace luna::postprocess {

using pattern::Pattern;

/// The rules of one instance. Nothing of a text may leave before the verdict, so whoever checks
/// holds all of it.
struct PatternRules {
  std::optional<Pattern> must_match;      ///< the whole text
  std::optional<Pattern> must_not_match;  ///< anywhere
  /// Sent instead of a text that breaks a rule; none: the request fails.
  std::optional<std::string> replacement;

  [[nodiscard]] bool are_empty() const { return !must_match && !must_not_match; }
  /// Errors  invalid_argument: the text breaks a rule; exhausted: it could not be told
  [[nodiscard]] Result<void> check(std::string_view text) const;
};

}  // namespace luna::postprocess
