// Methods of texts.
#include "core/text/marked_text_ops.hpp"
#include "core/text/python_text.hpp"
#include "core/text/template_interpreter.hpp"
#include "core/text/template_print.hpp"
#include "core/text/utf8.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

namespace luna::text::jinja {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

/// A call of one method.
struct Call {
  Interpreter& in;
  const MarkedText& text;
  std::string_view name;
  const Arguments& arguments;
};

std::size_t limit_of(std::int64_t n) {
  return n < 0 ? kNoLimit : static_cast<std::size_t>(n);
}

Result<Value> change_case(const Call& call) {
  LUNA_TRY(call.in.bind(call.name, "", call.arguments));
  const LetterCase wanted = call.name == "upper"        ? LetterCase::upper
                            : call.name == "title"      ? LetterCase::title_words
                            : call.name == "capitalize" ? LetterCase::capital_first
                            : call.name == "swapcase"   ? LetterCase::swapped
                                                        : LetterCase::lower;
  return call.in.text(with_case(call.text, wanted));
}

Result<Value> strip(const Call& call) {
  LUNA_TRY(const BoundArguments bound, call.in.bind(call.name, "chars?", call.arguments));
  std::optional<std::string> characters;
  if (bound.has(0) && !bound[0].is(Kind::none)) {
    if (!bound[0].is(Kind::text)) return call.in.error("strip arg must be None or str");
    characters = bound[0].bytes();
    LUNA_TRY(call.in.spend(characters->size()));
  }
  const Side side = call.name == "lstrip"   ? Side::left
                    : call.name == "rstrip" ? Side::right
                                            : Side::both;
  return call.in.text(stripped(call.text, side, characters));
}

Result<Value> list_of(Interpreter& in, std::vector<MarkedText> parts, ListKind kind) {
  LUNA_TRY(in.spend(4 * Interpreter::kElementUnits * parts.size()));
  std::vector<Value> items;
  items.reserve(parts.size());
  for (MarkedText& part : parts)
    items.push_back(Value::text(std::move(part)));
  return in.list(std::move(items), kind);
}

Result<Value> split_text(const Call& call) {
  LUNA_TRY(const BoundArguments bound, call.in.bind(call.name, "sep? maxsplit?", call.arguments));
  std::optional<std::string> separator;
  if (bound.has(0) && !bound[0].is(Kind::none)) {
    if (!bound[0].is(Kind::text)) return call.in.error("split: the separator must be a string");
    separator = bound[0].bytes();
    if (separator->empty()) return call.in.error("empty separator");
  }
  LUNA_TRY(const std::int64_t n_max, call.in.integer(bound, 1, -1));
  const Side side = call.name == "rsplit" ? Side::right : Side::left;
  return list_of(call.in, split(call.text, separator, limit_of(n_max), side), ListKind::list);
}

Result<Value> splitlines(const Call& call) {
  LUNA_TRY(const BoundArguments bound, call.in.bind(call.name, "keepends?", call.arguments));
  return list_of(call.in, split_lines(call.text, bound.flag(0, false)), ListKind::list);
}

Result<Value> partition(const Call& call) {
  LUNA_TRY(const BoundArguments bound, call.in.bind(call.name, "sep", call.arguments));
  if (!bound[0].is(Kind::text) || bound[0].as_text().empty()) {
    return call.in.error("partition: a separator that is not empty is needed");
  }
  const std::string& separator = bound[0].bytes();
  const bool right = call.name == "rpartition";
  const std::string& bytes = call.text.bytes();
  const std::size_t at = right ? bytes.rfind(separator) : bytes.find(separator);
  std::vector<MarkedText> parts(3);
  if (at == std::string::npos) {
    parts[right ? 2 : 0] = call.text;
  } else {
    const std::size_t end = at + separator.size();
    parts = {call.text.slice(0, at), bound[0].as_text(), call.text.slice(end, bytes.size())};
  }
  return list_of(call.in, std::move(parts), ListKind::tuple);
}

/// startswith(), endswith(): one text or a tuple of them.
Result<Value> begins_or_ends(const Call& call) {
  LUNA_TRY(const BoundArguments bound, call.in.bind(call.name, "prefix", call.arguments));
  std::vector<Value> wanted = {bound[0]};
  if (bound[0].is(Kind::list) && bound[0].as_list().kind == ListKind::tuple) {
    wanted = bound[0].as_list().items;
  }
  for (const Value& one : wanted) {
    if (!one.is(Kind::text)) {
      return call.in.error(std::string(call.name) + " first arg must be str or a tuple of str");
    }
    const bool found = call.name == "startswith" ? call.text.bytes().starts_with(one.bytes())
                                                 : call.text.bytes().ends_with(one.bytes());
    if (found) return Value::boolean(true);
  }
  return Value::boolean(false);
}

Result<Value> replace_text(const Call& call) {
  LUNA_TRY(const BoundArguments bound, call.in.bind(call.name, "old new count?", call.arguments));
  if (!bound[0].is(Kind::text) || !bound[1].is(Kind::text)) {
    return call.in.error("replace() arguments must be str");
  }
  LUNA_TRY(const std::int64_t count, call.in.integer(bound, 2, -1));
  const MarkedText& from = bound[0].as_text();
  const std::size_t places = from.empty() ? call.text.size() + 1 : call.text.size() / from.size();
  LUNA_TRY(call.in.spend(std::min(places, limit_of(count)) * bound[1].as_text().size()));
  return call.in.text(replaced(call.text, from, bound[1].as_text(), limit_of(count)));
}

/// find(), rfind(), index(), rindex(): positions are of characters.
Result<Value> find_text(const Call& call) {
  LUNA_TRY(const BoundArguments bound, call.in.bind(call.name, "sub start? end?", call.arguments));
  if (!bound[0].is(Kind::text)) return call.in.error("must be str");
  const std::vector<std::size_t> at = char_positions(call.text.bytes());
  const auto n = static_cast<std::int64_t>(at.size() - 1);
  LUNA_TRY(std::int64_t start, call.in.integer(bound, 1, 0));
  LUNA_TRY(std::int64_t end, call.in.integer(bound, 2, n));
  start = start < 0 ? std::max<std::int64_t>(start + n, 0) : start;
  end = end < 0 ? std::max<std::int64_t>(end + n, 0) : std::min(end, n);
  const bool raises = call.name.ends_with("index");
  if (start <= end) {
    const std::size_t from = at[static_cast<std::size_t>(start)];
    const std::string_view window =
        std::string_view(call.text.bytes()).substr(from, at[static_cast<std::size_t>(end)] - from);
    const std::size_t found =
        call.name[0] == 'r' ? window.rfind(bound[0].bytes()) : window.find(bound[0].bytes());
    if (found != std::string_view::npos) {
      return Value::integer(std::lower_bound(at.begin(), at.end(), from + found) - at.begin());
    }
  }
  if (raises) return call.in.error("substring not found");
  return Value::integer(-1);
}

Result<Value> count_text(const Call& call) {
  LUNA_TRY(const BoundArguments bound, call.in.bind(call.name, "sub", call.arguments));
  if (!bound[0].is(Kind::text)) return call.in.error("must be str");
  const std::string& wanted = bound[0].bytes();
  if (wanted.empty()) return Value::integer(static_cast<std::int64_t>(n_chars(call.text)) + 1);
  std::int64_t n = 0;
  for (std::size_t at = 0; (at = call.text.bytes().find(wanted, at)) != std::string::npos; ++n) {
    at += wanted.size();
  }
  return Value::integer(n);
}

Result<Value> join_items(const Call& call) {
  LUNA_TRY(const BoundArguments bound, call.in.bind(call.name, "iterable", call.arguments));
  LUNA_TRY(const std::vector<Value> items, call.in.items_of(bound[0]));
  LUNA_TRY(call.in.spend(items.size() * call.text.size()));
  MarkedText out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is(Kind::text)) {
      return call.in.error("sequence item " + std::to_string(i) + ": expected str instance, " +
                           std::string(type_name(items[i])) + " found");
    }
    if (i > 0) out.append(call.text);
    LUNA_TRY(call.in.spend(items[i].as_text().size()));
    out.append(items[i].as_text());
  }
  return call.in.text(std::move(out));
}

