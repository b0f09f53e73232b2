// Checks of our own reasoning. Data from outside is never asserted, it is checked.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace luna {

[[noreturn]] inline void assertion_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "luna: bug: %s does not hold (%s:%d)\n", condition, file, line);
  std::abort();
}

}  // namespace luna

/// Always checked.
#define LUNA_VERIFY(condition) \
  ((condition) ? static_cast<void>(0) : ::luna::assertion_failed(#condition, __FILE__, __LINE__))

/// Checked unless NDEBUG is defined.
#ifdef NDEBUG
#define LUNA_ASSERT(condition) static_cast<void>(0)
#else
#define LUNA_ASSERT(condition) LUNA_VERIFY(condition)
#endif
