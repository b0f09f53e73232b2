// `luna plugins new KIND NAME`: a plugin outside the tree, from the templates of the sdk.
#pragma once

#include "core/app/text_command.hpp"

#include <filesystem>
#include <string>

namespace luna::app {

struct NewPluginOptions {
  std::string kind;                 ///< "scheduler", "role", "quant", "transport", "backend"
  std::string name;                 ///< short name, snake_case
  std::string id;                   ///< reverse DNS; empty: org.example.KIND.NAME
  std::filesystem::path folder;     ///< empty: NAME, in the current folder
  std::filesystem::path templates;  ///< empty: those that are installed with the program
};

/// Writes source, build file, test, README and a script for continuous integration, and says what
/// comes next. Nothing is written over: the folder must be new or empty.
/// Returns  the exit status: 1 for a wrong name or kind, a folder that has files, no templates
int run_plugins_new(const NewPluginOptions& options, const CommandStreams& streams);

}  // namespace luna::app
