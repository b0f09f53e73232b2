#include "core/text/template_print.hpp"

#include "core/text/utf8.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utf8proc.h>

namespace luna::text::jinja {
namespace {

std::string hex(std::uint32_t value, int n_digits) {
  std::array<char, 16> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%0*x", n_digits, value);
  return buffer.data();
}

/// str.isprintable() of one character.
bool is_printable(char32_t point) {
  if (point < 0x7F) return point >= 0x20;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(point))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

/// The escape of a character in repr(), or nothing where it stands for itself.
std::string repr_escape(char32_t point, char quote) {
  switch (point) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\\':
      return "\\\\";
    default:
      break;
  }
  if (point == static_cast<char32_t>(quote)) return std::string("\\") + quote;
  if (is_printable(point)) return {};
  if (point < 0x100) return "\\x" + hex(point, 2);
  if (point < 0x10000) return "\\u" + hex(point, 4);
  return "\\U" + hex(point, 8);
}

/// The escape of a character in JSON, or nothing.
std::string json_escape(char32_t point, bool ensure_ascii) {
  switch (point) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\f':
      return "\\f";
    case '\b':
      return "\\b";
    default:
      break;
  }
  if (point < 0x20) return "\\u" + hex(point, 4);
  if (point < 0x7F || !ensure_ascii) return {};
  if (point < 0x10000) return "\\u" + hex(point, 4);
  const std::uint32_t rest = point - 0x10000;
  return "\\u" + hex(0xD800 + (rest >> 10U), 4) + "\\u" + hex(0xDC00 + (rest & 0x3FFU), 4);
}

/// Appends a text with some characters escaped; an escape counts as what it stands for.
template <typename Escape>
void append_escaped(MarkedText& out, const MarkedText& text, Escape escape) {
  const std::string& bytes = text.bytes();
  std::size_t plain = 0;  // where the stretch without escapes begins
  for (std::size_t pos = 0; pos < bytes.size();) {
    const Utf8Step step = utf8_step(bytes, pos);
    const std::string replacement = escape(step.point);
    if (!replacement.empty()) {
      out.append(text, plain, pos);
      out.append(replacement, text.trusted_at(pos));
      plain = pos + step.n_bytes;
    }
    pos += step.n_bytes;
  }
  out.append(text, plain, bytes.size());
}

void append_repr(MarkedText& out, const Value& value);

void append_text_repr(MarkedText& out, const MarkedText& text) {
  const std::string& bytes = text.bytes();
  const bool has_single = bytes.find('\'') != std::string::npos;
  const char quote = has_single && bytes.find('"') == std::string::npos ? '"' : '\'';
  const bool trusted = text.all_trusted();
  out.append(std::string(1, quote), trusted);
  append_escaped(out, text, [quote](char32_t point) { return repr_escape(point, quote); });
  out.append(std::string(1, quote), trusted);
}

void append_items_repr(MarkedText& out, const List& list) {
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.append(", ", list.trusted);
    append_repr(out, list.items[i]);
  }
}

void append_list_repr(MarkedText& out, const List& list) {
  const bool trusted = list.trusted;
  const auto wrapped = [&](std::string_view before, std::string_view after) {
    out.append(before, trusted);
    append_items_repr(out, list);
    out.append(after, trusted);
  };
  switch (list.kind) {
    case ListKind::list:
      return wrapped("[", "]");
    case ListKind::tuple:
      return wrapped("(", list.items.size() == 1 ? ",)" : ")");
    case ListKind::keys:
      return wrapped("dict_keys([", "])");
    case ListKind::values:
      return wrapped("dict_values([", "])");
    case ListKind::items:
      return wrapped("dict_items([", "])");
    case ListKind::generator:
      out.append("<generator object>", trusted);
      return;
    case ListKind::range:
      break;
  }
  std::string range =
      "range(" + std::to_string(list.range_start) + ", " + std::to_string(list.range_stop);
  if (list.range_step != 1) range += ", " + std::to_string(list.range_step);
  out.append(range + ")", trusted);
}

void append_dict_repr(MarkedText& out, const Dict& dict) {
  out.append("{", dict.trusted);
  for (std::size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) out.append(", ", dict.trusted);
    append_repr(out, dict.entries[i].first);
    out.append(": ", dict.trusted);
    append_repr(out, dict.entries[i].second);
  }
  out.append("}", dict.trusted);
}

std::string callable_repr(const Callable& callable) {
  switch (callable.kind) {
    case CallableKind::macro:
      return "<Macro '" + callable.name + "'>";
    case CallableKind::function:
      return "<function " + callable.name + ">";
    default:
      return "<bound method " + callable.name + ">";
  }
}

void append_repr(MarkedText& out, const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      out.append("Undefined", true);
      return;
    case Kind::none:
      out.append("None", value.trusted());
      return;
    case Kind::boolean:
      out.append(value.as_boolean() ? "True" : "False", value.trusted());
      return;
    case Kind::integer:
      out.append(std::to_string(value.as_integer()), value.trusted());
      return;
    case Kind::real:
      out.append(real_as_text(value.as_real()), value.trusted());
      return;
    case Kind::text:
      append_text_repr(out, value.as_text());
      return;
    case Kind::list:
      append_list_repr(out, value.as_list());
      return;
    case Kind::dict:
      append_dict_repr(out, value.as_dict());
      return;
    case Kind::name_space:
      out.append("<Namespace>", true);
      return;
    case Kind::callable:
      out.append(callable_repr(value.as_callable()), true);
      return;
    case Kind::loop: {
      const Loop& loop = value.as_loop();
      out.append("<LoopContext " + std::to_string(loop.index + 1) + "/" +
                     std::to_string(loop.items.size()) + ">",
                 true);
      return;
    }
  }
}

