// Where a command's settings come from: a file, the shipped one, or a model alone.
#pragma once

#include "core/base/log.hpp"
#include "core/config/settings.hpp"

#include <luna/result.hpp>

#include <filesystem>
#include <string>

namespace luna::app {

/// As the log takes it.
spdlog::level::level_enum to_spdlog(config::LogLevel level);

/// The configuration that `serve` uses when none is named: configs/luna.toml of the source tree or
/// of the installation that the program lies in.
/// Errors  not_found, with the places looked at
Result<std::filesystem::path> default_config();

/// What a command that runs a model by itself goes by: the named configuration; where none is, the
/// shipped configs/terminal.toml with `model` in place of its own.
///
/// config  empty: none
/// model   a path, relative to the current folder, or a known name; empty: the first known one
/// Errors  not_found (the shipped file), those of the reader
Result<config::Settings> settings_for_run(const std::filesystem::path& config,
                                          const std::string& model);

}  // namespace luna::app
