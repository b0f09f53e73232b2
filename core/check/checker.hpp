// The validator: every case of a plugin, each in a process of its own.
#pragma once

#include "core/check/case_run.hpp"
#include "core/check/child.hpp"

#include <luna/result.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace luna::check {

enum class Verdict {
  passed,
  broken,   ///< a rule is
  skipped,  ///< it says why
};

struct CaseResult {
  Case checked{};
  Verdict verdict = Verdict::passed;
  std::vector<Finding> findings;
  std::string skipped;  ///< why
  std::vector<std::pair<std::string, std::string>> figures;
  double seconds = 0.0;
  std::uint64_t seed = 0;  ///< of the last run
};

/// What came of a file.
struct CheckResult {
  std::string file;
  std::string id;  ///< empty: it has no note that can be read
  std::string name;
  std::string kinds;  ///< separated by blanks
  std::uint64_t seed = 0;
  std::vector<CaseResult> cases;

  /// broken: a rule is; skipped: no rule is, but not all could be tried; else passed.
  [[nodiscard]] Verdict verdict() const;
};

struct CheckOptions {
  CaseInput input;
  std::string only;           ///< run the cases whose names begin so; empty: all
  std::uint32_t n_seeds = 1;  ///< that the cases of group E run with, from the input's on
  std::chrono::milliseconds limit = std::chrono::seconds(45);  ///< of a case
};

/// Runs the cases of the file's kinds one by one; `on_result` is told of each as it ends. [main]
///
/// Errors  not_found: no file, or no case has that name
Result<CheckResult> check_plugin(const CheckOptions& options,
                                 const std::function<void(const CaseResult&)>& on_result);

/// Runs one case in this process, without a limit: for a debugger.
///
/// options.only  the whole name
Result<CaseResult> reproduce_case(const CheckOptions& options);

}  // namespace luna::check
