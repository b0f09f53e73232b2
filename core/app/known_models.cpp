#include "core/app/known_models.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace luna::app {
namespace {

constexpr KnownModel kKnownModels[] = {
#include "known_models.inc"  // made from cmake/models.txt
};

/// The only model file of a folder.
Result<std::filesystem::path> only_file(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (entry.path().extension() == ".gguf") found.push_back(entry.path());
  if (found.size() == 1) return found.front();
  return Error{
      Code::not_found,
      folder.string() + ": " + std::to_string(found.size()) + " model files where one is expected"};
}

}  // namespace

std::span<const KnownModel> known_models() {
  return kKnownModels;
}

std::filesystem::path model_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::filesystem::path(cache) / "luna" / "models";
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : ".") / ".cache" / "luna" / "models";
}

std::filesystem::path speed_cache() {
  return model_cache().parent_path() / "speeds";
}

std::string pull_command(std::string_view name) {
  return "luna pull " + std::string(name);
}

Result<std::filesystem::path> find_model(std::string_view name) {
  // A name is one folder of the cache: nothing in it may lead elsewhere.
  const bool plain = !name.empty() && name.front() != '.' &&
                     name.find_first_of("/\\") == std::string_view::npos &&
                     name.find('\0') == std::string_view::npos;
  std::error_code ignored;
  const auto known = std::find_if(std::begin(kKnownModels),
                                  std::end(kKnownModels),
                                  [&](const KnownModel& m) { return m.name == name; });
  if (known != std::end(kKnownModels)) {
    const auto path = model_cache() / name / known->file;
    if (std::filesystem::exists(path, ignored)) return path;
    return Error{Code::not_found,
                 "the model '" + std::string(name) +
                     "' is not here yet; fetch it with: " + pull_command(name)};
  }
  if (plain && std::filesystem::is_directory(model_cache() / name, ignored))
    return only_file(model_cache() / name);
  std::string names;
  for (const KnownModel& model : kKnownModels)
    names += (names.empty() ? "" : ", ") + std::string(model.name);
  return Error{Code::not_found,
               "no model of the name '" + std::string(name.substr(0, 100)) + "': known are " +
                   names + "; a file is named by its path, with a '/' or ending in .gguf"};
}

bool is_model_path(std::string_view name_or_path) {
  return name_or_path.find('/') != std::string_view::npos || name_or_path.ends_with(".gguf");
}

Result<std::filesystem::path> resolve_model(std::string_view name_or_path) {
  if (is_model_path(name_or_path)) return std::filesystem::path(name_or_path);
  return find_model(name_or_path);
}

}  // namespace luna::app
