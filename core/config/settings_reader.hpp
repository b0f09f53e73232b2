// From a TOML file to checked settings.
#pragma once

#include "core/config/settings.hpp"

#include <luna/result.hpp>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace luna::config {

inline constexpr std::size_t kSettingsBytesMax = 1 << 20;

/// What a file says and everything that is wrong with it, in the order of the file. The settings
/// are usable only when there are no errors.
struct SettingsReading {
  Settings settings;
  std::vector<Error> errors;
};

/// Reads a whole file. An unknown key or table, a wrong type, unit or range, a missing key, a name
/// given twice or one that refers to nothing is an error with table, key, value, what is allowed
/// and file:line:column; an unknown word comes with the nearest known one. Keys that belong to
/// plugins are kept for plugin::check_settings(). [start-up]
///
/// overrides  keys that are set in place of the file's, as apply_override() takes them; errors in
///            what they say are located at "--set"
/// Errors  not_found, io (the file); invalid_argument (its content, or more than 1 MiB)
/// Source  TOML 1.0.0
SettingsReading read_settings_file(const std::filesystem::path& path,
                                   const std::vector<std::string>& overrides = {});

/// The same for text in memory.
///
/// file    for messages
/// folder  absolute; relative paths start there
SettingsReading read_settings_text(std::string_view text,
                                   const std::string& file,
                                   const std::filesystem::path& folder,
                                   const std::vector<std::string>& overrides = {});

/// The settings, or one error whose message has a line for each thing that is wrong.
Result<Settings> read_settings(const std::filesystem::path& path,
                               const std::vector<std::string>& overrides = {});

/// The settings of a worker, which has no file: defaults, and what is set. Relative paths start in
/// the current folder. [start-up]
///
/// Errors  invalid_argument: a line for each thing that is wrong, keys that are the server's among
///         them
Result<WorkerSettings> read_worker_settings(const std::vector<std::string>& overrides);

/// One message of many errors, a line each.
Error join_errors(const std::vector<Error>& errors);

}  // namespace luna::config
