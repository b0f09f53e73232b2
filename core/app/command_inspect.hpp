// `luna inspect`: what a model file holds, and whether it is whole and right.
#pragma once

#include "core/app/text_command.hpp"

#include <filesystem>

namespace luna::app {

struct InspectOptions {
  std::filesystem::path path;  ///< GGUF or safetensors, or a folder of shards
  bool json = false;           ///< one JSON object instead of text
};

/// Prints header, keys (long arrays cut short), tensors, totals and, for GGUF, the model. Reads no
/// weights. A folder of shards is shown as the model it holds, after a table of its shards. A file
/// that is broken or of a kind that Luna does not run is a failure, after what could be read of it.
/// Returns  the exit status
int run_inspect(const InspectOptions& options, const CommandStreams& streams);

}  // namespace luna::app
