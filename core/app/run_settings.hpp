// Where a command's settings come from: a file, the shipped one, or a model alone.
#pragma once

#include "core/config/settings.hpp"

#include <luna/result.hpp>

#include <filesystem>
#include <string>

namespace luna::app {

/// The configuration that `serve` uses when none is named: configs/luna.toml of the source tree or
/// of the installation that the program lies in.
/// Errors  not_found, with the places looked at
Result<std::filesystem::path> default_config();

/// The shipped configs/terminal.toml with `model` in place of its own. For `generate` and `chat`.
///
/// model   a path, relative to the current folder, or a known name
/// Errors  not_found (the shipped file), those of the reader
Result<config::Settings> settings_for_model(const std::string& model);

}  // namespace luna::app
