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

/// One CPU device with every thread, the model, and a generate stage. For `generate` and `chat`.
///
/// model   a path or a known name
Result<config::Settings> settings_for_model(const std::string& model);

}  // namespace luna::app
