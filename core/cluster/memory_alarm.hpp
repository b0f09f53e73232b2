// Decides what is done about a worker whose process takes more memory than it should.
#pragma once

#include "core/base/clock.hpp"
#include "core/cluster/messages.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace luna::cluster {

/// What is done about a worker, in this order.
enum class ReliefStep : std::uint8_t {
  relieve,  ///< what nobody uses is given back
  move,     ///< sequences go to groups of other devices
  drain,    ///< its layers go to other workers
  restart,  ///< it ends, to be started again
};
const char* name_of(ReliefStep step);

struct ReliefOrder {
  std::string worker;
  ReliefStep step = ReliefStep::relieve;

  friend bool operator==(const ReliefOrder&, const ReliefOrder&) = default;
};

/// Bytes that can be had back by no eviction: KV is given up when it must be, whoever uses it, and
/// spare weights are.
std::uint64_t bytes_held(const MemoryReport& report);
/// What they may be: the percentage of the budget; or, where the planned weights alone come near
/// it, these and as much as the percentage leaves of the budget.
std::uint64_t bytes_held_max(const MemoryReport& report, std::uint32_t percent);

/// A worker that was above its limit without a break for `patience` is treated, step by step, with
/// a quarter of that time for each to show; back below it before the drain, it is well. From the
/// drain on it is restarted whatever it reports: without its layers it looks well, and the leak is
/// still there. One worker at a time, until it is back or has been gone for `patience`. Pure: time
/// and reports come from outside. Owned by whoever carries the orders out, on one thread.
class MemoryAlarm {
 public:
  struct Options {
    std::uint32_t percent = 85;
    Nanoseconds patience = std::chrono::seconds(60);
  };
  explicit MemoryAlarm(const Options& options) : options_(options) {}

  void note(const std::string& worker, const MemoryReport& report, Nanoseconds now);
  void note_gone(const std::string& worker, Nanoseconds now);
  /// The last order cannot be carried out: nobody takes its sequences, or its layers.
  void note_refused(Nanoseconds now);
  /// Nothing lies on the worker that was drained.
  void note_drained();

  /// What shall be done now, each step once; none: nothing.
  std::optional<ReliefOrder> next(Nanoseconds now);
  /// The worker that is treated, and the step that was ordered last.
  [[nodiscard]] const std::optional<ReliefOrder>& treated() const { return treated_; }
  [[nodiscard]] bool is_above(const std::string& worker) const;
  [[nodiscard]] std::uint32_t n_above() const;

 private:
  struct Watched {
    Nanoseconds noted_at{0};
    std::optional<Nanoseconds> above_since;
  };

  [[nodiscard]] bool has_ended(Nanoseconds now) const;
  std::optional<ReliefOrder> go_on(Nanoseconds now);
  std::optional<ReliefOrder> begin(Nanoseconds now);
  ReliefOrder order(ReliefStep step, Nanoseconds now);

  const Options options_;
  std::map<std::string, Watched> watched_;
  std::optional<ReliefOrder> treated_;
  Nanoseconds ordered_at_{0};
  bool is_refused_ = false;  // the last order
  bool is_drained_ = false;
  bool is_away_ = false;  // the treated worker has gone
};

}  // namespace luna::cluster
