// Which process it is, and whether it still lives.
#pragma once

#include "descriptor.hpp"

#include <cstdint>
#include <optional>

namespace luna::shm {

/// A process that no later one can be taken for: the kernel gives numbers again, but not with the
/// same start time. Lies in shared memory and in address blobs.
struct ProcessId {
  std::uint32_t pid = 0;
  std::uint32_t pad = 0;
  std::uint64_t start_ticks = 0;  // since boot, of the kernel's clock

  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

/// The calling process; asked anew each time, since a fork changes it. [any]
ProcessId own_process();

/// When a living process started; nullopt: there is none of this number, or it has ended and waits
/// for its parent. [any]
std::optional<std::uint64_t> start_ticks_of(std::uint32_t pid);

/// Whether a process lives, asked again and again. A resource; owned by who waits for the process.
class ProcessWatch {
 public:
  /// A process that cannot be found counts as dead, as it cannot come back.
  explicit ProcessWatch(const ProcessId& process);

  /// Cost: one system call, none for the own process.
  [[nodiscard]] bool is_alive() const;

 private:
  enum class Kind { own, by_descriptor, by_start, dead };

  ProcessId process_;
  Kind kind_ = Kind::dead;
  Descriptor pidfd_;
};

}  // namespace luna::shm
