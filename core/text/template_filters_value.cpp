// Filters that turn one value into another.
#include "core/text/marked_text_ops.hpp"
#include "core/text/template_interpreter.hpp"
#include "core/text/template_print.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace luna::text::jinja {
namespace {

Error undefined_error(Interpreter& in, const Value& value) {
  const auto& complaint = value.as_undefined().complaint;
  return in.error(complaint ? *complaint : "the value is undefined");
}

Result<Value> default_value(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("default", "default_value? boolean?", arguments));
  const bool missing = !subject.is_defined() || (bound.flag(1, false) && !is_truthy(subject));
  if (!missing) return subject;
  return bound.has(0) ? bound[0] : Value::text("", true);
}

Result<Value> length(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(in.bind("length", "", arguments));
  const auto count = [](std::size_t n) { return Value::integer(static_cast<std::int64_t>(n)); };
  switch (subject.kind()) {
    case Kind::undefined:
      return count(0);
    case Kind::text:
      LUNA_TRY(in.spend(subject.as_text().size()));
      return count(n_chars(subject.as_text()));
    case Kind::dict:
      return count(subject.as_dict().entries.size());
    case Kind::loop:
      return count(subject.as_loop().items.size());
    case Kind::list:
      if (subject.as_list().kind != ListKind::generator)
        return count(subject.as_list().items.size());
      break;
    default:
      break;
  }
  return in.error("object of type '" + std::string(type_name(subject)) + "' has no len()");
}

/// The text without white space around and underscores between digits; nullopt where misplaced.
std::optional<std::string> number_text(const MarkedText& text) {
  const std::string trimmed = stripped(text, Side::both, std::nullopt).bytes();
  std::string out;
  const auto is_alnum = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  for (std::size_t i = 0; i < trimmed.size(); ++i) {
    if (trimmed[i] != '_') {
      out += trimmed[i];
      continue;
    }
    const bool between =
        i > 0 && i + 1 < trimmed.size() && is_alnum(trimmed[i - 1]) && is_alnum(trimmed[i + 1]);
    if (!between) return std::nullopt;
  }
  return out;
}

/// int() of a text.
std::optional<std::int64_t> parse_integer(const MarkedText& text, int base) {
  auto digits = number_text(text);
  if (!digits || digits->empty()) return std::nullopt;
  const bool negative = (*digits)[0] == '-';
  if (negative || (*digits)[0] == '+') digits->erase(0, 1);
  const auto prefix = [&digits](char letter) {
    return digits->size() > 2 && (*digits)[0] == '0' && ((*digits)[1] | 0x20) == letter;
  };
  if ((base == 16 && prefix('x')) || (base == 8 && prefix('o')) || (base == 2 && prefix('b'))) {
    digits->erase(0, 2);
  }
  if (digits->empty() || (*digits)[0] == '-') return std::nullopt;
  std::int64_t value = 0;
  const char* const end = digits->data() + digits->size();
  const auto done = std::from_chars(digits->data(), end, value, base);
  if (done.ec != std::errc() || done.ptr != end) return std::nullopt;
  return negative ? -value : value;
}

