// A plugin's own settings: what the TOML says, held against the parameters the plugin declares, as
// the typed rows that luna_if::create takes.
#pragma once

#include "core/config/settings.hpp"

#include <luna/plugin.h>
#include <luna/result.hpp>

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace luna::plugin {

/// Owns the rows and their texts. A resource: moved, never copied. Keys point into the plugin.
class SettingRows {
 public:
  SettingRows() = default;
  SettingRows(SettingRows&&) = default;
  SettingRows& operator=(SettingRows&&) = default;
  SettingRows(const SettingRows&) = delete;
  SettingRows& operator=(const SettingRows&) = delete;

  [[nodiscard]] std::span<const luna_kv> rows() const { return rows_; }

  void add_flag(std::string_view key, bool value);
  void add_integer(std::string_view key, std::int64_t value);
  void add_number(std::string_view key, double value);
  /// type  LUNA_TYPE_STRING, or a list or map already joined by zero bytes
  void add_text(std::string_view key, std::uint32_t type, std::string value);

 private:
  luna_kv& add(std::string_view key, std::uint32_t type);

  std::vector<luna_kv> rows_;
  std::deque<std::string> texts_;  // stable addresses
};

/// Rows in the order of the parameters, and everything that is wrong with the settings. The rows
/// are complete only when there are no errors.
struct CheckedRows {
  SettingRows rows;
  std::vector<Error> errors;
};

/// Checks keys, types, ranges and choices; fills in defaults. Every error names table, key, value,
/// what is allowed and file:line:column. [start-up]
CheckedRows check_rows(const luna_if& head, const config::RawGroup& settings);

/// The declared parameters, read with the stride that the plugin was built with.
std::vector<const luna_param*> params_of(const luna_if& head);

/// The value that a text stands for, as a default is written: luna_param::dflt. nullopt: it is of
/// another type.
std::optional<config::RawValue> parse_setting(const luna_param& param, const char* text);

/// "a whole number in 1..60000", "one of a|b": what a parameter takes, for messages and listings.
std::string describe_param(const luna_param& param);

}  // namespace luna::plugin
