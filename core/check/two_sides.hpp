// Two sides of a transport, each with an endpoint of its own: processes where it reaches across
// them, threads where it does not.
#pragma once

#include "core/check/case_run.hpp"
#include "core/check/subject.hpp"
#include "core/check/transport_end.hpp"

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace luna::check {

/// Whole messages between the two sides, beside the transport. A resource; [its side].
class SideChannel {
 public:
  explicit SideChannel(int fd) : fd_(fd) {}
  SideChannel(const SideChannel&) = delete;
  SideChannel& operator=(const SideChannel&) = delete;
  ~SideChannel();
  void send(std::string_view message);
  /// nullopt: the other side has gone, or says nothing within the limit.
  std::optional<std::string> receive(std::chrono::milliseconds limit);

 private:
  int fd_;
};

/// What the channel brings while the endpoint is polled: a transport may move nothing without.
/// nullopt: as receive()
std::optional<std::string> receive_polling(End& end, SideChannel& channel);

/// One side while it runs.
struct Side {
  CaseRun& run;
  End& end;
  SideChannel& channel;
  bool is_process;  ///< else a thread
};

/// Starts the other side, connects both and lets them run.
///
/// here, there  what the sides do; `there` runs in the other process or thread. What it finds is
///              told to `run` when both have ended
/// Neither runs where the run was told that the transport cannot be made or does not meet.
void run_two_sides(CaseRun& run,
                   const std::function<void(Side&)>& here,
                   const std::function<void(Side&)>& there);

/// As run_two_sides(), but the other process is killed when `here` asks for it. Nothing where the
/// transport does not reach another process.
///
/// here  its second argument kills the other side and waits until it is gone
void run_beside_a_victim(CaseRun& run,
                         const std::function<void(Side&, const std::function<void()>& kill)>& here,
                         const std::function<void(Side&)>& there);

/// Bytes of this process that lie in memory.
std::uint64_t resident_bytes();

}  // namespace luna::check
