// A process of its own round a plugin's code: whatever that does, the validator tells of it.
#pragma once

#include "core/check/case_run.hpp"

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace luna::check {

/// How a child ended.
enum class ChildEnd {
  finished,   ///< it said all that it had to say
  timed_out,  ///< and was killed
  signalled,
  terminated,  ///< by std::terminate: something was thrown where nothing could catch it
  exited,      ///< somebody called exit()
};

/// What a child said, and how it ended.
struct ChildReport {
  std::vector<Finding> findings;
  std::string skipped;  ///< why; empty: it was not
  std::vector<std::pair<std::string, std::string>> figures;
  ChildEnd end = ChildEnd::finished;
  int number = 0;      ///< of the signal or the exit status
  std::string phase;   ///< the last one
  std::string thrown;  ///< of a child that was terminated
  std::string output;  ///< end of what it wrote to standard output and error

  [[nodiscard]] bool is_fine() const { return end == ChildEnd::finished && findings.empty(); }
};

/// Runs `body` in a child process and waits for its end, or kills it with all that it started.
/// The caller has one thread. May be called in a child.
ChildReport run_in_child(const CaseInput& input,
                         std::chrono::milliseconds limit,
                         const std::function<void(CaseRun&)>& body);

/// The end of a child that did not finish, as a finding. A crash breaks `rule_of_crash`.
Finding describe_end(const ChildReport& report,
                     std::string_view rule_of_crash,
                     std::chrono::milliseconds limit);

}  // namespace luna::check