/// Writes JSON the way json.dumps does.
class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  Result<void> write(const Value& value, std::size_t level) {
    switch (value.kind()) {
      case Kind::none:
        out_.append("null", value.trusted());
        return {};
      case Kind::boolean:
        out_.append(value.as_boolean() ? "true" : "false", value.trusted());
        return {};
      case Kind::integer:
        out_.append(std::to_string(value.as_integer()), value.trusted());
        return {};
      case Kind::real:
        out_.append(json_real(value.as_real()), value.trusted());
        return {};
      case Kind::text:
        write_text(value.as_text());
        return {};
      case Kind::list:
        if (value.as_list().kind > ListKind::tuple) break;
        return write_list(value.as_list(), level);
      case Kind::dict:
        return write_dict(value.as_dict(), level);
      default:
        break;
    }
    return Error{Code::invalid_argument,
                 "Object of type " + std::string(type_name(value)) + " is not JSON serializable"};
  }

  MarkedText take() { return std::move(out_); }

 private:
  static std::string json_real(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return real_as_text(value);
  }

  void write_text(const MarkedText& text) {
    const bool trusted = text.all_trusted();
    out_.append("\"", trusted);
    append_escaped(
        out_, text, [this](char32_t point) { return json_escape(point, style_.ensure_ascii); });
    out_.append("\"", trusted);
  }

  void begin_line(std::size_t level, bool trusted) {
    if (!style_.indent) return;
    out_.append("\n", trusted);
    for (std::size_t i = 0; i < level; ++i)
      out_.append(*style_.indent);
  }

  /// A separator is trusted only where both the template and the container are.
  void write_separator(const MarkedText& separator, bool trusted) {
    if (trusted) {
      out_.append(separator);
    } else {
      out_.append(separator.bytes(), false);
    }
  }

  Result<void> write_list(const List& list, std::size_t level) {
    if (list.items.empty()) {
      out_.append("[]", list.trusted);
      return {};
    }
    out_.append("[", list.trusted);
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) write_separator(style_.item_separator, list.trusted);
      begin_line(level + 1, list.trusted);
      LUNA_TRY(write(list.items[i], level + 1));
    }
    begin_line(level, list.trusted);
    out_.append("]", list.trusted);
    return {};
  }

  Result<void> write_key(const Value& key) {
    switch (key.kind()) {
      case Kind::text:
        write_text(key.as_text());
        return {};
      case Kind::none:
      case Kind::boolean:
      case Kind::integer:
      case Kind::real: {
        JsonWriter plain(style_);
        LUNA_TRY(plain.write(key, 0));
        write_text(plain.take());
        return {};
      }
      default:
        return Error{
            Code::invalid_argument,
            "keys must be str, int, float, bool or None, not " + std::string(type_name(key))};
    }
  }

  Result<void> write_dict(const Dict& dict, std::size_t level) {
    if (dict.entries.empty()) {
      out_.append("{}", dict.trusted);
      return {};
    }
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries)
      entries.push_back(&entry);
    if (style_.sort_keys) LUNA_TRY(sort(entries));
    out_.append("{", dict.trusted);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) write_separator(style_.item_separator, dict.trusted);
      begin_line(level + 1, dict.trusted);
      LUNA_TRY(write_key(entries[i]->first));
      write_separator(style_.key_separator, dict.trusted);
      LUNA_TRY(write(entries[i]->second, level + 1));
    }
    begin_line(level, dict.trusted);
    out_.append("}", dict.trusted);
    return {};
  }

  static Result<void> sort(std::vector<const std::pair<Value, Value>*>& entries) {
    bool comparable = true;
    for (const auto* entry : entries) {
      comparable = comparable && compare(entry->first, entries[0]->first).has_value();
    }
    if (!comparable) return Error{Code::invalid_argument, "keys of several types cannot be sorted"};
    std::stable_sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
      return compare(a->first, b->first).value_or(0) < 0;
    });
    return {};
  }

  const JsonStyle& style_;
  MarkedText out_;
};

}  // namespace

MarkedText to_text(const Value& value) {
  if (value.is(Kind::text)) return value.as_text();
  if (value.is(Kind::undefined)) return {};
  return to_repr(value);
}

MarkedText to_repr(const Value& value) {
  MarkedText out;
  append_repr(out, value);
  return out;
}

std::string real_as_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(
      buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  const std::string_view scientific(buffer.data(),
                                    static_cast<std::size_t>(end.ptr - buffer.data()));
  const std::size_t e = scientific.find('e');
  const int exponent = std::atoi(scientific.data() + e + 1);
  // Python writes an exponent below 1e-4 and from 1e16 on.
  if (exponent < -4 || exponent >= 16) return std::string(scientific);
  const auto fixed_end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed);
  std::string fixed(buffer.data(), fixed_end.ptr);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

Result<MarkedText> to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  LUNA_TRY(writer.write(value, 0));
  return writer.take();
}

}  // namespace luna::text::jinja
