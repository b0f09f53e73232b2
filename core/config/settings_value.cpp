#include "core/config/settings_value.hpp"

#include "core/base/assert.hpp"
#include "core/base/sha256.hpp"
#include "core/base/units.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

namespace luna::config {
namespace {

template <typename T>
const T* as(const TomlNode& node) {
  return std::get_if<T>(&node.value);
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> in_range(const KeyRow& row, std::optional<std::int64_t> value) {
  return value && *value >= row.min && *value <= row.max ? value : std::nullopt;
}

/// "512 MiB", "1GiB", "100 B": a whole number and a binary unit.
std::optional<std::int64_t> parse_bytes(std::string_view text) {
  const std::size_t n_digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = parse_integer(text.substr(0, n_digits));
  text.remove_prefix(n_digits);
  if (text.starts_with(' ')) text.remove_prefix(1);
  std::uint64_t unit = 0;
  if (text == "B") unit = 1;
  if (text == "KiB") unit = kKiB;
  if (text == "MiB") unit = kMiB;
  if (text == "GiB") unit = kGiB;
  if (text == "TiB") unit = 1024 * kGiB;
  if (!number || unit == 0) return std::nullopt;
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (static_cast<std::uint64_t>(*number) > kMax / unit) return std::nullopt;
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(*number) * unit);
}

/// Place of the word among "a|b|c".
std::optional<std::int64_t> choice_index(std::string_view choices, std::string_view word) {
  for (std::int64_t index = 0;; ++index) {
    const std::size_t end = choices.find('|');
    if (choices.substr(0, end) == word) return index;
    if (end == std::string_view::npos) return std::nullopt;
    choices.remove_prefix(end + 1);
  }
}

std::optional<std::int64_t> convert_choice(const KeyRow& row, const TomlNode& node) {
  const bool are_numbers = parse_integer(row.choices.substr(0, row.choices.find('|'))).has_value();
  if (const auto* integer = as<std::int64_t>(node); integer != nullptr && are_numbers)
    return choice_index(row.choices, std::to_string(*integer));
  if (const auto* text = as<std::string>(node); text != nullptr && !are_numbers)
    return choice_index(row.choices, *text);
  return std::nullopt;
}

bool is_plain_text(const std::string& text) {
  return std::ranges::none_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7F; });
}

std::optional<std::filesystem::path> convert_path(const TomlNode& node,
                                                  const std::filesystem::path& folder) {
  const auto* text = as<std::string>(node);
  if (text == nullptr || text->empty() || !is_plain_text(*text)) return std::nullopt;
  return (folder / *text).lexically_normal();
}

/// "0..17": first and last layer.
std::optional<LayerRange> parse_layer_range(const KeyRow& row, std::string_view text) {
  const std::size_t dots = text.find("..");
  if (dots == std::string_view::npos) return std::nullopt;
  const auto first = in_range(row, parse_integer(text.substr(0, dots)));
  const auto last = in_range(row, parse_integer(text.substr(dots + 2)));
  if (!first || !last || *last < *first) return std::nullopt;
  return LayerRange{static_cast<std::uint32_t>(*first),
                    static_cast<std::uint32_t>(*last - *first + 1)};
}

/// Ranges that follow each other from layer 0, from counts or from ranges.
std::optional<std::vector<LayerRange>> convert_layers(const KeyRow& row, const TomlNode& node) {
  const auto* list = as<TomlNode::List>(node);
  if (list == nullptr || list->empty()) return std::nullopt;
  std::vector<LayerRange> ranges;
  std::uint32_t next = 0;
  for (const TomlNode& element : *list) {
    std::optional<LayerRange> range;
    if (const auto* text = as<std::string>(element)) {
      range = parse_layer_range(row, *text);
    } else if (const auto* count = as<std::int64_t>(element);
               count != nullptr && *count > 0 && in_range(row, *count)) {
      range = LayerRange{next, static_cast<std::uint32_t>(*count)};
    }
    if (!range || range->first != next) return std::nullopt;
    next = range->first + range->count;
    if (next > row.max) return std::nullopt;
    ranges.push_back(*range);
  }
  return ranges;
}

std::optional<ExpectedLoad> convert_load(const KeyRow& row, const TomlNode& node) {
  const auto* table = as<TomlNode::Table>(node);
  if (table == nullptr) return std::nullopt;
  struct Part {
    std::string_view key;
    std::uint32_t ExpectedLoad::*field;
    std::int64_t least;
  };
  static constexpr Part kParts[] = {{"prompt", &ExpectedLoad::prompt, 1},
                                    {"reused", &ExpectedLoad::reused, 0},
                                    {"output", &ExpectedLoad::output, 1},
                                    {"users", &ExpectedLoad::users, 1}};
  ExpectedLoad load;
  for (const TomlEntry& entry : *table) {
    const auto part = std::ranges::find(kParts, entry.key, &Part::key);
    const auto* number = as<std::int64_t>(entry.node);
    if (part == std::end(kParts) || number == nullptr || *number < part->least ||
        !in_range(row, *number))
      return std::nullopt;
    load.*(part->field) = static_cast<std::uint32_t>(*number);
  }
  return load;
}

