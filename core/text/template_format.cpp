// Python's two ways of formatting: `'%s' % x`, and what str.format() shares with it.
#include "core/text/marked_text_ops.hpp"
#include "core/text/template_interpreter.hpp"
#include "core/text/template_print.hpp"
#include "core/text/utf8.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>

namespace luna::text::jinja {
namespace {

constexpr std::size_t kWidthMax = 10000;

/// One `%...` of a format.
struct Directive {
  std::string key;  // of %(key)s
  bool has_key = false;
  bool left = false, plus = false, space = false, zero = false, alternate = false;
  std::size_t width = 0;
  std::optional<std::size_t> precision;
  char type = 's';
};

class PercentFormatter {
 public:
  PercentFormatter(Interpreter& interpreter, const MarkedText& format, const Value& values)
      : interpreter_(interpreter), format_(format), text_(format.bytes()), values_(values) {}

  Result<Value> run() {
    MarkedText out;
    std::size_t plain = 0;
    while (true) {
      const std::size_t percent = text_.find('%', pos_);
      if (percent == std::string::npos) break;
      out.append(format_, plain, percent);
      pos_ = percent + 1;
      LUNA_TRY(const Directive directive, read());
      if (directive.type == '%') {
        out.append(format_, pos_ - 1, pos_);
      } else {
        LUNA_TRY(const Value value, next_value(directive));
        LUNA_TRY(const MarkedText part, format_one(directive, value));
        out.append(part);
      }
      plain = pos_;
    }
    out.append(format_, plain, text_.size());
    const bool all_used = values_.is(Kind::dict) || n_used_ == n_values() || used_mapping_;
    if (!all_used)
      return interpreter_.error("not all arguments converted during string formatting");
    return interpreter_.text(std::move(out));
  }

 private:
  [[nodiscard]] bool is_tuple() const {
    return values_.is(Kind::list) && values_.as_list().kind == ListKind::tuple;
  }
  [[nodiscard]] std::size_t n_values() const {
    return is_tuple() ? values_.as_list().items.size() : 1;
  }
  [[nodiscard]] char at(std::size_t pos) const { return pos < text_.size() ? text_[pos] : '\0'; }

  Result<std::size_t> number() {
    std::size_t n = 0;
    while (std::isdigit(static_cast<unsigned char>(at(pos_))) != 0) {
      n = n * 10 + static_cast<std::size_t>(text_[pos_++] - '0');
      if (n > kWidthMax) return interpreter_.error("a width of a format is too large");
    }
    return n;
  }

  Result<Directive> read() {
    Directive directive;
    if (at(pos_) == '(') {
      const std::size_t end = text_.find(')', pos_);
      if (end == std::string::npos) return interpreter_.error("incomplete format key");
      directive.key = text_.substr(pos_ + 1, end - pos_ - 1);
      directive.has_key = true;
      pos_ = end + 1;
    }
    for (;; ++pos_) {
      const char c = at(pos_);
      if (c == '-')
        directive.left = true;
      else if (c == '+')
        directive.plus = true;
      else if (c == ' ')
        directive.space = true;
      else if (c == '0')
        directive.zero = true;
      else if (c == '#')
        directive.alternate = true;
      else
        break;
    }
    LUNA_TRY(directive.width, number());
    if (at(pos_) == '.') {
      ++pos_;
      LUNA_TRY(directive.precision, number());
    }
    if (pos_ >= text_.size()) return interpreter_.error("incomplete format");
    directive.type = text_[pos_++];
    return directive;
  }

  Result<Value> next_value(const Directive& directive) {
    if (directive.has_key) {
      if (!values_.is(Kind::dict)) return interpreter_.error("format requires a mapping");
      used_mapping_ = true;
      const Value* found = values_.as_dict().find(directive.key);
      if (found == nullptr)
        return interpreter_.error("no key '" + directive.key + "' for the format");
      return *found;
    }
    if (n_used_ >= n_values()) return interpreter_.error("not enough arguments for format string");
    const std::size_t i = n_used_++;
    return is_tuple() ? values_.as_list().items[i] : values_;
  }

