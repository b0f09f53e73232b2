// Tokens to text, one at a time, never half a character.
#pragma once

#include "core/text/tokenizer.hpp"

#include <string>
#include <string_view>

namespace luna::text {

/// Turns pieces of bytes into valid UTF-8. Holds back the beginning of a character until its end
/// arrives; what can never become a character is U+FFFD at once, one for each longest beginning.
///
/// One per sequence, owned by it. Thread [engine]. Allocates at construction only.
class Utf8Stream {
 public:
  /// piece_bytes_max  the longest piece that push() will get
  explicit Utf8Stream(std::size_t piece_bytes_max);

  /// Returns  the text to send now; valid until the next call
  std::string_view push(std::string_view piece);

  /// The end of the stream. Returns U+FFFD where a character was begun, else nothing.
  std::string_view flush();

  /// Bytes held back now, 0 to 3.
  [[nodiscard]] std::size_t n_held_bytes() const { return held_.size(); }

 private:
  std::string held_;   // an incomplete character
  std::string input_;  // held and new bytes
  std::string output_;
};

/// A Utf8Stream fed with tokens.
class Detokenizer {
 public:
  /// Whether the text of control tokens is sent.
  enum class ControlText { hidden, shown };

  /// tokenizer  outlives the detokenizer
  Detokenizer(const Tokenizer& tokenizer, ControlText control_text);

  /// Returns  the text to send now; valid until the next call. [engine]
  std::string_view push(TokenId id);
  std::string_view flush() { return stream_.flush(); }

 private:
  const Tokenizer* tokenizer_;
  ControlText control_text_;
  Utf8Stream stream_;
};

}  // namespace luna::text
