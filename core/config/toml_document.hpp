// A TOML file as a tree of plain values with their positions. The one file that knows the TOML
// library is toml_document.cpp.
#pragma once

#include "core/config/settings.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace luna::config {

struct TomlEntry;

/// A date or time: valid TOML that no setting takes.
struct TomlDate {};

/// One value and where it begins. A table keeps its entries in the order of the file.
struct TomlNode {
  using List = std::vector<TomlNode>;
  using Table = std::vector<TomlEntry>;

  Position at;
  std::variant<bool, std::int64_t, double, std::string, TomlDate, List, Table> value;
};

struct TomlEntry {
  std::string key;
  Position key_at;
  TomlNode node;
};

/// The entry of a table; null: it has no such key.
const TomlEntry* find_entry(const TomlNode& table, std::string_view key);

/// Where the value of a key stands; where there is none, the table.
Position value_position(const TomlNode& table, std::string_view key);

/// The value as it would be written, short, for messages: "70000", "a list".
std::string print_node(const TomlNode& node);

/// Parses a whole file's text. [start-up]
///
/// file     for messages
/// Returns  the root table
/// Errors   invalid_argument (not TOML, not UTF-8, a zero byte, nested too deeply), with
///          file:line:column and the line itself
/// Source   TOML 1.0.0
Result<TomlNode> parse_toml(std::string_view text, const std::string& file);

}  // namespace luna::config
