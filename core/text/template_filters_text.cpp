// Filters that make texts.
#include "core/text/marked_text_ops.hpp"
#include "core/text/python_text.hpp"
#include "core/text/template_interpreter.hpp"
#include "core/text/template_print.hpp"

#include <array>
#include <limits>

namespace luna::text::jinja {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

/// The subject as text and no arguments: what most of these filters take.
Result<MarkedText> only_text(Interpreter& interpreter,
                             std::string_view name,
                             const Value& subject,
                             const Arguments& arguments) {
  LUNA_TRY(interpreter.bind(name, "", arguments));
  return interpreter.printed(subject);
}

Result<Value> lower(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const MarkedText text, only_text(in, "lower", subject, arguments));
  return in.text(with_case(text, LetterCase::lower));
}

Result<Value> upper(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const MarkedText text, only_text(in, "upper", subject, arguments));
  return in.text(with_case(text, LetterCase::upper));
}

Result<Value> capitalize(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const MarkedText text, only_text(in, "capitalize", subject, arguments));
  return in.text(with_case(text, LetterCase::capital_first));
}

/// Unlike str.title(), words are what stands between blanks, hyphens and opening brackets.
Result<Value> title(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const MarkedText text, only_text(in, "title", subject, arguments));
  MarkedText out;
  const std::vector<std::size_t> at = char_positions(text.bytes());
  std::size_t word = 0;
  const auto put_word = [&](std::size_t end) {
    if (word == end) return;
    out.append(with_case(text.slice(at[word], at[word + 1]), LetterCase::upper));
    out.append(with_case(text.slice(at[word + 1], at[end]), LetterCase::lower));
  };
  for (std::size_t i = 0; i + 1 < at.size(); ++i) {
    const std::string_view one = std::string_view(text.bytes()).substr(at[i], at[i + 1] - at[i]);
    const bool cuts = leading_space_bytes(one) > 0 ||
                      std::string_view("-({[<").find(one) != std::string_view::npos;
    if (!cuts) continue;
    put_word(i);
    out.append(text, at[i], at[i + 1]);
    word = i + 1;
  }
  put_word(at.size() - 1);
  return in.text(std::move(out));
}

Result<Value> trim(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("trim", "chars?", arguments));
  LUNA_TRY(const MarkedText text, in.printed(subject));
  std::optional<std::string> characters;
  if (bound.has(0) && !bound[0].is(Kind::none)) {
    if (!bound[0].is(Kind::text)) return in.error("strip arg must be None or str");
    characters = bound[0].bytes();
  }
  return in.text(stripped(text, Side::both, characters));
}

Result<Value> replace(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("replace", "old new count?", arguments));
  LUNA_TRY(const MarkedText text, in.printed(subject));
  LUNA_TRY(const MarkedText from, in.printed(bound[0]));
  LUNA_TRY(const MarkedText to, in.printed(bound[1]));
  std::size_t n_max = kNoLimit;
  if (bound.has(2) && !bound[2].is(Kind::none)) {
    LUNA_TRY(const std::int64_t count, in.integer(bound, 2, -1));
    if (count >= 0) n_max = static_cast<std::size_t>(count);
  }
  // At worst each place grows by the new text.
  const std::uint64_t places =
      std::min<std::uint64_t>(n_max, from.empty() ? text.size() + 1 : text.size() / from.size());
  LUNA_TRY(in.spend(places * to.size()));
  return in.text(replaced(text, from, to, n_max));
}

Result<Value> indent(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("indent", "width? first? blank?", arguments));
  if (!subject.is(Kind::text)) {
    return in.error("indent needs a string, not '" + std::string(type_name(subject)) + "'");
  }
  MarkedText indention;
  if (bound.has(0) && bound[0].is(Kind::text)) {
    indention = bound[0].as_text();
  } else {
    LUNA_TRY(const std::int64_t width, in.integer(bound, 0, 4));
    LUNA_TRY(in.spend(static_cast<std::uint64_t>(std::max<std::int64_t>(width, 0))));
    indention = MarkedText(
        std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' '), true);
  }
  const bool blank = bound.flag(2, false);
  MarkedText whole = subject.as_text();
  whole.append("\n", true);  // so that a line end at the end is a line
  const std::vector<MarkedText> lines = split_lines(whole, false);
  LUNA_TRY(in.spend(whole.size() + lines.size() * indention.size()));
  MarkedText out;
  if (bound.flag(1, false)) out.append(indention);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.append("\n", true);
      if (blank || !lines[i].empty()) out.append(indention);
    }
    out.append(lines[i]);
  }
  return in.text(std::move(out));
}

Result<Value> center(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("center", "width?", arguments));
  LUNA_TRY(const MarkedText text, in.printed(subject));
  LUNA_TRY(const std::int64_t width, in.integer(bound, 0, 80));
  const auto n = static_cast<std::int64_t>(n_chars(text));
  if (width <= n) return in.text(text);
  const std::int64_t missing = width - n;
  LUNA_TRY(in.spend(static_cast<std::uint64_t>(missing)));
  // As CPython does it: the odd blank goes to the left where the width is odd.
  const std::int64_t before = missing / 2 + (missing & width & 1);
  return in.text(padded(text,
                        MarkedText(" ", true),
                        static_cast<std::size_t>(before),
                        static_cast<std::size_t>(missing - before)));
}

