// SIGINT and SIGTERM as something the main thread can wait for.
#pragma once

#include <chrono>
#include <optional>

namespace luna::app {

/// Installed once by main. The first signal asks to stop; a second one ends the process at once.
/// Process-wide by nature: a signal knows no object.
class StopSignal {
 public:
  /// [main] before any thread starts, so that no other thread is interrupted.
  static void install();
  [[nodiscard]] static bool is_set();
  /// Returns when the signal came, or after `timeout`. [main]
  static bool wait(std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  /// Returns true when `fd` can be read, false when the signal came first. [main]
  static bool wait_readable(int fd);
};

}  // namespace luna::app
