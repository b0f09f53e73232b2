// Counts what any thread of the process allocates: for tests that nothing does. Link
// counting_allocator.cpp into a binary of its own, for it replaces malloc.
#pragma once

#include <cstdint>

namespace luna::test {

struct AllocationCount {
  std::uint64_t n_allocations = 0;
  std::uint64_t n_frees = 0;
};

/// Counts from now on, those counted before included. [any]
void start_counting();
/// Returns everything counted so far. [any]
AllocationCount stop_counting();

}  // namespace luna::test
