#include "core/check/checker.hpp"

#include "core/check/cases.hpp"
#include "core/plugin/elf_note.hpp"

#include <algorithm>
#include <system_error>

namespace luna::check {
namespace {

namespace fs = std::filesystem;

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

Verdict verdict_of(const CaseResult& result) {
  if (!result.findings.empty()) return Verdict::broken;
  return result.skipped.empty() ? Verdict::passed : Verdict::skipped;
}

CaseResult run_once(const Case& one, const CheckOptions& options, std::uint64_t seed) {
  const auto began = std::chrono::steady_clock::now();
  CaseInput input = options.input;
  input.seed = seed;
  ChildReport report = run_in_child(input, options.limit, one.run);
  if (report.end != ChildEnd::finished)
    report.findings.push_back(describe_end(report, one.rule_of_crash, options.limit));
  CaseResult result{one,
                    Verdict::passed,
                    std::move(report.findings),
                    std::move(report.skipped),
                    std::move(report.figures),
                    seconds_since(began),
                    seed};
  result.verdict = verdict_of(result);
  return result;
}

/// With one seed after the other, until one does not pass.
CaseResult run_case(const Case& one, const CheckOptions& options) {
  CaseResult result = run_once(one, options, options.input.seed);
  const std::uint32_t n_seeds = one.name[0] == 'E' ? options.n_seeds : 1;
  for (std::uint32_t n = 1; n < n_seeds && result.verdict == Verdict::passed; ++n) {
    const double seconds = result.seconds;
    result = run_once(one, options, options.input.seed + n);
    result.seconds += seconds;
  }
  return result;
}

Result<CheckOptions> with_whole_path(const CheckOptions& options) {
  CheckOptions own = options;
  std::error_code error;
  own.input.file = fs::canonical(options.input.file, error);
  if (error) return Error{Code::not_found, options.input.file.string() + ": " + error.message()};
  return own;
}

Error no_such_case(const std::string& name) {
  std::string text = "no case is called '" + name + "'; there are:";
  for (const Case& one : all_cases())
    text += "\n  " + std::string(one.name);
  return {Code::not_found, std::move(text)};
}

}  // namespace

Verdict CheckResult::verdict() const {
  const auto has = [this](Verdict verdict) {
    return std::ranges::any_of(cases,
                               [verdict](const CaseResult& c) { return c.verdict == verdict; });
  };
  if (has(Verdict::broken)) return Verdict::broken;
  return has(Verdict::skipped) ? Verdict::skipped : Verdict::passed;
}

Result<CheckResult> check_plugin(const CheckOptions& options,
                                 const std::function<void(const CaseResult&)>& on_result) {
  LUNA_TRY(const CheckOptions own, with_whole_path(options));
  CheckResult result;
  result.file = own.input.file.string();
  result.seed = own.input.seed;
  const plugin::NoteReading reading = plugin::read_note(own.input.file);
  if (reading.note) {
    result.id = reading.note->id;
    result.name = reading.note->name;
    result.kinds = reading.note->kinds;
  }
  const auto kinds =
      reading.note ? plugin::kinds_of(*reading.note) : std::vector<std::string_view>{};
  bool has_case = false;
  for (const Case& one : all_cases()) {
    if (!one.name.starts_with(own.only)) continue;
    has_case = true;
    if (!one.kind.empty() && std::ranges::count(kinds, one.kind) == 0) continue;
    // What the host refuses it never loads: all that follows would say the same.
    if (reading.refusal && one.name[0] != 'A') continue;
    result.cases.push_back(run_case(one, own));
    on_result(result.cases.back());
  }
  if (!has_case) return no_such_case(own.only);
  return result;
}

Result<CaseResult> reproduce_case(const CheckOptions& options) {
  LUNA_TRY(const CheckOptions own, with_whole_path(options));
  const std::vector<Case> all = all_cases();
  const auto found = std::ranges::find(all, own.only, &Case::name);
  if (found == all.end()) return no_such_case(own.only);
  CaseResult result;
  result.checked = *found;
  result.seed = own.input.seed;
  CaseRun run(own.input, [&](CaseRun::Word word, std::string_view first, std::string_view second) {
    switch (word) {
      case CaseRun::Word::phase:
        break;
      case CaseRun::Word::finding:
        result.findings.push_back({std::string(first), std::string(second)});
        break;
      case CaseRun::Word::skip:
        result.skipped = first;
        break;
      case CaseRun::Word::figure:
        result.figures.emplace_back(first, second);
        break;
    }
  });
  const auto began = std::chrono::steady_clock::now();
  found->run(run);
  result.seconds = seconds_since(began);
  result.verdict = verdict_of(result);
  return result;
}

}  // namespace luna::check