/// float() of a text.
std::optional<double> parse_real(const MarkedText& text) {
  const auto digits = number_text(text);
  if (!digits || digits->empty()) return std::nullopt;
  const bool is_hexadecimal = digits->find_first_of("xX") != std::string::npos;
  if (is_hexadecimal || digits->find('(') != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(digits->c_str(), &end);
  if (end != digits->c_str() + digits->size()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> whole_part(double value) {
  if (!(std::abs(value) < 9.2e18)) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

Result<Value> to_int(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("int", "default? base?", arguments));
  LUNA_TRY(const std::int64_t base, in.integer(bound, 1, 10));
  if (base < 2 || base > 36) return in.error("int: the base must be in 2..36");
  if (subject.is(Kind::undefined)) return undefined_error(in, subject);
  const Value otherwise = bound.has(0) ? bound[0] : Value::integer(0);
  if (subject.is_integer_like()) return Value::integer(subject.as_integer(), subject.trusted());
  std::optional<std::int64_t> whole;
  std::optional<double> real;
  bool trusted = subject.trusted();
  if (subject.is(Kind::real)) {
    real = subject.as_real();
    if (std::isinf(*real)) return in.error("cannot convert float infinity to integer");
  }
  if (subject.is(Kind::text)) {
    LUNA_TRY(in.spend(subject.as_text().size()));
    trusted = subject.as_text().all_trusted();
    whole = parse_integer(subject.as_text(), static_cast<int>(base));
    if (!whole) real = parse_real(subject.as_text());
  }
  if (real && std::isfinite(*real)) {
    whole = whole_part(*real);
    if (!whole) return in.error("the integer does not fit into 64 bits");
  }
  return whole ? Value::integer(*whole, trusted) : otherwise;
}

Result<Value> to_float(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("float", "default?", arguments));
  if (subject.is(Kind::undefined)) return undefined_error(in, subject);
  if (subject.is_number()) return Value::real(subject.as_real(), subject.trusted());
  if (subject.is(Kind::text)) {
    LUNA_TRY(in.spend(subject.as_text().size()));
    if (const auto real = parse_real(subject.as_text())) {
      return Value::real(*real, subject.as_text().all_trusted());
    }
  }
  return bound.has(0) ? bound[0] : Value::real(0.0);
}

Result<Value> absolute(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(in.bind("abs", "", arguments));
  if (subject.is(Kind::real)) return Value::real(std::abs(subject.as_real()), subject.trusted());
  if (subject.is_integer_like() && subject.as_integer() >= 0) {
    return Value::integer(subject.as_integer(), subject.trusted());
  }
  if (subject.is_integer_like()) return apply_unary(in, Op::negate, subject);
  return in.error("bad operand type for abs(): '" + std::string(type_name(subject)) + "'");
}

/// round() of Python: exact decimal digits, ties to even.
double rounded(double value, int precision) {
  std::array<char, 512> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.*f", precision, value);
  return std::strtod(buffer.data(), nullptr);
}

Result<Value> round_value(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("round", "precision? method?", arguments));
  LUNA_TRY(const std::int64_t precision, in.integer(bound, 0, 0));
  if (precision < 0 || precision > 100) return in.error("round: the precision must be in 0..100");
  const std::string method = bound.has(1) && bound[1].is(Kind::text) ? bound[1].bytes() : "common";
  if (!subject.is_number()) {
    return in.error("type " + std::string(type_name(subject)) + " doesn't define __round__ method");
  }
  if (method == "common") {
    if (subject.is_integer_like()) return Value::integer(subject.as_integer(), subject.trusted());
    return Value::real(rounded(subject.as_real(), static_cast<int>(precision)), subject.trusted());
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = subject.as_real() * scale;
  if (method == "ceil") return Value::real(std::ceil(scaled) / scale, subject.trusted());
  if (method == "floor") return Value::real(std::floor(scaled) / scale, subject.trusted());
  return in.error("round: method must be common, ceil or floor");
}

Result<JsonStyle> json_style(Interpreter& in, const BoundArguments& bound) {
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (bound.has(1) && !bound[1].is(Kind::none)) {
    if (bound[1].is(Kind::text)) {
      style.indent = bound[1].as_text();
    } else {
      LUNA_TRY(const std::int64_t n, in.integer(bound, 1, 0));
      style.indent = MarkedText(
          std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(n, 0, 1000)), ' '), true);
    }
    style.item_separator = MarkedText(",", true);
  }
  if (bound.has(2) && !bound[2].is(Kind::none)) {
    LUNA_TRY(const std::vector<Value> parts, in.items_of(bound[2]));
    if (parts.size() != 2 || !parts[0].is(Kind::text) || !parts[1].is(Kind::text)) {
      return in.error("tojson: separators must be two strings");
    }
    style.item_separator = parts[0].as_text();
    style.key_separator = parts[1].as_text();
  }
  return style;
}

Result<Value> to_json_text(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound,
           in.bind("tojson", "ensure_ascii? indent? separators? sort_keys?", arguments));
  LUNA_TRY(const JsonStyle style, json_style(in, bound));
  // Indentation is written before each value, once a level.
  const std::uint64_t n_indent = style.indent ? style.indent->size() : 0;
  LUNA_TRY(in.spend(weight_of(subject) * (1 + n_indent * depth_of(subject))));
  auto made = to_json(subject, style);
  if (!made) return in.error(made.error().message());
  return in.text(*std::move(made));
}

Result<Value> attr(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("attr", "name", arguments));
  LUNA_TRY(const MarkedText name, in.printed(bound[0]));
  // Members only: the entries of a mapping are none.
  if (subject.is(Kind::dict) && !has_method(subject, name.bytes())) {
    return Value::undefined("'dict object' has no attribute '" + name.bytes() + "'");
  }
  return in.attribute(subject, name.bytes());
}

Result<Value> items(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(in.bind("items", "", arguments));
  if (subject.is(Kind::undefined)) return in.list({}, ListKind::generator);
  if (!subject.is(Kind::dict)) return in.error("can only get item pairs from a mapping");
  std::vector<Value> pairs;
  for (const auto& [key, value] : subject.as_dict().entries) {
    LUNA_TRY(Value pair, in.list({key, value}, ListKind::tuple));
    pairs.push_back(std::move(pair));
  }
  return in.list(std::move(pairs), ListKind::generator);
}

constexpr std::array kFilters = {
    NamedFilter{"default", default_value},
    NamedFilter{"d", default_value},
    NamedFilter{"length", length},
    NamedFilter{"count", length},
    NamedFilter{"int", to_int},
    NamedFilter{"float", to_float},
    NamedFilter{"abs", absolute},
    NamedFilter{"round", round_value},
    NamedFilter{"tojson", to_json_text},
    NamedFilter{"attr", attr},
    NamedFilter{"items", items},
};

}  // namespace

std::span<const NamedFilter> value_filters() {
  return kFilters;
}

}  // namespace luna::text::jinja
