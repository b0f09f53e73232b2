// Keys of a settings file that are said elsewhere: `--set scheduler.policy=srf`.
#pragma once

#include "core/config/toml_document.hpp"

#include <luna/result.hpp>

#include <cstddef>
#include <string>

namespace luna::config {

inline constexpr std::size_t kOverrideBytesMax = 64 * 1024;

/// Where what an override says stands, in place of line and column: locate() calls it "--set".
inline constexpr Position kSaidByOverride{0, 1};

/// Puts one `KEY=VALUE` into a file's tree, in place of what the file says there. Whether the file
/// may have such a key and such a value is found out when the tree is read. [start-up]
///
/// text  KEY: table and key with a dot between, `model[1].kv_cache` in tables that repeat (counted
///       from 0), quotes round names with other signs than letters, digits, '_' and '-'. VALUE: as
///       TOML writes it; what is not TOML, or belongs to a key that takes a text, is a text as it
///       stands
/// Errors  invalid_argument: with the text, what is wrong with it and what it must be
Result<void> apply_override(TomlNode& root, const std::string& text);

}  // namespace luna::config
