// One TOML value held against its row of the schema.
#pragma once

#include "core/config/settings_schema.hpp"
#include "core/config/toml_document.hpp"

#include <filesystem>
#include <optional>

namespace luna::config {

/// The value in the form its field takes; nullopt: wrong type, unit, range or choice.
///
/// folder  absolute; relative paths start there
std::optional<Value> convert(const KeyRow& row,
                             const TomlNode& node,
                             const std::filesystem::path& folder);

/// What an absent key stands for; nullopt: the field stays empty.
std::optional<Value> default_value(const KeyRow& row);

/// A value that belongs to a plugin; nullopt: a kind of value that no plugin can take.
std::optional<RawValue> convert_raw(const TomlNode& node);

}  // namespace luna::config
