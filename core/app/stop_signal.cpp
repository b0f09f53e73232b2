#include "core/app/stop_signal.hpp"

#include "core/base/assert.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

namespace luna::app {
namespace {

// Written by the handler, on whatever thread the signal finds: lock-free and async-signal-safe.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): handlers get no argument
std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): handlers get no argument
std::array<int, 2> wake_pipe = {-1, -1};

void on_signal(int number) {
  // The first signal drains, the second means it: 128 + number, as a shell would report it.
  if (stop_requested.exchange(true)) _exit(128 + number);
  const int interrupted_errno = errno;  // of the code between a call and its look at errno
  const char byte = 1;
  [[maybe_unused]] const auto n = write(wake_pipe[1], &byte, 1);
  errno = interrupted_errno;
}

}  // namespace

void StopSignal::install() {
  LUNA_VERIFY(pipe2(wake_pipe.data(), O_CLOEXEC | O_NONBLOCK) == 0);
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A client that closes early must be an error of one write, not the end of the process.
  signal(SIGPIPE, SIG_IGN);
}

bool StopSignal::is_set() {
  return stop_requested.load();
}

bool StopSignal::wait(std::optional<std::chrono::milliseconds> timeout) {
  while (!is_set()) {
    pollfd ready{wake_pipe[0], POLLIN, 0};
    const int n = poll(&ready, 1, timeout ? static_cast<int>(timeout->count()) : -1);
    if (n == 0) return is_set();
    if (n < 0 && errno != EINTR) return is_set();
  }
  return true;
}

bool StopSignal::wait_readable(int fd) {
  while (!is_set()) {
    std::array<pollfd, 2> ready = {pollfd{fd, POLLIN, 0}, pollfd{wake_pipe[0], POLLIN, 0}};
    const int n = poll(ready.data(), ready.size(), -1);
    if (n < 0 && errno != EINTR) return true;  // reading will tell what is wrong
    if (n > 0 && ready[0].revents != 0) return !is_set();
  }
  return false;
}

}  // namespace luna::app
