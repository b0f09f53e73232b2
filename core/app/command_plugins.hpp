// `luna plugins list | info NAME | why NAME-or-FILE`, and `luna plugin FILE`.
#pragma once

#include "core/app/text_command.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace luna::app {

struct PluginsOptions {
  std::vector<std::filesystem::path> plugin_folders;  ///< searched first
  bool json = false;
};

/// Every candidate file: kind, name, id, file; or the reason why it is refused. Reads notes only.
/// Returns  the exit status: 0
int run_plugins_list(const PluginsOptions& options, const CommandStreams& streams);

/// What plugins of that short name or id are, and the settings they take. Loads and queries them.
/// Returns  the exit status: 1 if there is none or one cannot be loaded
int run_plugins_info(const std::string& name,
                     const PluginsOptions& options,
                     const CommandStreams& streams);

/// Whether a name (or a file: with '/' or ending in .so) can be used, and why or why not, with
/// every candidate. Loads and queries.
/// Returns  the exit status: 0 if it can
int run_plugins_why(const std::string& name_or_file,
                    const PluginsOptions& options,
                    const CommandStreams& streams);

}  // namespace luna::app