  Result<MarkedText> format_one(const Directive& directive, const Value& value) {
    if (directive.type == 's' || directive.type == 'r') {
      LUNA_TRY(interpreter_.spend(weight_of(value)));
      MarkedText text = directive.type == 's' ? to_text(value) : to_repr(value);
      if (directive.precision && *directive.precision < n_chars(text)) {
        std::size_t end = 0;
        for (std::size_t n = *directive.precision; n > 0; --n) {
          end += utf8_step(text.bytes(), end).n_bytes;
        }
        text = text.slice(0, end);
      }
      return pad(directive, text, false);
    }
    if (directive.type == 'c' && value.is(Kind::text) && n_chars(value.as_text()) == 1) {
      return pad(directive, value.as_text(), false);
    }
    if (!value.is_number()) {
      return interpreter_.error(std::string("%") + directive.type + " format: a real number is " +
                                "required, not " + std::string(type_name(value)));
    }
    LUNA_TRY(const std::string digits, format_number(directive, value));
    return pad(directive, MarkedText(digits, value.trusted() && format_.all_trusted()), true);
  }

  Result<std::string> format_number(const Directive& directive, const Value& value) {
    constexpr std::string_view kDecimal = "diu";
    constexpr std::string_view kOtherBase = "xXo";
    constexpr std::string_view kReal = "eEfFgG";
    const auto is_one_of = [&](std::string_view types) {
      return types.find(directive.type) != std::string_view::npos;
    };
    if (is_one_of(kDecimal) || (is_one_of(kOtherBase) && value.is_integer_like()))
      return format_integer(directive, value);
    if (is_one_of(kReal)) return format_real(directive, value.as_real());
    return interpreter_.error(std::string("unsupported format character '") + directive.type + "'");
  }

  static std::string sign_of(const Directive& directive, bool negative) {
    if (negative) return "-";
    if (directive.plus) return "+";
    return directive.space ? " " : "";
  }

  Result<std::string> format_integer(const Directive& directive, const Value& value) {
    const double real = value.as_real();
    if (!value.is_integer_like() && !(std::abs(real) < 9e18))
      return interpreter_.error("a float is too large for an integer format");
    const std::int64_t whole =
        value.is_integer_like() ? value.as_integer() : static_cast<std::int64_t>(real);
    const auto magnitude =
        whole < 0 ? 0 - static_cast<std::uint64_t>(whole) : static_cast<std::uint64_t>(whole);
    std::string digits = digits_of(directive, magnitude);
    if (directive.precision && digits.size() < *directive.precision)
      digits.insert(0, *directive.precision - digits.size(), '0');
    if (directive.alternate) digits.insert(0, base_prefix(directive.type));
    return sign_of(directive, whole < 0) + digits;
  }
  static std::string digits_of(const Directive& directive, std::uint64_t magnitude) {
    const char* const form = directive.type == 'x'   ? "%llx"
                             : directive.type == 'X' ? "%llX"
                             : directive.type == 'o' ? "%llo"
                                                     : "%llu";
    std::array<char, 32> buffer{};  // 22 digits in base 8
    std::snprintf(buffer.data(), buffer.size(), form, static_cast<unsigned long long>(magnitude));
    return buffer.data();
  }
  static std::string_view base_prefix(char type) {
    if (type == 'o') return "0o";
    if (type == 'x') return "0x";
    return type == 'X' ? "0X" : "";
  }

  static std::string format_real(const Directive& directive, double real) {
    const std::string form = std::string(directive.alternate ? "%#" : "%") + ".*" + directive.type;
    const auto precision =
        static_cast<int>(std::min<std::size_t>(directive.precision.value_or(6), 120));
    std::array<char, 512> buffer{};  // 309 digits, the point and 120 more
    std::snprintf(buffer.data(), buffer.size(), form.c_str(), precision, std::abs(real));
    return sign_of(directive, std::signbit(real)) + buffer.data();
  }

  static MarkedText pad(const Directive& directive, const MarkedText& text, bool is_number) {
    const std::size_t n = n_chars(text);
    if (n >= directive.width) return text;
    const std::size_t missing = directive.width - n;
    if (directive.left) return padded(text, MarkedText(" ", true), 0, missing);
    if (!directive.zero || !is_number) return padded(text, MarkedText(" ", true), missing, 0);
    const bool has_sign = std::string_view("+- ").find(text.bytes()[0]) != std::string_view::npos;
    const std::size_t cut = has_sign ? 1 : 0;
    MarkedText out = text.slice(0, cut);
    out.append(std::string(missing, '0'), text.all_trusted());
    out.append(text, cut, text.size());
    return out;
  }

  Interpreter& interpreter_;
  const MarkedText& format_;
  const std::string& text_;
  const Value& values_;
  std::size_t pos_ = 0;
  std::size_t n_used_ = 0;
  bool used_mapping_ = false;
};

}  // namespace

Result<Value> format_percent(Interpreter& interpreter,
                             const MarkedText& format,
                             const Value& values) {
  return PercentFormatter(interpreter, format, values).run();
}

}  // namespace luna::text::jinja
