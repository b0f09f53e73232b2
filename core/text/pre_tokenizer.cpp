#include "core/text/pre_tokenizer.hpp"

#include "core/text/unicode_classes.hpp"
#include "core/text/utf8.hpp"

#include <cstddef>

namespace luna::text {
namespace {

/// One character with its class.
struct Cursor {
  char32_t point = 0;
  std::size_t n_bytes = 0;  // 0 at the end of the text
  CharClass kind = CharClass::other;

  [[nodiscard]] bool at_end() const { return n_bytes == 0; }
  [[nodiscard]] bool is_line_end() const { return !at_end() && (point == '\r' || point == '\n'); }
  /// [^\s\p{L}\p{N}]
  [[nodiscard]] bool is_other() const { return !at_end() && kind == CharClass::other; }
  [[nodiscard]] bool is(CharClass wanted) const { return !at_end() && kind == wanted; }
};

/// Finds the words of one piece by trying the alternatives of a pattern in its order.
class WordCutter {
 public:
  explicit WordCutter(std::string_view text) : text_(text) {}

  /// The end of the word that begins at `pos`.
  [[nodiscard]] std::size_t gpt2_word(std::size_t pos) const {
    const Cursor first = at(pos);
    if (first.point == '\'') {
      if (const std::size_t n = contraction(pos, Case::exact); n > 0) return pos + n;
    }
    const std::size_t body = first.point == ' ' ? pos + 1 : pos;
    const Cursor head = at(body);
    if (head.is(CharClass::letter)) return run(body, CharClass::letter);
    if (head.is(CharClass::number)) return run(body, CharClass::number);
    if (head.is_other()) return run(body, CharClass::other);
    return spaces(pos);
  }

  [[nodiscard]] std::size_t llama3_word(std::size_t pos, std::size_t digits_max) const {
    const Cursor first = at(pos);
    if (first.point == '\'') {
      if (const std::size_t n = contraction(pos, Case::any); n > 0) return pos + n;
    }
    // [^\r\n\p{L}\p{N}]?\p{L}+
    if (first.kind == CharClass::letter) return run(pos, CharClass::letter);
    if (first.kind != CharClass::number && !first.is_line_end() &&
        at(pos + first.n_bytes).is(CharClass::letter)) {
      return run(pos + first.n_bytes, CharClass::letter);
    }
    if (first.kind == CharClass::number) return numbers(pos, digits_max);
    //  ?[^\s\p{L}\p{N}]+[\r\n]*
    const std::size_t body = first.point == ' ' ? pos + 1 : pos;
    if (at(body).is_other()) return line_ends(run(body, CharClass::other));
    // \s*[\r\n]+ : up to the last line end of the white space
    if (const std::size_t end = last_line_end(pos); end > pos) return end;
    return spaces(pos);
  }

 private:
  enum class Case { exact, any };

  [[nodiscard]] Cursor at(std::size_t pos) const {
    if (pos >= text_.size()) return {};
    const Utf8Step step = utf8_step(text_, pos);
    return {step.point, step.n_bytes, step.valid ? char_class(step.point) : CharClass::other};
  }

  [[nodiscard]] std::size_t run(std::size_t pos, CharClass kind) const {
    for (Cursor c = at(pos); c.is(kind); c = at(pos))
      pos += c.n_bytes;
    return pos;
  }

  [[nodiscard]] std::size_t numbers(std::size_t pos, std::size_t n_max) const {
    for (std::size_t n = 0; n < n_max; ++n) {
      const Cursor c = at(pos);
      if (!c.is(CharClass::number)) break;
      pos += c.n_bytes;
    }
    return pos;
  }

  [[nodiscard]] std::size_t line_ends(std::size_t pos) const {
    while (at(pos).is_line_end())
      ++pos;
    return pos;
  }

  [[nodiscard]] std::size_t last_line_end(std::size_t pos) const {
    std::size_t end = pos;
    for (Cursor c = at(pos); c.is(CharClass::space); c = at(pos)) {
      pos += c.n_bytes;
      if (c.is_line_end()) end = pos;
    }
    return end;
  }

  /// \s+(?!\S)|\s+ : all white space at the end of the text, else all but its last character,
  /// unless it is one character alone.
  [[nodiscard]] std::size_t spaces(std::size_t begin) const {
    std::size_t pos = begin;
    std::size_t last = begin;
    for (Cursor c = at(pos); c.is(CharClass::space); c = at(pos)) {
      last = pos;
      pos += c.n_bytes;
    }
    return pos == text_.size() || last == begin ? pos : last;
  }

  /// The bytes of 's|'t|'re|'ve|'m|'ll|'d at `pos`, or 0.
  [[nodiscard]] std::size_t contraction(std::size_t pos, Case rule) const {
    const Cursor first = at(pos + 1);
    const char32_t a = folded(first, rule);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 1 + first.n_bytes;
    if (a != 'r' && a != 'v' && a != 'l') return 0;
    const Cursor second = at(pos + 1 + first.n_bytes);
    const char32_t wanted = a == 'l' ? U'l' : U'e';
    return folded(second, rule) == wanted ? 1 + first.n_bytes + second.n_bytes : 0;
  }

  static char32_t folded(const Cursor& c, Case rule) {
    if (c.at_end()) return 0;
    if (rule == Case::exact) return c.point;
    if (c.point >= 'A' && c.point <= 'Z') return c.point + ('a' - 'A');
    return c.point == 0x17F ? U's' : c.point;  // U+017F, the long s, folds to s
  }

  std::string_view text_;
};

void split_piece(std::string_view piece,
                 WordPattern pattern,
                 std::vector<std::string_view>& words) {
  if (pattern == WordPattern::whole) {
    if (!piece.empty()) words.push_back(piece);
    return;
  }
  const WordCutter cutter(piece);
  for (std::size_t pos = 0; pos < piece.size();) {
    const std::size_t end = pattern == WordPattern::gpt2     ? cutter.gpt2_word(pos)
                            : pattern == WordPattern::llama3 ? cutter.llama3_word(pos, 3)
                                                             : cutter.llama3_word(pos, 1);
    words.push_back(piece.substr(pos, end - pos));
    pos = end;
  }
}

}  // namespace

void split_words(std::string_view text,
                 const SplitRules& rules,
                 std::vector<std::string_view>& words) {
  if (rules.digits == DigitRule::joined) return split_piece(text, rules.pattern, words);
  // Digits are pieces of their own; the pattern sees each piece alone, also when it looks ahead.
  std::size_t begin = 0;
  bool begins_with_digit = false;
  for (std::size_t pos = 0; pos < text.size();) {
    const Utf8Step step = utf8_step(text, pos);
    const bool digit = step.valid && is_digit_rule_number(step.point);
    const bool cuts = digit != begins_with_digit || (digit && rules.digits == DigitRule::single);
    if (cuts && pos > begin) {
      split_piece(text.substr(begin, pos - begin), rules.pattern, words);
      begin = pos;
    }
    begins_with_digit = digit;
    pos += step.n_bytes;
  }
  split_piece(text.substr(begin), rules.pattern, words);
}

}  // namespace luna::text