Result<Value> pad_text(const Call& call) {
  const bool zeros = call.name == "zfill";
  LUNA_TRY(const BoundArguments bound,
           call.in.bind(call.name, zeros ? "width" : "width fillchar?", call.arguments));
  LUNA_TRY(const std::int64_t width, call.in.integer(bound, 0, 0));
  MarkedText fill(zeros ? "0" : " ", true);
  if (!zeros && bound.has(1)) {
    if (!bound[1].is(Kind::text) || n_chars(bound[1].as_text()) != 1) {
      return call.in.error("the fill character must be exactly one character long");
    }
    fill = bound[1].as_text();
  }
  const auto n = static_cast<std::int64_t>(n_chars(call.text));
  if (width <= n) return call.in.text(call.text);
  const auto missing = static_cast<std::size_t>(width - n);
  LUNA_TRY(call.in.spend(missing * fill.size()));
  if (call.name == "ljust") return call.in.text(padded(call.text, fill, 0, missing));
  if (call.name == "rjust") return call.in.text(padded(call.text, fill, missing, 0));
  if (zeros) {
    const std::string& bytes = call.text.bytes();
    const bool has_sign = !bytes.empty() && (bytes[0] == '+' || bytes[0] == '-');
    MarkedText out = call.text.slice(0, has_sign ? 1 : 0);
    out.append(padded(call.text.slice(has_sign ? 1 : 0, bytes.size()), fill, missing, 0));
    return call.in.text(std::move(out));
  }
  const std::size_t before = missing / 2 + (missing & static_cast<std::size_t>(width) & 1U);
  return call.in.text(padded(call.text, fill, before, missing - before));
}

