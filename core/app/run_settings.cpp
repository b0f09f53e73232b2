#include "core/app/run_settings.hpp"

#include "core/app/known_models.hpp"
#include "core/config/settings_reader.hpp"
#include "core/model/weight_file.hpp"

#include <array>
#include <system_error>

namespace luna::app {
namespace {

std::filesystem::path program_folder() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
}

/// A file of the source tree's or the installation's configs folder.
Result<std::filesystem::path> shipped_config(const std::string& name) {
  const auto program = program_folder();
  const std::array<std::filesystem::path, 2> places = {
      program / "../share/luna/configs" / name,  // an installation: PREFIX/bin
      program / "../../../configs" / name,       // a source tree: build/<preset>/bin
  };
  std::error_code ignored;
  for (const auto& place : places)
    if (std::filesystem::exists(place, ignored))
      return std::filesystem::weakly_canonical(place, ignored);
  return Error{Code::not_found,
               "no --config given, and neither " + places[0].lexically_normal().string() + " nor " +
                   places[1].lexically_normal().string() + " is there"};
}

Result<config::Settings> settings_for_model(const std::string& model) {
  LUNA_TRY(const std::filesystem::path file, shipped_config("terminal.toml"));
  LUNA_TRY(config::Settings settings, config::read_settings(file));
  config::ModelSettings& served = settings.models.front();
  served.source = model;
  served.path.reset();
  std::error_code ignored;
  if (model::is_model_folder(model) || is_model_path(model))
    served.path = std::filesystem::absolute(model, ignored);
  return settings;
}

}  // namespace

spdlog::level::level_enum to_spdlog(config::LogLevel level) {
  switch (level) {
    case config::LogLevel::trace:
      return spdlog::level::trace;
    case config::LogLevel::debug:
      return spdlog::level::debug;
    case config::LogLevel::info:
      return spdlog::level::info;
    case config::LogLevel::warn:
      return spdlog::level::warn;
    case config::LogLevel::error:
      return spdlog::level::err;
    case config::LogLevel::off:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

Result<std::filesystem::path> default_config() {
  return shipped_config("luna.toml");
}

Result<config::Settings> settings_for_run(const std::filesystem::path& config,
                                          const std::string& model) {
  if (!config.empty()) return config::read_settings(config);
  return settings_for_model(model.empty() ? std::string(known_models().front().name) : model);
}

}  // namespace luna::app
