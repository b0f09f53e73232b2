// Text that remembers who wrote it.
#pragma once

#include <string>

namespace luna::text {

/// A stretch of text of one origin. Only trusted text (the operator's template) may become control
/// tokens; what a client sent stays text.
struct TextRun {
  std::string text;
  bool trusted = false;

  friend bool operator==(const TextRun&, const TextRun&) = default;
};

}  // namespace luna::text
