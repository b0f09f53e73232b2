#include "core/check/check_command.hpp"

#include "core/base/mapped_file.hpp"
#include "core/base/output_file.hpp"
#include "core/check/report.hpp"
#include "core/plugin/check_record.hpp"

#include <luna/plugin.h>

#include <CLI/CLI.hpp>

#include <charconv>
#include <fstream>
#include <ostream>
#include <span>

namespace luna::check {
namespace {

constexpr int kFine = 0;
constexpr int kFailed = 1;

Result<void> split_settings(const std::vector<std::string>& texts, CaseInput& input) {
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      return Error{Code::invalid_argument, "--set " + text + ": must be KEY=VALUE"};
    input.settings.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return {};
}

Result<void> split_reproduce(const std::string& text, CheckOptions& options) {
  const std::size_t at = text.rfind('@');
  const std::string_view seed = std::string_view(text).substr(at == std::string::npos ? 0 : at + 1);
  const auto [end, error] =
      std::from_chars(seed.data(), seed.data() + seed.size(), options.input.seed);
  if (at == std::string::npos || at == 0 || error != std::errc{} ||
      end != seed.data() + seed.size())
    return Error{Code::invalid_argument, "--reproduce " + text + ": must be CASE@SEED"};
  options.only = text.substr(0, at);
  return {};
}

Result<CheckOptions> options_of(const CheckCommand& command) {
  CheckOptions options = command.options;
  options.limit = std::chrono::milliseconds(static_cast<std::int64_t>(command.limit_s * 1e3));
  LUNA_TRY(split_settings(command.settings, options.input));
  if (!command.reproduce.empty()) LUNA_TRY(split_reproduce(command.reproduce, options));
  return options;
}

Result<void> write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return Error{Code::io, path + ": cannot be written"};
  return {};
}

Result<std::string> sha256_of(const std::filesystem::path& file) {
  LUNA_TRY(const MappedFile mapped, MappedFile::open(file));
  return plugin::sha256_text(mapped.bytes());
}

/// What came of the check, whatever it was: a record of an earlier one must not stay.
///
/// sha256  of the file, taken before the first case
Result<void> write_record(const CheckResult& result,
                          const CheckOptions& options,
                          const std::string& sha256) {
  const std::filesystem::path path = plugin::record_path(result.file);
  LUNA_TRY(const std::string after, sha256_of(result.file));
  if (after != sha256)
    return Error{Code::io,
                 result.file + ": has changed while it was checked; no record is written"};
  plugin::CheckRecord record;
  record.sha256 = sha256;
  record.id = result.id;
  record.checker = plugin::program_version();
  record.abi_major = LUNA_ABI_MAJOR;
  record.abi_minor = LUNA_ABI_MINOR;
  record.verdict = verdict_name(result.verdict());
  record.n_cases = result.cases.size();
  record.seed = result.seed;
  record.n_seeds = options.n_seeds;
  const std::string text = plugin::print_record(record);
  LUNA_TRY(OutputFile file, OutputFile::create(path));
  LUNA_TRY(file.append(std::as_bytes(std::span(text))));
  LUNA_TRY(file.close());
  return file.commit();
}

/// Part of a check is no check.
Result<void> check_record_use(const CheckCommand& command) {
  if (!command.writes_record) return {};
  if (command.options.only.empty() && command.reproduce.empty()) return {};
  return Error{Code::invalid_argument, "--record: is of all cases; without --only and --reproduce"};
}

int fail(std::ostream& err, const Error& error) {
  err << "luna: " << error.message() << "\n";
  return kFailed;
}

}  // namespace

void add_check_options(CLI::App& app, CheckCommand& command) {
  app.add_option("file", command.options.input.file, "the plugin, a shared library")->required();
  app.add_option("--seed", command.options.input.seed, "of everything that is drawn")
      ->capture_default_str();
  app.add_option("--seeds",
                 command.options.n_seeds,
                 "seeds that the cases of a kind run with, from --seed on")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--set", command.settings, "a setting of the plugin, KEY=VALUE; may be repeated");
  app.add_option("--only", command.options.only, "the cases whose names begin so");
  app.add_option("--limit", command.limit_s, "seconds that a case may take")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_flag("--large",
               command.options.input.is_large,
               "messages of 1 GiB too, which take 3 GiB of memory");
  app.add_option("--json", command.json_file, "write the report as JSON; -: to standard output");
  app.add_option("--junit", command.junit_file, "write the report for continuous integration");
  app.add_flag("--record",
               command.writes_record,
               "write beside the plugin what came of it (NAME.lunacheck), for "
               "plugins.require_checked");
  app.add_option("--reproduce",
                 command.reproduce,
                 "CASE@SEED: run one case in this process without a limit, for a debugger");
}

int run_check(const CheckCommand& command,
              std::string_view program,
              std::ostream& out,
              std::ostream& err) {
  const auto options = options_of(command);
  if (!options) return fail(err, options.error());
  if (const auto may = check_record_use(command); !may) return fail(err, may.error());
  if (!command.reproduce.empty()) {
    const auto one = reproduce_case(*options);
    if (!one) return fail(err, one.error());
    print_case(*one, *options, program, out);
    return one->verdict == Verdict::passed ? kFine : kFailed;
  }
  Result<std::string> sha256(std::string{});
  if (command.writes_record) sha256 = sha256_of(options->input.file);
  if (!sha256) return fail(err, sha256.error());
  const bool prints = command.json_file != "-";
  const auto result = check_plugin(*options, [&](const CaseResult& one) {
    if (prints) print_case(one, *options, program, out);
  });
  if (!result) return fail(err, result.error());
  if (prints) print_summary(*result, out);
  if (!prints) out << to_json(*result);
  if (prints && !command.json_file.empty())
    if (const auto written = write_file(command.json_file, to_json(*result)); !written)
      return fail(err, written.error());
  if (!command.junit_file.empty())
    if (const auto written = write_file(command.junit_file, to_junit(*result)); !written)
      return fail(err, written.error());
  if (command.writes_record) {
    if (const auto written = write_record(*result, *options, *sha256); !written)
      return fail(err, written.error());
    if (prints) out << "record: " << plugin::record_path(result->file).string() << "\n";
  }
  return result->verdict() == Verdict::passed ? kFine : kFailed;
}

}  // namespace luna::check