Result<Value> remove_affix(const Call& call) {
  LUNA_TRY(const BoundArguments bound, call.in.bind(call.name, "affix", call.arguments));
  if (!bound[0].is(Kind::text)) return call.in.error("must be str");
  const std::string& affix = bound[0].bytes();
  const std::string& bytes = call.text.bytes();
  std::size_t begin = 0;
  std::size_t end = bytes.size();
  if (call.name == "removeprefix" && bytes.starts_with(affix)) begin = affix.size();
  if (call.name == "removesuffix" && bytes.ends_with(affix)) end -= affix.size();
  return call.in.text(call.text.slice(begin, end));
}

/// isalpha() and its kin: every character has the property, and there is one.
Result<Value> ask_characters(const Call& call) {
  LUNA_TRY(call.in.bind(call.name, "", call.arguments));
  if (call.name == "islower" || call.name == "isupper") {
    LUNA_TRY(const bool answer,
             call.in.test(call.name.substr(2), Value::text(call.text), Arguments{}));
    return Value::boolean(answer);
  }
  const auto holds = [&call](char32_t point) {
    if (call.name == "isspace") return is_python_space(point);
    if (call.name == "isalpha") return is_python_alpha(point);
    if (call.name == "isdecimal" || call.name == "isdigit") return is_python_decimal(point);
    if (call.name == "isnumeric") return is_python_numeric(point);
    return is_python_alpha(point) || is_python_numeric(point);
  };
  for (std::size_t pos = 0; pos < call.text.size();) {
    const Utf8Step step = utf8_step(call.text.bytes(), pos);
    if (!holds(step.point)) return Value::boolean(false);
    pos += step.n_bytes;
  }
  return Value::boolean(!call.text.empty());
}

/// What a field of a format names: the next argument, one by its number, or a keyword. nullptr:
/// nothing. `next` counts the fields without a name.
const Value* format_argument(const Arguments& arguments,
                             const std::string& field,
                             std::size_t& next) {
  std::size_t index = 0;
  const char* const end = field.data() + field.size();
  const bool numbered = std::from_chars(field.data(), end, index).ptr == end;
  if (field.empty()) index = next++;
  if (field.empty() || numbered)
    return index < arguments.positional.size() ? &arguments.positional[index] : nullptr;
  const Value* value = nullptr;
  for (const auto& [key, given] : arguments.keywords)
    value = key == field ? &given : value;
  return value;
}

