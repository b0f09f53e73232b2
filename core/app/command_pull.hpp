// `luna pull`: brings a model into the user's cache.
#pragma once

#include "core/app/text_command.hpp"

#include <string>

namespace luna::app {

struct PullOptions {
  std::string source;  ///< a known name, a file, or a URL
  std::string sha256;  ///< what the file must be; empty: not checked
  bool quiet = false;
};

/// A file is linked or copied, a URL is downloaded (and continued), into <cache>/<name>/; then the
/// checksum and the file's own structure are checked. Prints the name to use in a TOML file.
/// Returns  the exit status
int run_pull(const PullOptions& options, const CommandStreams& streams);

}  // namespace luna::app
