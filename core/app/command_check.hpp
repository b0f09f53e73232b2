// `luna check FILE`: is a configuration right, without starting anything?
#pragma once

#include "core/app/text_command.hpp"
#include "core/config/settings.hpp"

#include <luna/result.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace luna::app {

/// Models that are named instead of given by a path.
struct NamedModels {
  std::vector<std::string> known;                        ///< that `luna pull` can bring
  std::function<bool(const std::string& name)> is_here;  ///< whether it lies in the cache
};

struct CheckOptions {
  std::filesystem::path config;
  std::vector<std::filesystem::path> plugin_folders;  ///< searched first
  NamedModels models;
  bool json = false;
  std::vector<std::string> overrides;  ///< of --set
  /// Says what models with layout = "auto" would get, a sentence each; empty: nobody asks.
  std::function<Result<std::vector<std::string>>(
      const config::Settings&, const std::vector<std::filesystem::path>& plugin_folders)>
      explain_layouts;
};

/// Parses the file, checks types, ranges, unknown keys and references, looks for the models'
/// files, loads and queries the plugins that are named, prints which of them serves which place,
/// and checks their settings; creates none, unless a model has layout = "auto": then its devices
/// are opened and timed to say what it gets. A model that is known but not pulled is a warning.
/// Messages go to standard error. Returns  the exit status: 0 if there is no error
int run_check(const CheckOptions& options, const CommandStreams& streams);

/// Every key that core knows, with what it takes, its default and its meaning. The keys of a plugin
/// are told by `luna plugins info NAME`.
/// Returns  the exit status: 0
int run_check_keys(const CommandStreams& streams);

}  // namespace luna::app
