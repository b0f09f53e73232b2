#include "core/text/template_lexer.hpp"

#include "core/text/python_text.hpp"
#include "core/text/unicode_classes.hpp"
#include "core/text/utf8.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace luna::text::jinja {
namespace {

// Longer ones first.
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Result<std::vector<Token>> run() {
    while (pos_ < source_.size())
      LUNA_TRY(step());
    push(TokenKind::end, pos_);
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] Error fail(std::size_t at, const std::string& what) const {
    return {Code::corrupt, "template:" + position_of(source_, at) + ": " + what};
  }
  [[nodiscard]] std::string_view rest() const { return source_.substr(pos_); }
  Token& push(TokenKind kind, std::size_t at) {
    tokens_.push_back({});
    tokens_.back().kind = kind;
    tokens_.back().offset = static_cast<std::uint32_t>(at);
    return tokens_.back();
  }

  /// Reads text up to the next tag, and the tag.
  Result<void> step() {
    std::size_t tag = pos_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= source_.size()) {
        push_data(pos_, source_.size());
        pos_ = source_.size();
        return {};
      }
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    const bool has_sign = sign == '-' || sign == '+';
    push_data(pos_, stripped_end(pos_, tag, has_sign ? sign : ' ', kind != '{'));
    pos_ = tag + (has_sign ? 3 : 2);
    if (kind == '#') return skip_comment(tag);
    if (kind == '%' && begins_raw()) return read_raw(tag);
    push(kind == '%' ? TokenKind::block_begin : TokenKind::variable_begin, tag);
    return read_tag(tag, kind == '%');
  }

  void push_data(std::size_t begin, std::size_t end) {
    if (end > begin) push(TokenKind::data, begin).text = source_.substr(begin, end - begin);
  }

  /// Where the text before a tag ends once the white space is gone that the tag takes.
  [[nodiscard]] std::size_t stripped_end(std::size_t begin,
                                         std::size_t tag,
                                         char sign,
                                         bool is_block) const {
    const std::string_view text = source_.substr(begin, tag - begin);
    if (sign == '-') return tag - trailing_space_bytes(text);
    if (sign == '+' || !is_block) return tag;
    const std::size_t newline = text.rfind('\n');
    const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if (line == 0 && !line_starting_) return tag;
    const std::string_view before = text.substr(line);
    return leading_space_bytes(before) == before.size() ? begin + line : tag;
  }

  /// Ends a tag: what follows may be taken along.
  void end_tag(std::size_t end, bool strips, bool takes_newline) {
    pos_ = end;
    if (strips) pos_ += leading_space_bytes(rest());
    if (!strips && takes_newline && pos_ < source_.size() && source_[pos_] == '\n') ++pos_;
    line_starting_ = pos_ > 0 && source_[pos_ - 1] == '\n';
  }

  Result<void> skip_comment(std::size_t tag) {
    if (pos_ == source_.size()) return {};  // as in the reference
    const std::size_t end = source_.find("#}", pos_);
    if (end == std::string_view::npos) return fail(tag, "missing end of comment tag");
    const char sign = end > pos_ ? source_[end - 1] : ' ';
    end_tag(end + 2, sign == '-', sign != '+');
    return {};
  }

  /// Whether the tag is {% raw %}; if so pos_ moves behind it.
  bool begins_raw() {
    std::size_t at = pos_ + leading_space_bytes(rest());
    if (!source_.substr(at).starts_with("raw")) return false;
    at += 3;
    at += leading_space_bytes(source_.substr(at));
    const bool strips = source_.substr(at).starts_with("-%}");
    if (!strips && !source_.substr(at).starts_with("%}")) return false;
    end_tag(at + (strips ? 3 : 2), strips, false);
    return true;
  }

  Result<void> read_raw(std::size_t tag) {
    if (pos_ == source_.size()) return {};  // as in the reference
    for (std::size_t at = pos_;; ++at) {
      at = source_.find("{%", at);
      if (at == std::string_view::npos) return fail(tag, "missing end of raw directive");
      std::size_t name = at + 2;
      const char sign = name < source_.size() ? source_[name] : ' ';
      if (sign == '-' || sign == '+') ++name;
      name += leading_space_bytes(source_.substr(name));
      if (!source_.substr(name).starts_with("endraw")) continue;
      std::size_t end = name + 6;
      end += leading_space_bytes(source_.substr(end));
      const char end_sign = end < source_.size() ? source_[end] : ' ';
      if (end_sign == '-' || end_sign == '+') ++end;
      if (!source_.substr(end).starts_with("%}")) continue;
      push_data(pos_, stripped_end(pos_, at, sign, true));
      end_tag(end + 2, end_sign == '-', end_sign != '+');
      return {};
    }
  }

  /// Reads the tokens of a tag up to its end.
  Result<void> read_tag(std::size_t tag, bool is_block) {
    const std::string_view closing = is_block ? "%}" : "}}";
    brackets_.clear();
    for (;;) {
      pos_ += leading_space_bytes(rest());
      if (pos_ >= source_.size()) return fail(tag, "the tag that begins here has no end");
      if (brackets_.empty()) {
        const bool minus = source_[pos_] == '-';
        const bool plus = is_block && source_[pos_] == '+';
        const std::size_t at = pos_ + (minus || plus ? 1 : 0);
        if (source_.substr(at).starts_with(closing)) {
          push(is_block ? TokenKind::block_end : TokenKind::variable_end, pos_);
          end_tag(at + 2, minus, is_block && !plus);
          return {};
        }
      }
      LUNA_TRY(read_token());
    }
  }

  Result<void> read_token() {
    const char c = source_[pos_];
    if (is_digit(c)) return read_number();
    if (c == '\'' || c == '"') return read_string(c);
    const Utf8Step step = utf8_step(source_, pos_);
    if (step.valid && is_word_char(step.point)) {
      push(TokenKind::name, pos_);
      const std::size_t begin = pos_;
      for (Utf8Step s = step; pos_ < source_.size(); pos_ += s.n_bytes) {
        s = utf8_step(source_, pos_);
        if (!s.valid || !is_word_char(s.point)) break;
      }
      tokens_.back().text = source_.substr(begin, pos_ - begin);
      return {};
    }
    for (const std::string_view op : kOperators) {
      if (rest().starts_with(op)) return push_operator(op);
    }
    return fail(pos_, "unexpected character " + std::string(rest().substr(0, step.n_bytes)));
  }

  Result<void> push_operator(std::string_view op) {
    const char c = op[0];
    if (c == '(' || c == '[' || c == '{')
      brackets_.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (brackets_.empty() || brackets_.back() != c) {
        return fail(pos_, std::string("unexpected '") + c + "'");
      }
      brackets_.pop_back();
    }
    push(TokenKind::op, pos_).text = op;
    pos_ += op.size();
    return {};
  }

  /// Digits with single underscores between.
  [[nodiscard]] std::size_t digits_end(std::size_t at) const {
    while (at < source_.size() &&
           (is_digit(source_[at]) ||
            (source_[at] == '_' && at + 1 < source_.size() && is_digit(source_[at + 1])))) {
      ++at;
    }
    return at;
  }

  Result<void> read_number() {
    const std::size_t begin = pos_;
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';
    std::size_t end = digits_end(begin);
    bool is_real = false;
    if (!after_dot) {
      const auto digit_at = [this](std::size_t at) {
        return at < source_.size() && is_digit(source_[at]);
      };
      if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
        end = digits_end(end + 1);
        is_real = true;
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        std::size_t exponent = end + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-'))
          ++exponent;
        if (digit_at(exponent)) {
          end = digits_end(exponent);
          is_real = true;
        }
      }
    }
    std::string text(source_.substr(begin, end - begin));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    Token& token = push(is_real ? TokenKind::real : TokenKind::integer, begin);
    token.text = text;
    pos_ = end;
    const char* const first = text.data();
    const char* const last = first + text.size();
    if (is_real) {
      // A value out of range is infinite or zero in Python; from_chars leaves it alone.
      if (std::from_chars(first, last, token.real).ec != std::errc()) {
        return fail(begin, "number " + text + " is out of range");
      }
      return {};
    }
    return read_integer(begin, token);
  }

  /// Also 0x, 0o and 0b.
  Result<void> read_integer(std::size_t begin, Token& token) {
    int base = 10;
    std::string text = token.text;
    if (text == "0" && pos_ < source_.size()) {
      const char letter = static_cast<char>(source_[pos_] | 0x20);
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
      if (base != 10) {
        std::size_t end = pos_ + 1;
        while (end < source_.size() && is_word_char(static_cast<unsigned char>(source_[end])) &&
               static_cast<unsigned char>(source_[end]) < 0x80) {
          ++end;
        }
        text = source_.substr(pos_ + 1, end - pos_ - 1);
        text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
        pos_ = end;
      }
    }
    const auto done = std::from_chars(text.data(), text.data() + text.size(), token.integer, base);
    if (done.ec != std::errc() || done.ptr != text.data() + text.size()) {
      return fail(begin, "number " + text + " is not an integer of 64 bits");
    }
    return {};
  }

  Result<void> read_string(char quote) {
    const std::size_t begin = pos_;
    std::size_t at = pos_ + 1;
    while (at < source_.size() && source_[at] != quote)
      at += source_[at] == '\\' ? 2 : 1;
    if (at >= source_.size()) return fail(begin, "the string that begins here has no end");
    push(TokenKind::string, begin);
    const auto value = unescape(source_.substr(begin + 1, at - begin - 1));
    if (!value) return fail(begin, "a string with a broken escape");
    tokens_.back().text = *value;
    pos_ = at + 1;
    return {};
  }

  /// The escapes of Python strings. nullopt where one is broken.
  static std::optional<std::string> unescape(std::string_view raw) {
    std::string out;
    for (;;) {
      const std::size_t backslash = raw.find('\\');
      const bool is_last = backslash == std::string_view::npos || backslash + 1 == raw.size();
      if (is_last) return out.append(raw);
      out += raw.substr(0, backslash);
      raw.remove_prefix(backslash + 1);
      const std::optional<std::size_t> n_taken = append_escape(raw, out);
      if (!n_taken) return std::nullopt;
      raw.remove_prefix(*n_taken);
    }
  }

  /// What stands after a backslash. Returns how much of it the escape takes; nullopt: it is broken.
  static std::optional<std::size_t> append_escape(std::string_view rest, std::string& out) {
    constexpr std::string_view kNames = "\\'\"abfnrtv";
    constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
    const char c = rest[0];
    if (const std::size_t known = kNames.find(c); known != std::string_view::npos) {
      out += kValues[known];
      return 1;
    }
    if (c == '\n') return 1;            // a line that goes on
    if (c == 'N') return std::nullopt;  // names of characters are not kept here
    if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t n_digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      if (!append_code(rest.substr(1, n_digits), n_digits, 16, out)) return std::nullopt;
      return 1 + n_digits;
    }
    const std::string_view head = rest.substr(0, 3);  // an octal escape has up to three digits
    const std::size_t n_octal = std::min(head.find_first_not_of("01234567"), head.size());
    if (n_octal > 0) {
      if (!append_code(head.substr(0, n_octal), n_octal, 8, out)) return std::nullopt;
      return n_octal;
    }
    out += '\\';
    out += c;
    return 1;
  }

  static bool append_code(std::string_view digits,
                          std::size_t n_digits,
                          int base,
                          std::string& out) {
    std::uint32_t point = 0;
    const auto done = std::from_chars(digits.data(), digits.data() + digits.size(), point, base);
    if (digits.size() != n_digits || done.ec != std::errc() ||
        done.ptr != digits.data() + digits.size() || point > 0x10FFFF ||
        (point >= 0xD800 && point <= 0xDFFF)) {
      return false;
    }
    append_utf8(out, point);
    return true;
  }

  std::string_view source_;
  std::size_t pos_ = 0;
  bool line_starting_ = true;   // the last tag ended with a line end, or there was none
  std::vector<char> brackets_;  // that are open, by their closing sign
  std::vector<Token> tokens_;
};

}  // namespace

std::string normalized_source(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

std::string position_of(std::string_view source, std::size_t offset) {
  const std::string_view before = source.substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
  return std::to_string(line) + ":" + std::to_string(char_positions(before.substr(begin)).size());
}

Result<std::vector<Token>> lex(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace luna::text::jinja
