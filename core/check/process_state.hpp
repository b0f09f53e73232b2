// What a plugin has to leave as it found it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace luna::check {

/// The state of this process that is everybody's. A value.
struct ProcessState {
  static ProcessState now();

  /// What is different in `other`; empty: nothing.
  [[nodiscard]] std::string difference(const ProcessState& other) const;

  std::vector<std::string> environment;  ///< sorted
  std::vector<std::size_t> signals;      ///< handler by number
  std::string locale;
  std::string folder;
  int rounding = 0;
  unsigned control = 0;  ///< of SSE: exceptions, rounding, denormals
  unsigned mask = 0;     ///< of files made
};

/// Open descriptors of this process.
std::size_t count_descriptors();
/// Threads of this process.
std::size_t count_threads();

}  // namespace luna::check
