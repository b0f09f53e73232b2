// A plugin's start-up code may hang, throw, crash or end the process. Whatever it does, the
// operator reads which plugin it was, in which phase, and what the candidates were.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace luna::plugin {

enum class Phase { load, query, init, create };

/// Runs one call into a plugin under guard. [start-up]; one at a time in the process, others wait.
///
/// When the call hangs beyond the limit, throws where nothing can catch it (a static constructor),
/// raises a fatal signal or calls exit(), the guard prints the report to standard error and ends
/// the process with status 1. It restores what it changed: terminate handler, signal actions,
/// alternate stack.
class StartupGuard {
 public:
  /// plugin      file of the plugin
  /// candidates  lines that say what else could have been used
  /// limit       zero: no guard, whoever calls stands in a process that may end
  struct Options {
    std::string plugin;
    Phase phase = Phase::load;
    std::string candidates;
    std::chrono::milliseconds limit = std::chrono::seconds(10);
  };

  static void run(const Options& options, const std::function<void()>& call);
};

std::string_view phase_name(Phase phase);

}  // namespace luna::plugin