/// str.format() without format specifications: {}, {0}, {name}, {name!r}, {{ and }}.
Result<Value> format_text(const Call& call) {
  MarkedText out;
  const std::string& bytes = call.text.bytes();
  std::size_t next = 0;
  for (std::size_t pos = 0; pos < bytes.size();) {
    const char c = bytes[pos];
    const bool doubled = pos + 1 < bytes.size() && bytes[pos + 1] == c;
    if (c != '{' && c != '}') {
      const std::size_t end = std::min(bytes.find_first_of("{}", pos), bytes.size());
      out.append(call.text, pos, end);
      pos = end;
      continue;
    }
    if (doubled) {
      out.append(call.text, pos, pos + 1);
      pos += 2;
      continue;
    }
    const std::size_t end = bytes.find('}', pos);
    if (c == '}' || end == std::string::npos) return call.in.error("single '{' or '}' in a format");
    std::string field = bytes.substr(pos + 1, end - pos - 1);
    const bool as_repr = field.ends_with("!r");
    if (as_repr || field.ends_with("!s")) field.resize(field.size() - 2);
    const Value* const value = format_argument(call.arguments, field, next);
    if (value == nullptr) {
      return call.in.error("format: no argument for {" + field.substr(0, 40) +
                           "}; attributes and format specifications are not supported");
    }
    LUNA_TRY(call.in.spend(weight_of(*value)));
    out.append(as_repr ? to_repr(*value) : to_text(*value));
    pos = end + 1;
  }
  return call.in.text(std::move(out));
}

struct NamedMethod {
  std::string_view name;
  Result<Value> (*method)(const Call&);
};
constexpr std::array kMethods = {
    NamedMethod{"strip", strip},
    NamedMethod{"lstrip", strip},
    NamedMethod{"rstrip", strip},
    NamedMethod{"split", split_text},
    NamedMethod{"rsplit", split_text},
    NamedMethod{"splitlines", splitlines},
    NamedMethod{"startswith", begins_or_ends},
    NamedMethod{"endswith", begins_or_ends},
    NamedMethod{"upper", change_case},
    NamedMethod{"lower", change_case},
    NamedMethod{"title", change_case},
    NamedMethod{"capitalize", change_case},
    NamedMethod{"swapcase", change_case},
    NamedMethod{"replace", replace_text},
    NamedMethod{"find", find_text},
    NamedMethod{"rfind", find_text},
    NamedMethod{"index", find_text},
    NamedMethod{"rindex", find_text},
    NamedMethod{"count", count_text},
    NamedMethod{"join", join_items},
    NamedMethod{"center", pad_text},
    NamedMethod{"ljust", pad_text},
    NamedMethod{"rjust", pad_text},
    NamedMethod{"zfill", pad_text},
    NamedMethod{"removeprefix", remove_affix},
    NamedMethod{"removesuffix", remove_affix},
    NamedMethod{"partition", partition},
    NamedMethod{"rpartition", partition},
    NamedMethod{"isspace", ask_characters},
    NamedMethod{"isalpha", ask_characters},
    NamedMethod{"isdigit", ask_characters},
    NamedMethod{"isdecimal", ask_characters},
    NamedMethod{"isnumeric", ask_characters},
    NamedMethod{"isalnum", ask_characters},
    NamedMethod{"islower", ask_characters},
    NamedMethod{"isupper", ask_characters},
    NamedMethod{"format", format_text},
};

}  // namespace

bool has_text_method(std::string_view name) {
  return std::any_of(kMethods.begin(), kMethods.end(), [name](const NamedMethod& entry) {
    return entry.name == name;
  });
}

Result<Value> call_text_method(Interpreter& interpreter,
                               const MarkedText& subject,
                               std::string_view name,
                               const Arguments& arguments) {
  for (const NamedMethod& entry : kMethods) {
    if (entry.name == name) return entry.method({interpreter, subject, name, arguments});
  }
  return interpreter.error("'str object' has no method '" + std::string(name) + "'");
}

}  // namespace luna::text::jinja
