// What the engine counts. Written by the engine thread with relaxed stores, read by whoever
// scrapes; nothing here costs a step a lock or an allocation.
#pragma once

#include "core/telemetry/step_trace.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>

namespace luna::telemetry {

/// Adds to a counter that one thread writes: a load and a store, no locked instruction.
inline void bump(std::atomic<std::uint64_t>& counter, std::uint64_t by) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}
inline double seconds(std::chrono::nanoseconds t) {
  return std::chrono::duration<double>(t).count();
}

/// A histogram with fixed upper bounds; one writer, any readers.
template <std::size_t N>
class Histogram {
 public:
  explicit constexpr Histogram(const std::array<double, N>& upper_bounds) : bounds_(upper_bounds) {}

  /// One writer.
  void observe(double value) {
    std::size_t i = 0;
    while (i < N && value > bounds_[i])
      ++i;
    bump(counts_[i], 1);
    sum_.store(sum_.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
  }
  [[nodiscard]] std::span<const double> bounds() const { return bounds_; }
  /// Observations in bucket i (not cumulative); i == N: above the last bound.
  [[nodiscard]] std::uint64_t count(std::size_t i) const {
    return counts_[i].load(std::memory_order_relaxed);
  }
  [[nodiscard]] double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::array<double, N> bounds_;
  std::array<std::atomic<std::uint64_t>, N + 1> counts_{};
  std::atomic<double> sum_{0.0};
};

/// Seconds, 1 - 2.5 - 5 a decade from 1 ms to 500 s: first token, whole request, queue.
inline constexpr std::array<double, 18> kRequestSeconds = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500};
/// Seconds, from 0.5 ms to 5 s: gaps between tokens, steps.
inline constexpr std::array<double, 13> kStepSeconds = {
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5};

/// Why a request ended; the values of the label `code`.
enum class EndCode : std::uint8_t { ok, length, cancelled, rejected, client_error, server_error };
inline constexpr std::size_t kEndCodes = 6;

/// Groups of devices of one model at a time, at most.
inline constexpr std::size_t kGroupsMax = 64;
/// Devices of one model that are counted, all groups together.
inline constexpr std::size_t kDevicesCounted = 128;

/// One group of devices that hold a copy of the model together. [engine] writes, [any] reads. Its
/// place is used again when it has left; who reads just then may see devices of both.
struct GroupStats {
  using Counter = std::atomic<std::uint64_t>;

  std::atomic<std::uint8_t> n_devices{0};  ///< that are counted; 0: no group is here
  /// Of them: indices of EngineStats::devices, in layer order.
  std::array<std::atomic<std::uint8_t>, kDevicesCounted> devices{};

  Counter n_running{0};
  Counter n_waiting{0};
  Counter n_steps{0};
  Counter n_steps_in_flight{0};
  Counter n_kv_blocks_used{0};
  Counter n_kv_blocks_cached{0};
  Counter n_kv_blocks_free{0};
  Counter guest_attention{0};  ///< see kAttentionUnits
};
/// Of GroupStats::guest_attention: what one row pays all that it sees.
inline constexpr double kAttentionUnits = 1e6;

/// Why an answer that was to be checked was not; the values of the label `reason`.
enum class CheckSkip : std::uint8_t {
  too_large,  ///< for any group of devices alone
  no_room,    ///< among those that wait to be checked
  failed,     ///< its replay did, several times
};
inline constexpr std::size_t kCheckSkips = 3;

/// Answers that were computed once more. [checker] writes, no_room alone [engine]; [any] reads.
struct OutputCheckStats {
  using Counter = std::atomic<std::uint64_t>;

  Counter percent{0};        ///< of the requests in question; 0: none are checked
  Counter n_waiting{0};      ///< answers that wait to be checked
  Counter n_checked{0};      ///< answers that were compared
  Counter n_mismatches{0};   ///< of these, the ones that differed
  Counter n_interrupted{0};  ///< replays that made room for requests, to begin anew
  std::array<Counter, kCheckSkips> n_skipped{};
  /// The last that differed; complete once n_mismatches counts it.
  struct {
    Counter request_id{0};
    Counter choice{0};
    Counter position{0};
  } last;

  [[nodiscard]] Counter& n_skipped_of(CheckSkip why) {
    return n_skipped[static_cast<std::size_t>(why)];
  }
};

/// One device of a model. Written before it is counted; then [engine] writes, [any] reads.
struct DeviceStats {
  std::array<char, 129> name{};           ///< as in the TOML
  std::atomic<std::uint64_t> busy_ns{0};  ///< inside op programs

  [[nodiscard]] std::string_view name_text() const { return name.data(); }
};

/// One model's counters and gauges. [engine] writes, [any] reads.
struct EngineStats {
  using Counter = std::atomic<std::uint64_t>;