Result<Value> truncate(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound,
           in.bind("truncate", "length? killwords? end? leeway?", arguments));
  if (subject.is(Kind::undefined)) return subject;
  if (!subject.is(Kind::text)) {
    return in.error("truncate needs a string, not '" + std::string(type_name(subject)) + "'");
  }
  const MarkedText& text = subject.as_text();
  LUNA_TRY(const std::int64_t length, in.integer(bound, 0, 255));
  LUNA_TRY(const std::int64_t leeway, in.integer(bound, 3, 5));
  const MarkedText end = bound.has(2) ? to_text(bound[2]) : MarkedText("...", true);
  const auto n_end = static_cast<std::int64_t>(n_chars(end));
  if (length < n_end) return in.error("truncate: the length is below that of the end");
  const std::vector<std::size_t> at = char_positions(text.bytes());
  const auto n = static_cast<std::int64_t>(at.size() - 1);
  if (n <= length + leeway) return in.text(text);
  MarkedText out = text.slice(0, at[static_cast<std::size_t>(length - n_end)]);
  if (!bound.flag(1, false)) {
    const std::size_t blank = out.bytes().rfind(' ');
    if (blank != std::string::npos) out = out.slice(0, blank);
  }
  out.append(end);
  return in.text(std::move(out));
}

Result<Value> string(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(MarkedText text, only_text(in, "string", subject, arguments));
  return in.text(std::move(text));
}

Result<Value> escape(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const MarkedText text, only_text(in, "escape", subject, arguments));
  MarkedText out;
  for (std::size_t pos = 0; pos < text.size(); ++pos) {
    const char c = text.bytes()[pos];
    const char* entity = c == '&'    ? "&amp;"
                         : c == '<'  ? "&lt;"
                         : c == '>'  ? "&gt;"
                         : c == '\'' ? "&#39;"
                         : c == '"'  ? "&#34;"
                                     : nullptr;
    if (entity != nullptr) {
      out.append(entity, text.trusted_at(pos));
    } else {
      out.append(text, pos, pos + 1);
    }
  }
  return in.text(std::move(out));
}

Result<Value> format(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const MarkedText text, in.printed(subject));
  if (!arguments.keywords.empty()) {
    if (!arguments.positional.empty()) {
      return in.error("format cannot take positional and keyword arguments at once");
    }
    auto values = std::make_shared<Dict>();
    for (const auto& [key, value] : arguments.keywords)
      values->set(Value::text(key, true), value);
    return format_percent(in, text, Value::of(std::move(values)));
  }
  LUNA_TRY(const Value values, in.list(arguments.positional, ListKind::tuple));
  return format_percent(in, text, values);
}

/// A text with its bytes as %XX but for those that a URL, or a part of its query, may have.
MarkedText url_quoted(const MarkedText& text, bool in_query) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  MarkedText out;
  for (std::size_t pos = 0; pos < text.size(); ++pos) {
    const auto byte = static_cast<unsigned char>(text.bytes()[pos]);
    const bool plain = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                       (byte >= '0' && byte <= '9') || byte == '_' || byte == '.' || byte == '-' ||
                       byte == '~' || (byte == '/' && !in_query);
    if (plain) {
      out.append(text, pos, pos + 1);
    } else if (byte == ' ' && in_query) {
      out.append("+", text.trusted_at(pos));
    } else {
      const std::array<char, 3> code = {'%', kHex[byte >> 4U], kHex[byte & 15U]};
      out.append(std::string_view(code.data(), code.size()), text.trusted_at(pos));
    }
  }
  return out;
}

/// A text, or a mapping or pairs as the query of a URL.
Result<Value> urlencode(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(in.bind("urlencode", "", arguments));
  const bool has_pairs = subject.is(Kind::dict) || subject.is(Kind::list);
  if (!has_pairs) {
    LUNA_TRY(const MarkedText text, in.printed(subject));
    return in.text(url_quoted(text, false));
  }
  std::vector<std::pair<Value, Value>> pairs;
  if (subject.is(Kind::dict)) {
    pairs = subject.as_dict().entries;
  } else {
    LUNA_TRY(const std::vector<Value> items, in.items_of(subject));
    for (const Value& item : items) {
      LUNA_TRY(const std::vector<Value> parts, in.items_of(item));
      if (parts.size() != 2) return in.error("urlencode needs pairs of a key and a value");
      pairs.emplace_back(parts[0], parts[1]);
    }
  }
  MarkedText out;
  for (const auto& [key, value] : pairs) {
    LUNA_TRY(const MarkedText key_text, in.printed(key));
    LUNA_TRY(const MarkedText value_text, in.printed(value));
    if (!out.empty()) out.append("&", true);
    out.append(url_quoted(key_text, true));
    out.append("=", true);
    out.append(url_quoted(value_text, true));
  }
  return in.text(std::move(out));
}

constexpr std::array kFilters = {
    NamedFilter{"lower", lower},
    NamedFilter{"upper", upper},
    NamedFilter{"capitalize", capitalize},
    NamedFilter{"title", title},
    NamedFilter{"trim", trim},
    NamedFilter{"replace", replace},
    NamedFilter{"indent", indent},
    NamedFilter{"center", center},
    NamedFilter{"truncate", truncate},
    NamedFilter{"string", string},
    NamedFilter{"safe", string},
    NamedFilter{"escape", escape},
    NamedFilter{"e", escape},
    NamedFilter{"format", format},
    NamedFilter{"urlencode", urlencode},
};

}  // namespace

std::span<const NamedFilter> text_filters() {
  return kFilters;
}

}  // namespace luna::text::jinja
