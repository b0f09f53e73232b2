#include "core/check/guarded_memory.hpp"

#include "core/base/assert.hpp"

#include <sys/mman.h>

#include <unistd.h>

namespace luna::check {
namespace {

constexpr std::size_t kAlignment = 16;

std::size_t rounded_up(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

}  // namespace

GuardedMemory::GuardedMemory(std::size_t n_bytes) : n_bytes_(n_bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t used = rounded_up(n_bytes + kAlignment, page);
  pages_bytes_ = used + page;  // the last one is never there
  void* const pages =
      ::mmap(nullptr, pages_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LUNA_VERIFY(pages != MAP_FAILED);
  pages_ = static_cast<std::byte*>(pages);
  LUNA_VERIFY(::mprotect(pages_ + used, page, PROT_NONE) == 0);
  data_ = pages_ + used - rounded_up(n_bytes, kAlignment);
}

GuardedMemory::~GuardedMemory() {
  ::munmap(pages_, pages_bytes_);
}

void GuardedMemory::make_read_only() {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  LUNA_VERIFY(::mprotect(pages_, pages_bytes_ - page, PROT_READ) == 0);
}

void GuardedMemory::take_away() {
  LUNA_VERIFY(::mprotect(pages_, pages_bytes_, PROT_NONE) == 0);
  ::madvise(pages_, pages_bytes_, MADV_DONTNEED);
}

}  // namespace luna::check
