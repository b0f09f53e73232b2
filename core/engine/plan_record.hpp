// Records what the scheduler plugin is shown and answers, beside the engine.
#pragma once

#include "core/base/byte_ring.hpp"
#include "core/engine/plan_file.hpp"

#include <luna/abi/scheduler.h>
#include <luna/result.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

namespace luna::engine {

/// Copies each plan into a ring, from which a thread of its own writes the file. Where the ring or
/// the file is full the recording ends with a line in the log: the engine never waits for it.
/// Owned by whoever owns the engine; outlives it. A resource.
class PlanRecorder {
 public:
  struct Options {
    std::filesystem::path file;  ///< replaced if it is there
    std::string text;            ///< what is recorded: policy and settings, for `luna replay`
    std::uint64_t file_bytes_max = 0;
    /// Some plans of the largest engine: a disk that stops for a moment ends no recording.
    std::size_t ring_bytes = std::size_t{32} << 20U;
  };
  /// Creates the file and starts the thread. [start-up]
  /// Errors  io: path and reason
  static Result<std::unique_ptr<PlanRecorder>> open(Options options);
  /// Writes what is left, and why it ended.
  ~PlanRecorder();
  PlanRecorder(const PlanRecorder&) = delete;
  PlanRecorder& operator=(const PlanRecorder&) = delete;

  /// Notes a plan that was asked for. The tables have the row sizes of this build, and actions are
  /// those of `plan`. Costs the copy. [engine]
  void record(const luna_snapshot& snapshot, const luna_plan& plan, luna_status status);
  /// Notes nothing more. [engine]
  void end(RecordEnd why);

 private:
  PlanRecorder(Options options, int fd);
  void run();
  bool write(std::span<const std::byte> bytes);
  void finish(RecordEnd why, std::uint64_t n_plans);

  const Options options_;
  const int fd_;
  ByteRing ring_;
  bool is_stopped_ = false;             // the engine's: nothing more is appended
  std::atomic<bool> has_ended_{false};  // the thread's word to the engine: nothing more is wanted
  PlanEncoder encoder_;                 // the thread's, and the following
  std::uint64_t n_file_bytes_ = 0;
  std::thread thread_;
};

}  // namespace luna::engine
