// Every key that core itself reads: table, type, range, default, help, and the field it fills. The
// reader, the explanations of misspelt keys and the reference for operators come from this table.
#pragma once

#include "core/config/settings.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace luna::config {

enum class ValueType {
  boolean,     ///< true or false
  integer,     ///< a whole number in min..max
  bytes,       ///< a whole number of bytes in min..max, or a text with a unit: "1 GiB"
  text,        ///< of min..max bytes, without control characters
  choice,      ///< one of `choices`
  path,        ///< relative to the file's folder; "" is none
  path_list,   ///< the same, several
  text_list,   ///< at least one text
  text_lists,  ///< lists of texts, at least one, none of them empty
  layers,      ///< "auto", counts per device [18, 12], or ranges ["0..17", "18..29"]
  pins,        ///< a table of a SHA-256 a plugin: {srf = "9f86..."}
  load,        ///< a table of whole numbers in min..max: prompt, reused, output, users
};

/// A checked value on its way to its field. A choice is its place among the choices, true is 1.
using Value = std::variant<std::int64_t,
                           std::string,
                           std::filesystem::path,
                           std::vector<std::filesystem::path>,
                           std::vector<std::string>,
                           std::vector<std::vector<std::string>>,
                           std::vector<LayerRange>,
                           std::vector<PluginPin>,
                           ExpectedLoad>;

struct KeyRow {
  std::string_view table;
  std::string_view key;
  ValueType type;
  std::int64_t min;
  std::int64_t max;
  std::string_view choices;  ///< "bf16|int8"
  /// What an absent key means, as TOML would write it, quotes left out; none: it is required.
  /// "": the field stays empty.
  std::optional<std::string_view> default_text;
  std::string_view help;
  void (*store)(void* record, const Value& value);  ///< record: the table's struct
};

/// How often a table may stand in a file, and who owns keys that no row names.
enum class TableForm { single, repeated };
enum class OtherKeys { refused, of_plugin, tables_of_plugins };

struct TableRow {
  std::string_view table;
  TableForm form;
  OtherKeys other_keys;
  bool is_required;
  std::string_view help;
};

std::span<const TableRow> schema_tables();
std::span<const KeyRow> schema_keys();

/// Keys of one table, in the order of the schema.
std::vector<std::string> keys_of(std::string_view table);

/// "a whole number in 1..65535", "one of bf16|int8": what a key takes.
std::string describe_key(const KeyRow& row);

}  // namespace luna::config
