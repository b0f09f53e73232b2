#include "core/base/process_memory.hpp"

#include "core/base/units.hpp"

#include <cstdlib>
#include <fstream>
#include <malloc.h>
#include <string>

namespace luna {

std::uint64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::uint64_t n_kib = 0;
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:") || line.starts_with("RssShmem:"))
      n_kib += std::strtoull(line.c_str() + line.find(':') + 1, nullptr, 10);
  return n_kib * kKiB;
}

void trim_heap() {
  malloc_trim(0);
}

}  // namespace luna
