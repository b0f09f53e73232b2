#include "core/plugin/startup_guard.hpp"

#include "core/base/assert.hpp"

#include <array>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <unistd.h>

namespace luna::plugin {
namespace {

// Signal, terminate and exit handlers take no argument, so what they print must be reachable from
// a global. It is set while a guard runs and null otherwise.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): handlers get no argument
std::atomic<const std::string*> g_report{nullptr};

constexpr std::array kFatalSignals = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS};
constexpr std::size_t kAlternateStackBytes =
    std::size_t{64} * 1024;  // above MINSIGSTKSZ with AVX-512 state

void write_text(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

/// Prints the report and ends the process. Async-signal-safe. Only the first caller prints.
[[noreturn]] void end_process(std::string_view what_happened) {
  if (const std::string* report = g_report.exchange(nullptr)) {
    write_text("luna: ");
    write_text(what_happened);
    write_text(" ");
    write_text(*report);
  }
  ::_exit(1);
}

void on_fatal_signal(int signal_number) {
  switch (signal_number) {
    case SIGSEGV:
      end_process("segmentation fault (SIGSEGV)");
    case SIGBUS:
      end_process("bus error (SIGBUS)");
    case SIGILL:
      end_process("illegal instruction (SIGILL)");
    case SIGFPE:
      end_process("arithmetic error (SIGFPE)");
    case SIGABRT:
      end_process("abort (SIGABRT)");
    default:
      end_process("fatal signal");
  }
}

[[noreturn]] void on_terminate() {
  std::string what = "an exception that is not a std::exception";
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
      what = std::string("exception \"") + e.what() + "\"";
    } catch (...) {
      // `what` says it already.
    }
  } else {
    what = "std::terminate";
  }
  end_process(what);
}

void on_exit_call() {
  if (g_report.load() != nullptr) end_process("exit() called");
}

/// Fatal signals go to our handler, on a stack of its own, as long as this lives.
class SignalScope {
 public:
  SignalScope() {
    stack_t ours{};
    ours.ss_sp = stack_.data();
    ours.ss_size = stack_.size();
    has_stack_ = sigaltstack(&ours, &old_stack_) == 0;
    struct sigaction action {};
    action.sa_handler = on_fatal_signal;
    action.sa_flags = SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (std::size_t i = 0; i < kFatalSignals.size(); ++i)
      sigaction(kFatalSignals[i], &action, &old_actions_[i]);
  }
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;
  ~SignalScope() {
    for (std::size_t i = 0; i < kFatalSignals.size(); ++i)
      sigaction(kFatalSignals[i], &old_actions_[i], nullptr);
    if (has_stack_) sigaltstack(&old_stack_, nullptr);
  }

 private:
  std::array<char, kAlternateStackBytes> stack_{};
  stack_t old_stack_{};
  bool has_stack_ = false;
  std::array<struct sigaction, kFatalSignals.size()> old_actions_{};
};

/// Ends the process when the call has not returned in time. Real time on purpose: what hangs is
/// real code, whatever clock the engine runs on.
class Watchdog {
 public:
  explicit Watchdog(std::chrono::milliseconds limit)
      : text_("no answer within " + std::to_string(limit.count()) + " ms"), thread_([this, limit] {
          std::unique_lock lock(mutex_);
          if (!returned_.wait_for(lock, limit, [this] { return is_done_; })) end_process(text_);
        }) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      is_done_ = true;
    }
    returned_.notify_one();
    thread_.join();
  }

 private:
  std::string text_;
  std::mutex mutex_;
  std::condition_variable returned_;
  bool is_done_ = false;
  std::thread thread_;  // last: it uses the others
};

// noexcept: an exception that leaves a static constructor would leave the dynamic linker's lock
// held, so it must end in the terminate handler and not be caught further up.
void call_without_throwing(const std::function<void()>& call) noexcept {
  call();
}

}  // namespace

std::string_view phase_name(Phase phase) {
  switch (phase) {
    case Phase::load:
      return "load";
    case Phase::query:
      return "query";
    case Phase::init:
      return "init";
    case Phase::create:
      return "create";
  }
  return "load";
}

void StartupGuard::run(const Options& options, const std::function<void()>& call) {
  if (options.limit == std::chrono::milliseconds::zero()) return call_without_throwing(call);
  // Signal actions and the terminate handler belong to the process, so one call has them at a time.
  static std::mutex turn;
  const std::lock_guard lock(turn);
  static const int exit_hook = std::atexit(on_exit_call);
  LUNA_VERIFY(exit_hook == 0);

  const std::string report = "in phase '" + std::string(phase_name(options.phase)) +
                             "' of plugin " + options.plugin + "\n" + options.candidates + "\n";
  const std::string* expected = nullptr;
  LUNA_VERIFY(g_report.compare_exchange_strong(expected, &report));
  const std::terminate_handler old_terminate = std::set_terminate(on_terminate);
  {
    const SignalScope signals;
    const Watchdog watchdog(options.limit);
    call_without_throwing(call);
  }
  std::set_terminate(old_terminate);
  g_report.store(nullptr);
}

}  // namespace luna::plugin
