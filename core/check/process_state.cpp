#include "core/check/process_state.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cfenv>
#include <clocale>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace luna::check {
namespace {

// The flags of exceptions that were raised: every computation sets some.
constexpr unsigned kRaised = 0x3F;

std::size_t count_entries(const char* folder) {
  std::error_code error;
  std::size_t n = 0;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error))
    ++n;
  return n;
}

/// What stands in one list only, joined.
std::string only_in_one(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::string> different;
  std::ranges::set_symmetric_difference(a, b, std::back_inserter(different));
  std::string text;
  for (const std::string& entry : different)
    text += (text.empty() ? "" : ", ") + entry.substr(0, entry.find('='));
  return text;
}

}  // namespace

ProcessState ProcessState::now() {
  ProcessState state;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    state.environment.emplace_back(*entry);
  std::ranges::sort(state.environment);
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    state.signals.push_back(reinterpret_cast<std::size_t>(action.sa_handler));
  }
  state.locale = std::setlocale(LC_ALL, nullptr);
  std::error_code error;
  state.folder = std::filesystem::current_path(error).string();
  state.rounding = std::fegetround();
#if defined(__x86_64__)
  state.control = _mm_getcsr() & ~kRaised;
#endif
  const mode_t mask = ::umask(0);
  ::umask(mask);
  state.mask = mask;
  return state;
}

std::string ProcessState::difference(const ProcessState& other) const {
  std::string text;
  const auto add = [&text](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  if (environment != other.environment)
    add("the environment (" + only_in_one(environment, other.environment) + ")");
  for (std::size_t i = 0; i < signals.size() && i < other.signals.size(); ++i)
    if (signals[i] != other.signals[i]) add("the action of signal " + std::to_string(i + 1));
  if (locale != other.locale) add("the locale (" + other.locale + ")");
  if (folder != other.folder) add("the current folder (" + other.folder + ")");
  if (rounding != other.rounding || control != other.control) add("the floating-point mode");
  if (mask != other.mask) add("the mask of files");
  return text;
}

std::size_t count_descriptors() {
  return count_entries("/proc/self/fd");
}

std::size_t count_threads() {
  return count_entries("/proc/self/task");
}

}  // namespace luna::check
