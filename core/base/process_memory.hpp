// What this process takes of the machine's memory.
#pragma once

#include <cstdint>

namespace luna {

/// Bytes of this process that lie in memory and that no file stands behind, shared ones among them:
/// what the system cannot get back but by swapping. 0 where it does not say. [any]
/// Source  proc(5): RssAnon and RssShmem of /proc/self/status
std::uint64_t resident_bytes();

/// Gives the heap's free pages back to the system. [any]
void trim_heap();

}  // namespace luna
