#include "core/check/child.hpp"

#include "core/base/assert.hpp"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <unistd.h>

namespace luna::check {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kOutputBytesMax = 2000;  // of a child's own lines: their end says most
constexpr int kStatusDone = 0;

// Beside CaseRun::Word.
constexpr char kWordThrown = 'T';
constexpr char kWordDone = 'D';

/// A record: word, two lengths, two texts.
struct RecordHead {
  char word;
  std::uint32_t first_bytes;
  std::uint32_t second_bytes;
};

// The terminate handler takes no argument.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
int g_records = -1;

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

void send(int fd, char word, std::string_view first, std::string_view second) {
  RecordHead head{};
  head.word = word;
  head.first_bytes = static_cast<std::uint32_t>(first.size());
  head.second_bytes = static_cast<std::uint32_t>(second.size());
  std::string record(sizeof(head), '\0');
  std::memcpy(record.data(), &head, sizeof(head));
  record.append(first).append(second);
  // The parent has gone: so does the child.
  if (!write_all(fd, record)) ::_exit(1);
}

[[noreturn]] void on_terminate() {
  std::string what = "std::terminate was called";
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
      what = e.what();
    } catch (...) {
      what = "an exception that is not a std::exception";
    }
  }
  send(g_records, kWordThrown, what, {});
  ::_exit(1);
}

[[noreturn]] void live_as_child(int records,
                                int output,
                                const CaseInput& input,
                                const std::function<void(CaseRun&)>& body) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  // A sanitizer's handlers too: the parent reads how the process ended.
  for (const int number :
       {SIGINT, SIGTERM, SIGPIPE, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS})
    std::signal(number, SIG_DFL);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  g_records = records;
  std::set_terminate(on_terminate);
  CaseRun run(input,
              [records](CaseRun::Word word, std::string_view first, std::string_view second) {
                send(records, static_cast<char>(word), first, second);
              });
  // What leaves `body` is the validator's own: the plugin's calls are fenced where they are made.
  body(run);
  send(records, kWordDone, {}, {});
  // Exit handlers and destructors of the plugin are not what was asked for.
  ::_exit(kStatusDone);
}

/// Without what a terminal or a reader of JSON stumbles over: a plugin may say anything.
std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n') ||
        static_cast<unsigned char>(c) >= 0x7F)
      c = '?';
  return out;
}

/// Bytes of records as they come, in any pieces.
class Records {
 public:
  explicit Records(ChildReport& report) : report_(report) {}

  void add(std::string_view bytes) {
    pending_.append(bytes);
    while (take_one()) {}
  }
  [[nodiscard]] bool is_done() const { return is_done_; }
  [[nodiscard]] bool has_thrown() const { return has_thrown_; }

 private:
  bool take_one() {
    RecordHead head{};
    if (pending_.size() < sizeof(head)) return false;
    std::memcpy(&head, pending_.data(), sizeof(head));
    const std::size_t size = sizeof(head) + head.first_bytes + head.second_bytes;
    if (pending_.size() < size) return false;
    const std::string first = printable(pending_.substr(sizeof(head), head.first_bytes));
    const std::string second =
        printable(pending_.substr(sizeof(head) + head.first_bytes, head.second_bytes));
    pending_.erase(0, size);
    switch (head.word) {
      case static_cast<char>(CaseRun::Word::phase):
        report_.phase = first;
        break;
      case static_cast<char>(CaseRun::Word::finding):
        report_.findings.push_back({first, second});
        break;
      case static_cast<char>(CaseRun::Word::skip):
        report_.skipped = first;
        break;
      case static_cast<char>(CaseRun::Word::figure):
        report_.figures.emplace_back(first, second);
        break;
      case kWordThrown:
        report_.thrown = first;
        has_thrown_ = true;
        break;
      default:
        is_done_ = true;
    }
    return true;
  }

  ChildReport& report_;
  std::string pending_;
  bool is_done_ = false;
  bool has_thrown_ = false;
};

