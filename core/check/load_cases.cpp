// Group B: the library is loaded and asked what it is.
#include "core/check/cases.hpp"
#include "core/check/process_state.hpp"
#include "core/check/subject.hpp"

#include <sys/stat.h>

#include <array>
#include <ctime>
#include <dlfcn.h>
#include <set>
#include <string>
#include <unistd.h>

namespace luna::check {
namespace {

constexpr double kLoadMsMax = 100.0;
constexpr const char* kUnknownId = "luna.nobody.knows.this/1";

double cpu_ms() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

/// Bytes that this process has written to its standard output and error, which are one file.
off_t n_written() {
  struct stat status {};
  return ::fstat(STDERR_FILENO, &status) == 0 ? status.st_size : 0;
}

void check_loading(CaseRun& run) {
  const ProcessState before = ProcessState::now();
  const std::size_t n_descriptors = count_descriptors();
  const off_t written = n_written();
  const double began_ms = cpu_ms();
  const auto subject = Subject::load(run);
  const double ms = cpu_ms() - began_ms;
  if (subject == nullptr) return;
  run.figure("load_cpu_ms", std::to_string(ms));
  if (ms > kLoadMsMax)
    run.fail("U1",
             "loading takes " + std::to_string(ms) + " ms of processor time, " +
                 std::to_string(kLoadMsMax) + " are allowed");
  if (const std::string what = before.difference(ProcessState::now()); !what.empty())
    run.fail("T1", "loading changes " + what);
  if (count_threads() != 1)
    run.fail("U1", "loading starts " + std::to_string(count_threads() - 1) + " threads");
  if (count_descriptors() != n_descriptors)
    run.fail("U1",
             "loading leaves " + std::to_string(count_descriptors() - n_descriptors) +
                 " descriptors open");
  if (n_written() != written) run.fail("U1", "loading writes to standard output or error");
}

void check_query(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  run.phase("query");
  using Query = const luna_plugin*(std::uint32_t, std::uint32_t);
  void* const handle = ::dlopen(run.input().file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  auto* const query = reinterpret_cast<Query*>(::dlsym(handle, "luna_plugin_query"));
  if (query == nullptr) return run.fail("B2", "luna_plugin_query is not found");
  const luna_plugin* const first = &subject->library().descriptor();
  if (query(LUNA_ABI_MAJOR, LUNA_ABI_MINOR) != first)
    run.fail("V4", "asked twice, luna_plugin_query answers two pointers");
  if (query(LUNA_ABI_MAJOR, LUNA_ABI_MINOR + 1) == nullptr)
    run.fail("V2", "a host of a newer minor version is refused");
  if (query(LUNA_ABI_MAJOR + 1, 0) != nullptr)
    run.fail("V8",
             "a host of major version " + std::to_string(LUNA_ABI_MAJOR + 1) + " is accepted");
  if (first->table(kUnknownId) != nullptr)
    run.fail("V5", std::string("table(\"") + kUnknownId + "\") is not NULL");
  for (const std::string& kind : subject->kinds()) {
    if (first->table(kind.c_str()) != first->table(kind.c_str()))
      run.fail("V4", "asked twice, table(\"" + kind + "\") answers two pointers");
    // A copy with one character more must not pass for it.
    if (first->table((kind + "0").c_str()) != nullptr)
      run.fail("V5", "table(\"" + kind + "0\") is not NULL");
  }
}

bool is_snake_case(std::string_view key) {
  if (key.empty() || key.front() == '_' || (key.front() >= '0' && key.front() <= '9')) return false;
  for (const char c : key)
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
  return true;
}

void check_param(CaseRun& run, const luna_param& param) {
  const std::string key = param.key;
  if (!is_snake_case(key)) run.fail("V9", "the key '" + key + "' is not snake_case");
  if (param.help == nullptr || *param.help == '\0')
    run.fail("V9", "the setting '" + key + "' has no help");
  if (param.type > LUNA_TYPE_STRING_MAP)
    run.fail("V9", "the setting '" + key + "' has type " + std::to_string(param.type));
  for (const char* const bound : {param.min, param.max})
    if (bound != nullptr && !plugin::parse_setting(param, bound))
      run.fail("V9", "a bound of '" + key + "' is '" + bound + "'");
}

void check_declared_settings(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  for (const std::string& kind : subject->kinds()) {
    const luna_if& head = subject->head(kind);
    const auto params = plugin::params_of(head);
    if (params.size() != head.n_params)
      run.fail("V9",
               std::to_string(head.n_params) + " settings are announced, " +
                   std::to_string(params.size()) + " can be read");
    std::set<std::string> keys;
    for (const luna_param* param : params) {
      check_param(run, *param);
      if (!keys.insert(param->key).second)
        run.fail("V9", "the key '" + std::string(param->key) + "' is declared twice");
    }
    // Defaults against their own bounds: the host's check.
    const plugin::CheckedRows checked = plugin::check_rows(head, {"", kind, {1, 1}, {}, {}});
    for (const Error& error : checked.errors)
      if (error.code() == Code::corrupt) run.fail("V9", error.message());
  }
}

constexpr auto kCases = std::to_array<Case>({
    {"B.load", "", "U3", check_loading},
    {"B.query", "", "U3", check_query},
    {"B.settings", "", "U3", check_declared_settings},
});

}  // namespace

std::span<const Case> load_cases() {
  return kCases;
}

}  // namespace luna::check
