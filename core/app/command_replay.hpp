// `luna replay FILE`: asks the policy for recorded plans again, and proves them equal.
#pragma once

#include "core/app/text_command.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace luna::app {

struct ReplayOptions {
  std::filesystem::path file;         ///< what `luna serve --record-plans` wrote
  std::optional<std::string> policy;  ///< another than the recorded one
  std::vector<std::filesystem::path> plugin_folders;
  bool json = false;
};

/// Starts the policy with the recorded settings, another one with its defaults, shows it every
/// recorded snapshot and compares what it answers. The hash chain is checked on the way. Prints the
/// first difference.
/// Returns  the exit status: 0 if all plans are equal
int run_replay(const ReplayOptions& options, const CommandStreams& streams);

}  // namespace luna::app
