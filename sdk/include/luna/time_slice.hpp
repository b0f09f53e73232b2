// How long the kernel lets a thread run before it looks at the others on its core.
#pragma once

#include <sys/syscall.h>

#include <chrono>
#include <cstdint>
#include <sched.h>
#include <unistd.h>

namespace luna {

/// Asks for time slices of this length for the calling thread; its share of the core stays the
/// same. The shorter a waking thread's slice, the sooner it is let in: one that others wait for
/// comes back within a fraction of a millisecond on a busy core, instead of after a slice of
/// whoever runs there. The kernel grants 0.1 ms and more. Kernels before 6.12 ignore it; a refusal
/// costs speed alone. [any]
inline void ask_for_time_slices(std::chrono::nanoseconds length) {
  // The kernel's struct sched_attr, first version; the C library of Debian 12 does not declare it.
  struct {
    std::uint32_t size = 48;
    std::uint32_t policy = 0;
    std::uint64_t flags = 0;
    std::int32_t nice = 0;
    std::uint32_t priority = 0;
    std::uint64_t runtime_ns = 0;
    std::uint64_t deadline_ns = 0;
    std::uint64_t period_ns = 0;
  } attributes;
  static_assert(sizeof(attributes) == 48);
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;  // somebody chose another: theirs to tune
  attributes.runtime_ns = static_cast<std::uint64_t>(length.count());
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace luna
