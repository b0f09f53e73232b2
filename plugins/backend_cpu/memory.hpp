// Large memory for weights, KV and scratch: 2 MiB aligned and advised, because a step reads all of
// a model and small pages cost a quarter of the bandwidth.
#pragma once

#include "thread_team.hpp"

#include <luna/result.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace luna::cpu {

/// Zeroed pages. A resource: owns its mapping.
class Mapping {
 public:
  Mapping() = default;
  /// Errors  exhausted: the operating system has no room
  static Result<Mapping> make(std::uint64_t bytes);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  void* base_ = nullptr;
  std::uint64_t base_bytes_ = 0;
  std::byte* data_ = nullptr;  // 2 MiB aligned
  std::uint64_t bytes_ = 0;
};

/// Gives a mapping its pages from a thread of its own, so that a large KV pool does not hold up the
/// start: a virtual machine may take a second or more a GiB. The memory is zero and may be used
/// from the beginning; a page that is used before its turn comes then. A step would lose a core to
/// it, so it stands back while the device has work. A resource; goes before its mapping does.
class PagePopulator {
 public:
  /// cpus      where the thread may run: the pages come from the memory near them
  /// activity  of the threads that own these CPUs; outlives this
  PagePopulator(const Mapping& mapping, std::vector<int> cpus, const TeamActivity& activity);
  PagePopulator(const PagePopulator&) = delete;
  PagePopulator& operator=(const PagePopulator&) = delete;
  ~PagePopulator() = default;  ///< waits for the huge page, or the rest, under way

 private:
  std::jthread thread_;
};

/// A piece of an arena's chunk. The chunk goes with its last piece: hence the shared pointer.
struct ArenaPiece {
  std::shared_ptr<const Mapping> chunk;
  std::byte* data = nullptr;
};

/// Gives the whole pages of a piece back to the system; what lay there reads as zero. The addresses
/// stay the piece's.
///
/// data  at the beginning of a page
void give_pages_back(std::byte* data, std::uint64_t bytes);

/// Weights one after the other in large chunks, in the order they are loaded, which is the order a
/// step reads them in. [main]
class WeightArena {
 public:
  Result<ArenaPiece> take(std::uint64_t bytes);

 private:
  std::mutex mutex_;
  std::shared_ptr<const Mapping> chunk_;
  std::uint64_t used_ = 0;
};

}  // namespace luna::cpu
