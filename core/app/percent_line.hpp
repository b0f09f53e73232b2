// How far long work is, on a terminal.
#pragma once

#include <iosfwd>
#include <string>

namespace luna::app {

/// One line of standard error that is written over and over: "hashing 42 %". Shows nothing where
/// standard error is no terminal. One thread at a time.
class PercentLine {
 public:
  PercentLine(std::ostream& err, std::string label);
  PercentLine(const PercentLine&) = delete;
  PercentLine& operator=(const PercentLine&) = delete;
  /// Ends the line.
  ~PercentLine();

  /// share  0..1
  void show(double share);

 private:
  std::ostream& err_;
  const std::string label_;
  const bool shows_;
  int percent_shown_ = -1;
};

}  // namespace luna::app
