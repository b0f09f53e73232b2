// Waits until a process that has just started does nothing any more.
#pragma once

#include "core/base/clock.hpp"

#include <functional>

namespace luna::bench {

/// What wait_until_quiet() sees of the world; in tests, something else.
struct QuietWait {
  std::function<Nanoseconds()> cpu_time;   ///< what the process has computed so far, all threads
  std::function<void(Nanoseconds)> pause;  ///< returns after so long
  std::function<bool()> keep_going;        ///< false: the wait is over
  Nanoseconds longest = std::chrono::seconds(60);  ///< of the whole wait
};

/// A model that has answered its first request may still be getting memory in the background (a
/// large KV pool takes seconds), on the cores that its steps need: figures taken then are of the
/// start, not of what runs afterwards. [main]
///
/// Returns  whether the process came to rest
bool wait_until_quiet(const QuietWait& wait);

/// CPU time of this process, all threads.
Nanoseconds process_cpu_time();

}  // namespace luna::bench