/// At least one.
std::optional<std::vector<PluginPin>> convert_pins(const TomlNode& node) {
  const auto* table = as<TomlNode::Table>(node);
  if (table == nullptr || table->empty()) return std::nullopt;
  std::vector<PluginPin> pins;
  for (const TomlEntry& entry : *table) {
    const auto* digest = as<std::string>(entry.node);
    if (digest == nullptr || !is_sha256_text(*digest) || !is_plain_text(entry.key))
      return std::nullopt;
    pins.push_back({entry.key, *digest});
  }
  return pins;
}

template <typename T, typename Convert>
std::optional<std::vector<T>> convert_list(const TomlNode& node, const Convert& convert_element) {
  const auto* list = as<TomlNode::List>(node);
  if (list == nullptr) return std::nullopt;
  std::vector<T> values;
  for (const TomlNode& element : *list) {
    std::optional<T> value = convert_element(element);
    if (!value) return std::nullopt;
    values.push_back(std::move(*value));
  }
  return values;
}

std::optional<std::string> text_of(const TomlNode& node) {
  const auto* text = as<std::string>(node);
  if (text == nullptr) return std::nullopt;
  return *text;
}

/// At least one.
std::optional<std::vector<std::string>> texts_of(const TomlNode& node) {
  auto texts = convert_list<std::string>(node, text_of);
  return texts && !texts->empty() ? texts : std::nullopt;
}

/// A map's element: a text, or a number as a text.
std::optional<std::string> element_text_of(const TomlNode& node) {
  if (const auto* integer = as<std::int64_t>(node)) return std::to_string(*integer);
  if (as<double>(node) != nullptr) return print_node(node);
  return text_of(node);
}

/// A Value, where there is anything.
template <typename T>
std::optional<Value> wrap(std::optional<T> value) {
  if (!value) return std::nullopt;
  return Value(std::move(*value));
}

}  // namespace

std::optional<Value> convert(const KeyRow& row,
                             const TomlNode& node,
                             const std::filesystem::path& folder) {
  switch (row.type) {
    case ValueType::boolean: {
      const auto* flag = as<bool>(node);
      if (flag == nullptr) return std::nullopt;
      return Value(std::int64_t{*flag ? 1 : 0});
    }
    case ValueType::integer: {
      const auto* integer = as<std::int64_t>(node);
      if (integer == nullptr) return std::nullopt;
      return wrap(in_range(row, *integer));
    }
    case ValueType::bytes: {
      if (const auto* integer = as<std::int64_t>(node)) return wrap(in_range(row, *integer));
      const auto* text = as<std::string>(node);
      if (text == nullptr) return std::nullopt;
      return wrap(in_range(row, parse_bytes(*text)));
    }
    case ValueType::text: {
      const auto* text = as<std::string>(node);
      if (text == nullptr || !is_plain_text(*text) ||
          !in_range(row, static_cast<std::int64_t>(text->size())))
        return std::nullopt;
      return Value(*text);
    }
    case ValueType::choice:
      return wrap(convert_choice(row, node));
    case ValueType::path:
      return wrap(convert_path(node, folder));
    case ValueType::path_list:
      return wrap(convert_list<std::filesystem::path>(
          node, [&](const TomlNode& element) { return convert_path(element, folder); }));
    case ValueType::text_list:
      return wrap(texts_of(node));
    case ValueType::text_lists: {
      auto lists = convert_list<std::vector<std::string>>(node, texts_of);
      if (lists && lists->empty()) return std::nullopt;
      return wrap(std::move(lists));
    }
    case ValueType::layers:
      return wrap(convert_layers(row, node));
    case ValueType::pins:
      return wrap(convert_pins(node));
    case ValueType::load:
      return wrap(convert_load(row, node));
  }
  return std::nullopt;
}

std::optional<Value> default_value(const KeyRow& row) {
  const std::string_view text = row.default_text.value_or("");
  if (text.empty() || row.type == ValueType::layers) return std::nullopt;
  std::optional<Value> value;
  if (row.type == ValueType::boolean) value = wrap(choice_index("false|true", text));
  if (row.type == ValueType::integer) value = wrap(in_range(row, parse_integer(text)));
  if (row.type == ValueType::bytes) value = wrap(in_range(row, parse_bytes(text)));
  if (row.type == ValueType::choice) value = wrap(choice_index(row.choices, text));
  if (row.type == ValueType::text) value = Value(std::string(text));
  LUNA_VERIFY(value.has_value());  // a default that its own row refuses
  return value;
}

std::optional<RawValue> convert_raw(const TomlNode& node) {
  if (const auto* flag = as<bool>(node)) return RawValue(*flag);
  if (const auto* integer = as<std::int64_t>(node)) return RawValue(*integer);
  if (const auto* number = as<double>(node)) return RawValue(*number);
  if (const auto* text = as<std::string>(node)) return RawValue(*text);
  if (auto texts = convert_list<std::string>(node, text_of)) return RawValue(std::move(*texts));
  const auto* table = as<TomlNode::Table>(node);
  if (table == nullptr) return std::nullopt;
  std::vector<std::pair<std::string, std::string>> map;
  for (const TomlEntry& entry : *table) {
    auto text = element_text_of(entry.node);
    if (!text) return std::nullopt;
    map.emplace_back(entry.key, std::move(*text));
  }
  return RawValue(std::move(map));
}

}  // namespace luna::config
