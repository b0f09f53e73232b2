#include "core/check/allocation_watch.hpp"

#include "core/base/sanitizer.hpp"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <link.h>
#include <optional>
#include <string_view>
#include <unistd.h>

namespace luna::check {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kJumpSlot = R_X86_64_JUMP_SLOT;
constexpr std::uint32_t kGlobalData = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr std::uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT;
constexpr std::uint32_t kGlobalData = R_AARCH64_GLOB_DAT;
#else
#error "the relocations of this architecture are not known"
#endif

// Functions that stand in for malloc get no further argument.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<bool> g_counts{false};
std::atomic<std::uint64_t> g_n{0};
std::atomic<std::uint64_t> g_fail_at{0};
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

/// Counts one. False: it shall fail.
bool is_granted() {
  if (!g_counts.load(std::memory_order_relaxed)) return true;
  return ++g_n != g_fail_at.load(std::memory_order_relaxed);
}

void* watched_malloc(std::size_t n) {
  return is_granted() ? std::malloc(n) : nullptr;
}
void* watched_calloc(std::size_t n, std::size_t size) {
  return is_granted() ? std::calloc(n, size) : nullptr;
}
void* watched_realloc(void* old, std::size_t n) {
  return is_granted() ? std::realloc(old, n) : nullptr;
}
void* watched_aligned_alloc(std::size_t alignment, std::size_t n) {
  return is_granted() ? ::aligned_alloc(alignment, n) : nullptr;
}
int watched_posix_memalign(void** to, std::size_t alignment, std::size_t n) {
  return is_granted() ? ::posix_memalign(to, alignment, n) : ENOMEM;
}

struct Watched {
  std::string_view name;
  void* function;
};

const std::array<Watched, 5>& watched() {
  static const std::array<Watched, 5> all = {{
      {"malloc", reinterpret_cast<void*>(watched_malloc)},
      {"calloc", reinterpret_cast<void*>(watched_calloc)},
      {"realloc", reinterpret_cast<void*>(watched_realloc)},
      {"aligned_alloc", reinterpret_cast<void*>(watched_aligned_alloc)},
      {"posix_memalign", reinterpret_cast<void*>(watched_posix_memalign)},
  }};
  return all;
}

// The loader's tables hold addresses as numbers.
// NOLINTBEGIN(performance-no-int-to-ptr)

/// The tables of a loaded library.
struct Tables {
  ElfW(Addr) base = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* texts = nullptr;
  std::array<const ElfW(Rela)*, 2> relocations{};
  std::array<std::size_t, 2> n_relocations{};
};

std::optional<Tables> tables_of(const dl_phdr_info& info) {
  const ElfW(Dyn)* entry = nullptr;
  for (int i = 0; i < info.dlpi_phnum; ++i)
    if (info.dlpi_phdr[i].p_type == PT_DYNAMIC)
      entry = reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
  if (entry == nullptr) return std::nullopt;
  Tables tables;
  tables.base = info.dlpi_addr;
  // glibc has added the base to addresses here; other loaders leave them as they are in the file.
  const auto at = [&info](ElfW(Addr) address) {
    return address < info.dlpi_addr ? address + info.dlpi_addr : address;
  };
  for (; entry->d_tag != DT_NULL; ++entry) {
    const ElfW(Addr) address = at(entry->d_un.d_ptr);
    if (entry->d_tag == DT_SYMTAB) tables.symbols = reinterpret_cast<const ElfW(Sym)*>(address);
    if (entry->d_tag == DT_STRTAB) tables.texts = reinterpret_cast<const char*>(address);
    if (entry->d_tag == DT_RELA)
      tables.relocations[0] = reinterpret_cast<const ElfW(Rela)*>(address);
    if (entry->d_tag == DT_JMPREL)
      tables.relocations[1] = reinterpret_cast<const ElfW(Rela)*>(address);
    if (entry->d_tag == DT_RELASZ) tables.n_relocations[0] = entry->d_un.d_val / sizeof(ElfW(Rela));
    if (entry->d_tag == DT_PLTRELSZ)
      tables.n_relocations[1] = entry->d_un.d_val / sizeof(ElfW(Rela));
  }
  if (tables.symbols == nullptr || tables.texts == nullptr) return std::nullopt;
  return tables;
}

void write_slot(ElfW(Addr) slot, void* function) {
  const auto page = static_cast<ElfW(Addr)>(::sysconf(_SC_PAGESIZE));
  const ElfW(Addr) first = slot / page * page;
  const ElfW(Addr) end = (slot + sizeof(function) + page - 1) / page * page;
  // The table became read-only when the library had been linked.
  if (::mprotect(reinterpret_cast<void*>(first), end - first, PROT_READ | PROT_WRITE) != 0) return;
  std::memcpy(reinterpret_cast<void*>(slot), &function, sizeof(function));
}

void redirect(const Tables& tables) {
  for (std::size_t t = 0; t < tables.relocations.size(); ++t) {
    for (std::size_t i = 0; tables.relocations[t] != nullptr && i < tables.n_relocations[t]; ++i) {
      const ElfW(Rela)& relocation = tables.relocations[t][i];
      const auto type = static_cast<std::uint32_t>(ELF64_R_TYPE(relocation.r_info));
      if (type != kJumpSlot && type != kGlobalData) continue;
      const std::string_view name =
          tables.texts + tables.symbols[ELF64_R_SYM(relocation.r_info)].st_name;
      for (const Watched& one : watched())
        if (name == one.name) write_slot(tables.base + relocation.r_offset, one.function);
    }
  }
}

// NOLINTEND(performance-no-int-to-ptr)

bool holds(const dl_phdr_info& info, ElfW(Addr) address) {
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info.dlpi_phdr[i];
    const ElfW(Addr) first = info.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && address >= first && address - first < segment.p_memsz)
      return true;
  }
  return false;
}

/// Where operator new calls malloc.
bool is_runtime(const dl_phdr_info& info) {
  return std::string_view(info.dlpi_name).find("libstdc++") != std::string_view::npos;
}

int redirect_library(dl_phdr_info* info, std::size_t /*size*/, void* address) {
  if (!holds(*info, reinterpret_cast<ElfW(Addr)>(address)) && !is_runtime(*info)) return 0;
  if (const auto tables = tables_of(*info)) redirect(*tables);
  return 0;
}

}  // namespace

bool AllocationWatch::install(const void* address) {
  if (kHasSanitizer) return false;
  ::dl_iterate_phdr(redirect_library, const_cast<void*>(address));
  return true;
}

void AllocationWatch::begin(std::uint64_t fail_at) {
  g_n = 0;
  g_fail_at = fail_at;
  g_counts = true;
}

std::uint64_t AllocationWatch::end() {
  g_counts = false;
  return g_n;
}

bool AllocationWatch::is_counting() {
  return g_counts;
}

}  // namespace luna::check
