// Where the time of each step went: the engine writes records of fixed size, anyone reads them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace luna::telemetry {

/// One step, from its plan to its tokens. Times in nanoseconds.
struct StepRecord {
  static constexpr std::size_t kDevicesMax = 8;

  std::uint64_t step = 0;         ///< number, from 1 on
  std::uint64_t group = 0;        ///< of devices, that ran it
  std::uint64_t lane = 0;         ///< which of the steps that may be in flight
  std::uint64_t n_in_flight = 0;  ///< when it began, itself included
  std::uint64_t started_ns = 0;   ///< on the engine's clock
  std::uint64_t plan_ns = 0;      ///< the scheduler's call and the check of its answer
  std::uint64_t prepare_ns = 0;   ///< KV blocks and the step's arrays
  std::uint64_t submit_ns = 0;    ///< handing it to all devices
  std::uint64_t devices_ns = 0;   ///< from the last submit to the engine's seeing the end
  std::uint64_t busy_ns = 0;      ///< of that, inside the ops of the slowest device
  std::uint64_t n_devices = 0;    ///< kDevicesMax at most
  std::array<std::uint64_t, kDevicesMax> device_busy_ns{};  ///< [n_devices], in layer order
  std::uint64_t sample_ns = 0;      ///< drawing tokens, making text, laying both out for readers
  std::uint64_t publish_ns = 0;     ///< waking the readers of the step before; in devices_ns
  std::uint64_t total_ns = 0;       ///< from the start to the last token
  std::uint64_t since_last_ns = 0;  ///< from the end of the step before to this one's
  std::uint64_t n_rows = 0;
  std::uint64_t n_seqs = 0;
  std::uint64_t n_out_rows = 0;
  std::uint64_t n_kv_tokens = 0;  ///< that the rows attended to
};
static_assert(std::is_trivially_copyable_v<StepRecord>);

/// A record as a line of JSON, without the line's end.
[[nodiscard]] std::string to_json(const StepRecord& record, std::string_view model);

/// The last kRecords steps. One writer, which never waits; readers copy what is still there.
class StepTrace {
 public:
  static constexpr std::size_t kRecords = 4096;  // some ten seconds of a small model, 864 KiB

  StepTrace() : slots_(kRecords) {}

  /// Takes the place of the oldest record. Allocates nothing. [engine]
  void append(const StepRecord& record);
  /// The last n records at most, oldest first. Those that the writer overtook meanwhile are left
  /// out. [any]
  [[nodiscard]] std::vector<StepRecord> last(std::size_t n) const;

 private:
  static constexpr std::size_t kWords = sizeof(StepRecord) / sizeof(std::uint64_t);
  static_assert(sizeof(StepRecord) == kWords * sizeof(std::uint64_t));
  using Slot = std::array<std::atomic<std::uint64_t>, kWords>;

  std::vector<Slot> slots_;
  std::atomic<std::uint64_t> n_written_{0};
};

}  // namespace luna::telemetry
