// Ends JSON text that was cut off.
#pragma once

#include "text_filter.hpp"

#include <cstdint>

namespace luna::postprocess {

/// Where the text begins as JSON (an object or an array): drops a comma that nothing follows, and
/// at the end closes what is open: string, arrays, objects. Nothing else is changed, and a text
/// whose brackets do not match is left alone from there on.
///
/// Held back: a comma with the whitespace behind it, and a begun escape, since a string cannot be
/// closed in the middle of one.
class JsonRepair final : public TextFilter {
 public:
  void push(std::string_view piece, std::string& out) override;
  void finish(std::string& out) override;

 private:
  enum class Mode : std::uint8_t { before, value, string, escape, after_comma, as_is };

  void take(char byte, std::string& out);
  void take_value(char byte, std::string& out);
  void take_string(char byte, std::string& out);
  void take_escape(char byte, std::string& out);
  void close(char byte);

  Mode mode_ = Mode::before;
  std::string closers_;  // of the open containers, the innermost last
  std::string held_;
};

}  // namespace luna::postprocess
