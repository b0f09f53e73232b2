#include "memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace luna::cpu {
namespace {
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
constexpr std::uint64_t kChunkBytes = std::uint64_t{64} << 20;  // at most one half-empty a device
constexpr std::uint64_t kPieceAlign = 4096;  // threads first touch whole pages of their own
// How long a device must have had no work; steps of a busy one follow each other sooner.
constexpr std::chrono::milliseconds kRest{10};

std::uint64_t round_up(std::uint64_t n, std::uint64_t quantum) {
  return (n + quantum - 1) / quantum * quantum;
}
}  // namespace

Result<Mapping> Mapping::make(std::uint64_t bytes) {
  Mapping m;
  m.bytes_ = round_up(std::max<std::uint64_t>(bytes, 1), kHugePage);
  m.base_bytes_ = m.bytes_ + kHugePage;
  void* base = m.base_bytes_ < bytes ? MAP_FAILED
                                     : mmap(nullptr,
                                            m.base_bytes_,
                                            PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                            -1,
                                            0);
  if (base == MAP_FAILED)
    return Error{Code::exhausted, "the system has no room for " + std::to_string(bytes) + " bytes"};
  m.base_ = base;
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  m.data_ = static_cast<std::byte*>(base) + (round_up(address, kHugePage) - address);
  madvise(m.data_, m.bytes_, MADV_HUGEPAGE);  // advice: without it, only slower
  return m;
}

Mapping::Mapping(Mapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      base_bytes_(other.base_bytes_),
      data_(other.data_),
      bytes_(other.bytes_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(base_bytes_, other.base_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) munmap(base_, base_bytes_);
}

PagePopulator::PagePopulator(const Mapping& mapping,
                             std::vector<int> cpus,
                             const TeamActivity& activity)
    : thread_([data = mapping.data(), bytes = mapping.bytes(), cpus = std::move(cpus), &activity](
                  const std::stop_token& stop) {
        bind_to_cpus(cpus);
        std::uint64_t at = 0;
        std::uint64_t seen = activity.value();
        while (at < bytes && !stop.stop_requested()) {
          const std::uint64_t now = activity.value();
          if (now != seen || TeamActivity::is_working(now)) {
            seen = now;
            std::this_thread::sleep_for(kRest);
            continue;
          }
          // Not by writing: a step may begin to write there. Older kernels (before 5.14) refuse,
          // then each page comes when it is first used.
          if (madvise(data + at, kHugePage, MADV_POPULATE_WRITE) != 0) return;
          at += kHugePage;
        }
      }) {}

void give_pages_back(std::byte* data, std::uint64_t bytes) {
  madvise(data, bytes / kPieceAlign * kPieceAlign, MADV_DONTNEED);
}

Result<ArenaPiece> WeightArena::take(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t size = round_up(bytes, kPieceAlign);
  if (chunk_ == nullptr || used_ + size > chunk_->bytes()) {
    LUNA_TRY(Mapping mapping, Mapping::make(std::max(size, kChunkBytes)));
    chunk_ = std::make_shared<const Mapping>(std::move(mapping));
    used_ = 0;
  }
  std::byte* data = chunk_->data() + used_;
  used_ += size;
  return ArenaPiece{chunk_, data};
}

}  // namespace luna::cpu
