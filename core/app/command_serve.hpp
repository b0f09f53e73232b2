// `luna serve`: the server.
#pragma once

#include "core/app/text_command.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace luna::app {

struct ServeOptions {
  std::filesystem::path config;                       ///< empty: default_config()
  std::optional<std::string> host;                    ///< instead of the file's
  std::optional<std::uint16_t> port;                  ///< instead of the file's
  std::optional<std::filesystem::path> record_plans;  ///< instead of the file's
  std::vector<std::filesystem::path> plugin_folders;
  std::vector<std::string> overrides;  ///< of --set
};

/// Serves until SIGINT or SIGTERM, then drains. Prints `ready on http://HOST:PORT` once a real
/// token was made.
/// Returns  the exit status: 0 after a drain
int run_serve(const ServeOptions& options, const CommandStreams& streams);

}  // namespace luna::app
