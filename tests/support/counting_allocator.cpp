#include "support/counting_allocator.hpp"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<bool> g_counting{false};
std::atomic<std::uint64_t> g_n_allocations{0};
std::atomic<std::uint64_t> g_n_frees{0};

void count_allocation() {
  if (g_counting.load(std::memory_order_relaxed)) ++g_n_allocations;
}
void count_free(const void* p) {
  if (p != nullptr && g_counting.load(std::memory_order_relaxed)) ++g_n_frees;
}

}  // namespace

namespace luna::test {

void start_counting() {
  g_counting = true;
}
AllocationCount stop_counting() {
  g_counting = false;
  return {g_n_allocations.load(), g_n_frees.load()};
}

}  // namespace luna::test

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LUNA_COUNTS_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LUNA_COUNTS_MALLOC 0
#endif
#endif
#ifndef LUNA_COUNTS_MALLOC
#define LUNA_COUNTS_MALLOC 1
#endif

#if LUNA_COUNTS_MALLOC
// glibc's own, under the names that it keeps for whoever replaces malloc. operator new calls
// malloc, so that it is counted too.
extern "C" {
void* __libc_malloc(std::size_t n);
void* __libc_calloc(std::size_t n, std::size_t size);
void* __libc_realloc(void* p, std::size_t n);
void* __libc_memalign(std::size_t alignment, std::size_t n);
void __libc_free(void* p);

void* malloc(std::size_t n) {
  count_allocation();
  return __libc_malloc(n);
}
void* calloc(std::size_t n, std::size_t size) {
  count_allocation();
  return __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t n) {
  count_allocation();
  count_free(p);
  return __libc_realloc(p, n);
}
void* memalign(std::size_t alignment, std::size_t n) {
  count_allocation();
  return __libc_memalign(alignment, n);
}
void* aligned_alloc(std::size_t alignment, std::size_t n) {
  return memalign(alignment, n);
}
int posix_memalign(void** p, std::size_t alignment, std::size_t n) {
  void* const memory = memalign(alignment, n);
  if (memory == nullptr) return ENOMEM;
  *p = memory;
  return 0;
}
void free(void* p) {
  count_free(p);
  __libc_free(p);
}
}
#else
// A sanitizer has malloc: only what C++ asks for is counted.
void* operator new(std::size_t n) {
  count_allocation();
  if (void* p = std::malloc(n == 0 ? 1 : n)) return p;
  std::abort();
}
void* operator new[](std::size_t n) {
  return ::operator new(n);
}
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return ::operator new(n);
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return ::operator new(n);
}
void operator delete(void* p) noexcept {
  count_free(p);
  std::free(p);
}
void operator delete[](void* p) noexcept {
  ::operator delete(p);
}
void operator delete(void* p, std::size_t) noexcept {
  ::operator delete(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  ::operator delete(p);
}
#endif
