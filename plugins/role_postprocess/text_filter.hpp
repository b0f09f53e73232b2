// A rule over a stream of text.
#pragma once

#include <string>
#include <string_view>

namespace luna::postprocess {

/// Text in, text out, in any pieces. What comes out in all depends on what went in in all, not on
/// where it was cut; each filter holds back as little as that allows. One per choice. An interface.
class TextFilter {
 public:
  virtual ~TextFilter() = default;

  /// Takes the next piece; appends what may leave.
  virtual void push(std::string_view piece, std::string& out) = 0;
  /// The stream has ended; appends what was held back and what the rule adds.
  virtual void finish(std::string& out) = 0;
  /// Nothing that may still come can change the output.
  [[nodiscard]] virtual bool is_full() const { return false; }
};

}  // namespace luna::postprocess
