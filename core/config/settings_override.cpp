#include "core/config/settings_override.hpp"

#include "core/config/nearest_key.hpp"
#include "core/config/settings_schema.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace luna::config {
namespace {

using Table = TomlNode::Table;
using List = TomlNode::List;

// Of any key that there is: [scheduler.<policy>] with a map below.
constexpr std::size_t kPartsMax = 8;
constexpr std::size_t kShownBytesMax = 200;

/// One name of a dotted key, and which of the tables that repeat.
struct Part {
  std::string name;
  std::optional<std::size_t> index;
};

bool is_bare(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

/// Takes a name from the front.
std::optional<std::string> take_name(std::string_view& rest) {
  if (rest.starts_with('"')) {
    const std::size_t end = rest.find('"', 1);
    if (end == std::string_view::npos || end == 1) return std::nullopt;
    std::string name(rest.substr(1, end - 1));
    rest.remove_prefix(end + 1);
    return name;
  }
  const auto end = std::ranges::find_if_not(rest, is_bare);
  const auto n = static_cast<std::size_t>(end - rest.begin());
  if (n == 0) return std::nullopt;
  std::string name(rest.substr(0, n));
  rest.remove_prefix(n);
  return name;
}

/// Takes "[3]" from the front; false: it is not closed, or no number.
bool take_index(std::string_view& rest, Part& part) {
  std::size_t index = 0;
  const char* const end = rest.data() + rest.size();
  const auto [stop, error] = std::from_chars(rest.data() + 1, end, index);
  if (error != std::errc{} || stop == end || *stop != ']') return false;
  part.index = index;
  rest.remove_prefix(static_cast<std::size_t>(stop - rest.data()) + 1);
  return true;
}

/// The names of a dotted key; what follows them is left in `rest`.
std::optional<std::vector<Part>> take_key(std::string_view& rest) {
  std::vector<Part> parts;
  for (;;) {
    auto name = take_name(rest);
    if (!name || parts.size() == kPartsMax) return std::nullopt;
    Part part{std::move(*name), std::nullopt};
    if (rest.starts_with('[') && !take_index(rest, part)) return std::nullopt;
    parts.push_back(std::move(part));
    if (!rest.starts_with('.')) return parts;
    rest.remove_prefix(1);
  }
}

/// Whether core's own row says that the key takes a text, however that looks.
bool takes_text(const std::vector<Part>& key) {
  if (key.size() < 2) return false;
  return std::ranges::any_of(schema_keys(), [&](const KeyRow& row) {
    if (row.table != key[0].name || row.key != key[1].name) return false;
    if (key.size() == 3) return row.type == ValueType::pins;
    return key.size() == 2 && (row.type == ValueType::text || row.type == ValueType::path ||
                               (row.type == ValueType::choice && row.choices.front() > '9'));
  });
}

void place_everywhere(TomlNode& node) {
  node.at = kSaidByOverride;
  if (auto* list = std::get_if<List>(&node.value)) std::ranges::for_each(*list, place_everywhere);
  if (auto* table = std::get_if<Table>(&node.value))
    for (TomlEntry& entry : *table) {
      entry.key_at = kSaidByOverride;
      place_everywhere(entry.node);
    }
}

/// The value that a text stands for.
TomlNode value_of(std::string_view text, bool wants_text) {
  auto parsed = parse_toml("value = " + std::string(text), "--set");
  const auto* entries = parsed ? &std::get<Table>(parsed->value) : nullptr;
  const bool is_value = entries != nullptr && entries->size() == 1;
  TomlNode node{kSaidByOverride, std::string(text)};
  if (is_value) {
    TomlNode& value = std::get<Table>(parsed->value).front().node;
    if (!wants_text || std::holds_alternative<std::string>(value.value)) node = std::move(value);
  }
  place_everywhere(node);
  return node;
}

TomlEntry& entry_of(Table& table, const std::string& name) {
  const auto found = std::ranges::find(table, name, &TomlEntry::key);
  if (found != table.end()) return *found;
  return table.emplace_back(TomlEntry{name, kSaidByOverride, {kSaidByOverride, Table{}}});
}

std::vector<std::string> names_of(bool repeated) {
  std::vector<std::string> names;
  for (const TableRow& row : schema_tables())
    if (!repeated || row.form == TableForm::repeated) names.emplace_back(row.table);
  return names;
}

/// One override on its way into the tree.
class Override {
 public:
  explicit Override(const std::string& text) : text_(text) {}

  Result<void> apply(TomlNode& root) {
    LUNA_TRY(check_bytes());
    std::string_view rest = text_;
    const auto key = take_key(rest);
    if (!key || !rest.starts_with('='))
      return wrong(
          "must be KEY=VALUE, with a dotted key such as scheduler.policy or model[0].kv_cache");
    rest.remove_prefix(1);
    if (rest.empty()) return wrong("has no value; an empty text is written \"\"");
    if (key->size() < 2)
      return wrong("must name a table and a key of it, such as log.level" +
                   nearest_key_hint(key->front().name, names_of(false)));
    TomlNode* node = &root;
    for (const Part& part : std::span(*key).first(key->size() - 1)) {
      LUNA_TRY(node, step_into(*node, part));
    }
    if (key->back().index) return wrong("sets a whole list only: without [" + index_of(*key) + "]");
    TomlEntry& entry = entry_of(std::get<Table>(node->value), key->back().name);
    entry.key_at = kSaidByOverride;
    entry.node = value_of(rest, takes_text(*key));
    return {};
  }

 private:
  Error wrong(const std::string& what) const {
    return {Code::invalid_argument, "--set " + text_.substr(0, kShownBytesMax) + ": " + what};
  }

  static std::string index_of(const std::vector<Part>& key) {
    return std::to_string(*key.back().index);
  }

  /// Nothing that a terminal or a log would take for its own, and UTF-8.
  Result<void> check_bytes() {
    if (text_.size() > kOverrideBytesMax)
      return Error{Code::invalid_argument,
                   "--set: " + std::to_string(text_.size()) + " bytes, at most " +
                       std::to_string(kOverrideBytesMax) + " are allowed"};
    const bool is_plain =
        std::ranges::none_of(text_, [](unsigned char c) { return c < 0x20 || c == 0x7F; });
    if (is_plain && parse_toml("# " + text_, "--set")) return {};
    return Error{Code::invalid_argument,
                 "--set: holds control characters or is not UTF-8; in a quoted text, TOML writes "
                 "them as \\n or \\u0000"};
  }

  Result<TomlNode*> step_into(TomlNode& table, const Part& part) {
    TomlEntry& entry = entry_of(std::get<Table>(table.value), part.name);
    if (auto* list = std::get_if<List>(&entry.node.value)) return element_of(*list, part);
    if (part.index) return wrong(part.name + " is no table that repeats: without the brackets");
    if (std::ranges::count(names_of(true), part.name) != 0)
      return wrong("the file has no [[" + part.name + "]] that this could be set in");
    if (!std::holds_alternative<Table>(entry.node.value))
      return wrong(part.name + " is " + print_node(entry.node) + ", not a table");
    return &entry.node;
  }

  Result<TomlNode*> element_of(List& list, const Part& part) {
    const std::string n = std::to_string(list.size());
    if (!part.index)
      return wrong("there are " + n + " [[" + part.name + "]]: say which, from " + part.name +
                   "[0] on");
    if (*part.index >= list.size())
      return wrong("there are " + n + " [[" + part.name + "]], the last is " + part.name + "[" +
                   std::to_string(list.size() - 1) + "]");
    TomlNode& element = list[*part.index];
    if (!std::holds_alternative<Table>(element.value))
      return wrong(part.name + " is a list, not tables");
    return &element;
  }

  const std::string& text_;
};

}  // namespace

Result<void> apply_override(TomlNode& root, const std::string& text) {
  return Override(text).apply(root);
}

}  // namespace luna::config
