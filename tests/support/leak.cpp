// Preloaded into a program, it takes LUNA_LEAK_MIB of memory, and writes it, as soon as the file
// LUNA_LEAK_WHEN is there; it gives nothing back.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <unistd.h>

namespace {

// Where others could see it, or a compiler would find that nobody needs it.
void* volatile leaked = nullptr;

void leak() {
  const char* const when = std::getenv("LUNA_LEAK_WHEN");
  const char* const n_mib = std::getenv("LUNA_LEAK_MIB");
  if (when == nullptr || n_mib == nullptr) return;
  while (::access(when, F_OK) != 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::size_t n_bytes = std::strtoull(n_mib, nullptr, 10) << 20U;
  // NOLINTNEXTLINE(cppcoreguidelines-no-malloc): it is never freed
  leaked = std::malloc(n_bytes);
  if (leaked != nullptr) std::memset(leaked, 1, n_bytes);
}

__attribute__((constructor)) void begin() {
  std::thread(leak).detach();
}

}  // namespace