/// Reads until the child has closed its end or the time is up. False: it was.
bool read_until(int fd, steady_clock::time_point deadline, Records& records) {
  std::array<char, 4096> bytes;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd asked{fd, POLLIN, 0};
    const int ready = ::poll(&asked, 1, static_cast<int>(std::min<long>(left, 1000)));
    if (ready < 0 && errno != EINTR) return true;
    if (ready <= 0) continue;
    const ssize_t n = ::read(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return true;
    records.add({bytes.data(), static_cast<std::size_t>(n)});
    // What the plugin started may hold the pipe open after the child has ended.
    if (records.is_done() || records.has_thrown()) return true;
  }
}

/// Waits for the end of a child that has closed its pipe; one that lives on until the time is up
/// is killed.
std::optional<int> wait_until(pid_t child, steady_clock::time_point deadline) {
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    if (ended < 0 && errno != EINTR) return std::nullopt;
    if (steady_clock::now() >= deadline) return std::nullopt;
    ::poll(nullptr, 0, 1);
  }
}

std::string end_of_output(int fd) {
  const off_t size = ::lseek(fd, 0, SEEK_END);
  if (size <= 0) return {};
  const auto n = std::min(static_cast<std::size_t>(size), kOutputBytesMax);
  std::string text(n, '\0');
  const ssize_t got = ::pread(fd, text.data(), n, size - static_cast<off_t>(n));
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' '))
    text.pop_back();
  return printable(text);
}

}  // namespace

ChildReport run_in_child(const CaseInput& input,
                         milliseconds limit,
                         const std::function<void(CaseRun&)>& body) {
  std::array<int, 2> pipe{};
  LUNA_VERIFY(::pipe2(pipe.data(), O_CLOEXEC) == 0);
  const int output = ::memfd_create("luna-check", MFD_CLOEXEC);
  LUNA_VERIFY(output >= 0);
  const steady_clock::time_point deadline = steady_clock::now() + limit;
  const pid_t child = ::fork();
  LUNA_VERIFY(child >= 0);
  if (child == 0) {
    ::close(pipe[0]);
    live_as_child(pipe[1], output, input, body);
  }
  ::setpgid(child, child);  // both do, so that it holds before either goes on
  ::close(pipe[1]);

  ChildReport report;
  Records records(report);
  const bool in_time = read_until(pipe[0], deadline, records);
  std::optional<int> status;
  if (in_time) status = wait_until(child, deadline);
  ::kill(-child, SIGKILL);
  if (!status) {
    int ignored = 0;
    while (::waitpid(child, &ignored, 0) < 0 && errno == EINTR) {}
    report.end = ChildEnd::timed_out;
  } else if (WIFSIGNALED(*status)) {
    report.end = ChildEnd::signalled;
    report.number = WTERMSIG(*status);
  } else if (records.has_thrown()) {
    report.end = ChildEnd::terminated;
  } else if (!records.is_done()) {
    report.end = ChildEnd::exited;
    report.number = WEXITSTATUS(*status);
  }
  report.output = end_of_output(output);
  ::close(pipe[0]);
  ::close(output);
  return report;
}

Finding describe_end(const ChildReport& report,
                     std::string_view rule_of_crash,
                     milliseconds limit) {
  const std::string where = report.phase.empty() ? "" : " while: " + report.phase;
  const std::string output = report.output.empty() ? "" : "; it wrote: " + report.output;
  switch (report.end) {
    case ChildEnd::finished:
      break;
    case ChildEnd::timed_out:
      return {"U4", "no end within " + std::to_string(limit.count()) + " ms" + where + output};
    case ChildEnd::signalled:
      return {std::string(rule_of_crash),
              std::string("ended by signal ") + std::to_string(report.number) + " (" +
                  ::strsignal(report.number) + ")" + where + output};
    case ChildEnd::terminated:
      return {"E1", "thrown where nothing can catch it: " + report.thrown + where};
    case ChildEnd::exited:
      return {
          "U3",
          "the process was ended with status " + std::to_string(report.number) + where + output};
  }
  return {"U3", "ended"};
}

}  // namespace luna::check