  Counter n_running{0};
  Counter n_waiting{0};
  Counter n_held{0};  ///< of these, the ones that no group of devices could hold now
  std::array<Counter, kEndCodes> n_ended{};
  Counter n_prompt_tokens{0};
  Counter n_generated_tokens{0};
  Counter n_cached_tokens{0};
  Counter n_recomputed_tokens{0};
  Counter n_preempted{0};
  Counter n_moves{0};             ///< sequences that went to another group with their KV
  Counter n_moves_recomputed{0};  ///< and those whose KV is computed anew there, which is faster
  Counter n_moves_failed{0};      ///< copies that failed: the sequence stays where it is
  Counter n_moved_blocks{0};
  Counter n_draft_tokens{0};           ///< that steps verified
  Counter n_draft_tokens_accepted{0};  ///< of these, the ones that were drawn
  Counter n_draft_steps{0};            ///< of the draft model
  Counter n_draft_failures{0};         ///< of these, the ones that failed
  Counter n_draft_kv_blocks_used{0};   ///< of the draft model's KV
  Counter n_kv_blocks_used{0};
  Counter n_kv_blocks_cached{0};
  Counter n_kv_blocks_free{0};
  Counter n_kv_blocks_evicted{0};
  Counter n_kv_moves{0};          ///< slices that went to another group or came back
  Counter n_kv_move_failures{0};  ///< of these, the ones that could not be copied
  Counter n_prefix_hits{0};
  Counter n_prefix_misses{0};
  Counter n_kv_audit_failures{0};
  Counter n_steps{0};
  Counter n_steps_in_flight{0};
  Counter n_steps_in_flight_max{0};
  /// Devices that belong to a group or did, as they came; those beyond are not counted.
  std::array<DeviceStats, kDevicesCounted> devices{};
  std::atomic<std::size_t> n_devices{0};
  std::array<GroupStats, kGroupsMax> groups{};
  OutputCheckStats output_check;
  Counter n_plan_calls{0};    ///< border calls: scheduler
  Counter n_submit_calls{0};  ///< border calls: backends, all devices
  Counter n_plans_rejected{0};
  Counter n_plans_late{0};           ///< that took longer than the policy has for one
  Counter n_policies_replaced{0};    ///< times that a fallback took the policy's place
  Counter last_progress_ns{0};       ///< engine clock when it last planned or ended a step
  StepTrace steps;                   ///< where the time of the last ones went
  std::atomic<bool> is_lost{false};  ///< its devices can never finish a step again
  Histogram<kRequestSeconds.size()> ttft_seconds{kRequestSeconds};
  Histogram<kRequestSeconds.size()> queue_seconds{kRequestSeconds};
  Histogram<kRequestSeconds.size()> e2e_seconds{kRequestSeconds};
  Histogram<kStepSeconds.size()> itl_seconds{kStepSeconds};
  Histogram<kStepSeconds.size()> step_seconds{kStepSeconds};
  Histogram<kStepSeconds.size()> plan_seconds{kStepSeconds};
  Histogram<kStepSeconds.size()> draft_seconds{kStepSeconds};  ///< the draft model before a step
  Histogram<kStepSeconds.size()> move_pause_seconds{kStepSeconds};  ///< a sequence stood still

  /// A group stands at a place from now on, on these devices of `devices`; null: not counted.
  /// [engine]
  void open_group(std::size_t place, std::span<const DeviceStats* const> of_group) {
    GroupStats& group = groups[place];
    std::uint8_t n = 0;
    for (const DeviceStats* device : of_group)
      if (device != nullptr && n < kDevicesCounted)
        group.devices[n++].store(static_cast<std::uint8_t>(device - devices.data()),
                                 std::memory_order_relaxed);
    group.n_devices.store(n, std::memory_order_release);
  }
  /// It has left. [engine]
  void close_group(std::size_t place) {
    groups[place].n_devices.store(0, std::memory_order_release);
  }

  /// The numbers of a device of this name, which go on where it comes again; null: there is no room
  /// for more. [engine]
  DeviceStats* count_device(std::string_view name) {
    const std::size_t n = n_devices.load(std::memory_order_relaxed);
    for (std::size_t d = 0; d < n; ++d)
      if (devices[d].name_text() == name) return &devices[d];
    if (n == devices.size() || name.size() >= devices[n].name.size()) return nullptr;
    std::copy(name.begin(), name.end(), devices[n].name.begin());
    n_devices.store(n + 1, std::memory_order_release);
    return &devices[n];
  }
};

/// False when the engine can serve no more: its devices are lost, or it has work and has neither
/// planned nor ended a step for `silence_max`. [any]
///
/// now   on the engine's clock; the engine may have gone on since
inline bool is_alive(const EngineStats& stats,
                     std::chrono::nanoseconds now,
                     std::chrono::nanoseconds silence_max) {
  if (stats.is_lost.load(std::memory_order_relaxed)) return false;
  // Acquire: who sees work sees the progress that was noted before it.
  const bool has_work = stats.n_running.load(std::memory_order_acquire) > 0 ||
                        stats.n_waiting.load(std::memory_order_acquire) >
                            stats.n_held.load(std::memory_order_relaxed);
  if (!has_work) return true;
  const std::chrono::nanoseconds last(stats.last_progress_ns.load(std::memory_order_relaxed));
  return last + silence_max > now;
}

}  // namespace luna::telemetry
