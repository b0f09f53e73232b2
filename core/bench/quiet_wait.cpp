#include "core/bench/quiet_wait.hpp"

#include <ctime>

namespace luna::bench {
namespace {

// Long beside the wake-ups of idle threads, short beside a load.
constexpr Nanoseconds kInterval = std::chrono::milliseconds(100);
// Of an interval, on all cores together.
constexpr Nanoseconds kQuietMax = kInterval / 20;

}  // namespace

bool wait_until_quiet(const QuietWait& wait) {
  Nanoseconds before = wait.cpu_time();
  for (Nanoseconds waited{0}; waited < wait.longest && wait.keep_going(); waited += kInterval) {
    wait.pause(kInterval);
    const Nanoseconds now = wait.cpu_time();
    if (now - before <= kQuietMax) return true;
    before = now;
  }
  return false;
}

Nanoseconds process_cpu_time() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + Nanoseconds(time.tv_nsec);
}

}  // namespace luna::bench
