// `luna plugins check FILE` and the program luna-check: one command line for both.
#pragma once

#include "core/check/checker.hpp"

#include <CLI/App.hpp>

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace luna::check {

/// What the command line says.
struct CheckCommand {
  CheckOptions options;
  std::vector<std::string> settings;  ///< KEY=VALUE
  std::string json_file;              ///< "-": standard output, in place of the report
  std::string junit_file;
  std::string reproduce;  ///< CASE@SEED
  double limit_s = 45.0;
  bool writes_record = false;  ///< beside the plugin, for plugins.require_checked
};

/// The options, and the file.
void add_check_options(CLI::App& app, CheckCommand& command);

/// program  how it was called, for messages
/// Returns  the exit status: 0 when every case passed; 1 when a rule is broken, a case could not be
///          tried, or there is no such file
int run_check(const CheckCommand& command,
              std::string_view program,
              std::ostream& out,
              std::ostream& err);

}  // namespace luna::check
