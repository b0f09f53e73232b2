#include "core/config/toml_document.hpp"

#include <algorithm>
#include <charconv>
#include <type_traits>
#include <utility>

// The library's code in this file alone, and a bound on its recursion. It throws, because without
// exceptions version 3.3 parses on after some errors. Its assertions are off: one of them holds
// only for well-formed headers ("[[[" breaks it), and with NDEBUG it would be taken as a promise to
// the optimizer; without it the check that follows refuses the header.
#undef NDEBUG
#define TOML_ASSERT(condition) static_cast<void>(0)
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 1
#define TOML_MAX_NESTED_VALUES 32
#include <toml++/toml.h>

namespace luna::config {
namespace {

// Each dotted part of a key nests a table, and the library frees tables by recursion.
constexpr std::size_t kKeyPartsMax = 64;
constexpr std::size_t kExcerptBytesMax = 80;

/// Line `number` (from 1) without blanks at its ends, cut to a readable length.
std::string excerpt(std::string_view text, std::uint32_t number) {
  for (std::uint32_t i = 1; i < number; ++i) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return "";
    text.remove_prefix(end + 1);
  }
  text = text.substr(0, text.find('\n'));
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return "";
  text = text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
  std::string line(text.substr(0, kExcerptBytesMax));
  // Bytes that are not printable ASCII may be why the line was refused; the terminal is spared.
  for (char& c : line)
    if (c < ' ' || c > '~') c = '?';
  return line;
}

Error refuse(std::string_view text, const std::string& file, Position at, std::string_view why) {
  std::string message = "not valid TOML: " + std::string(why);
  if (const std::string line = excerpt(text, at.line); !line.empty())
    message += " in `" + line + "`";
  return Error{Code::invalid_argument, message + " (" + locate(file, at) + ")"};
}

/// What the library would not survive or not report: zero bytes, marks amid the text, deep keys.
Result<void> scan(std::string_view text, const std::string& file) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  Position at{1, 1};
  std::size_t n_parts = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\0') return refuse(text, file, at, "a zero byte");
    if (i != 0 && text.substr(i, kMark.size()) == kMark)
      return refuse(text, file, at, "a byte order mark that is not at the start");
    if (c == '.' && ++n_parts > kKeyPartsMax)
      return refuse(text, file, at, "a key of more than 64 parts");
    if (c == '=' || c == ',' || c == '#' || c == '[' || c == ']' || c == '{' || c == '}' ||
        c == '\n')
      n_parts = 0;
    if (c == '\n') {
      ++at.line;
      at.column = 1;
    } else if ((static_cast<unsigned char>(c) & 0xC0u) != 0x80u) {
      ++at.column;  // a character, not a byte inside one
    }
  }
  return {};
}

Position to_position(const toml::source_region& region) {
  return {region.begin.line, region.begin.column};
}

TomlNode to_node(const toml::node& from);

TomlNode::Table to_table(const toml::table& from) {
  TomlNode::Table table;
  table.reserve(from.size());
  for (const auto& [key, value] : from)
    table.push_back({std::string(key.str()), to_position(key.source()), to_node(value)});
  std::ranges::stable_sort(table, {}, [](const TomlEntry& entry) {
    return std::pair(entry.key_at.line, entry.key_at.column);
  });
  return table;
}

TomlNode to_node(const toml::node& from) {
  TomlNode node{to_position(from.source()), TomlDate{}};
  if (const auto* table = from.as_table()) {
    node.value = to_table(*table);
  } else if (const auto* array = from.as_array()) {
    TomlNode::List list;
    list.reserve(array->size());
    for (const toml::node& element : *array)
      list.push_back(to_node(element));
    node.value = std::move(list);
  } else if (const auto* text = from.as_string()) {
    node.value = text->get();
  } else if (const auto* integer = from.as_integer()) {
    node.value = integer->get();
  } else if (const auto* number = from.as_floating_point()) {
    node.value = number->get();
  } else if (const auto* flag = from.as_boolean()) {
    node.value = flag->get();
  }
  return node;
}

}  // namespace

std::string print_node(const TomlNode& node) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>) {
          return v ? "true" : "false";
        } else if constexpr (std::is_same_v<T, std::int64_t>) {
          return std::to_string(v);
        } else if constexpr (std::is_same_v<T, double>) {
          char text[32];
          return std::string(text, std::to_chars(text, text + sizeof(text), v).ptr);
        } else if constexpr (std::is_same_v<T, std::string>) {
          return '"' + v.substr(0, kExcerptBytesMax) + '"';
        } else if constexpr (std::is_same_v<T, TomlDate>) {
          return "a date or time";
        } else if constexpr (std::is_same_v<T, TomlNode::List>) {
          return v.empty() ? "an empty list" : "a list";
        } else {
          return "a table";
        }
      },
      node.value);
}

Result<TomlNode> parse_toml(std::string_view text, const std::string& file) {
  LUNA_TRY(scan(text, file));
  try {
    return TomlNode{{1, 1}, to_table(toml::parse(text))};
  } catch (const toml::parse_error& error) {
    return refuse(text, file, to_position(error.source()), error.description());
  }
}

}  // namespace luna::config
