// What the validator says: for people, for programs, for continuous integration.
#pragma once

#include "core/check/checker.hpp"

#include <iosfwd>
#include <string>
#include <string_view>

namespace luna::check {

/// "passed", "broken", "skipped".
std::string_view verdict_name(Verdict verdict);

/// One case in a line, and below it each finding with its rule and what to do.
///
/// program  how the case is run again: "luna plugins check"
void print_case(const CaseResult& result,
                const CheckOptions& options,
                std::string_view program,
                std::ostream& out);

/// The last line.
void print_summary(const CheckResult& result, std::ostream& out);

/// A JSON object: file, id, name, kinds, seed, verdict, cases.
std::string to_json(const CheckResult& result);

/// A JUnit test suite.
std::string to_junit(const CheckResult& result);

}  // namespace luna::check
