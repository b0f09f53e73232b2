// Patterns from settings, matched in bounded time. Compiled into the role plugins that need them.
#pragma once

#include <luna/result.hpp>

#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace luna::pattern {

/// A compiled pattern. Read-only after creation.
class Pattern {
 public:
  enum class Extent { anywhere, whole_text };

  /// Errors  invalid_argument (the pattern, its position, why)
  static Result<Pattern> compile(const std::string& pattern, Extent extent);

  /// Whether the text matches. The search is bounded, so a hostile text costs milliseconds.
  /// Errors  exhausted (the bound was reached)
  [[nodiscard]] Result<bool> matches(std::string_view text) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit Pattern(pcre2_real_code_8* code) : code_(code) {}
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

}  // namespace luna::pattern
