// How long the queue will take to drain, for those who would join it.
#pragma once

#include "core/base/clock.hpp"
#include "core/engine/sequence.hpp"

#include <luna/drain_rate.hpp>

#include <atomic>
#include <cstdint>

namespace luna::engine {

/// Measured in tokens of prompts, whatever the policy's order. [engine] but for wait(); owned by
/// the engine.
class QueueGauge {
 public:
  /// A plan begins.
  void begin(Nanoseconds now) { drain_.begin(static_cast<std::uint64_t>(now.count())); }
  /// A request's first step begins.
  void let_in(std::uint32_t n_prompt) { drain_.let_in(n_prompt); }
  /// The plan has been carried out.
  void end(const SequenceTable& sequences) {
    std::uint64_t n_tokens = 0;
    for (const std::uint32_t slot : sequences.order())
      if (sequences[slot].phase == Phase::waiting) n_tokens += sequences[slot].n_prefill;
    drain_.end(n_tokens > 0);
    wait_ns_.store(static_cast<Nanoseconds::rep>(drain_.wait_ns(static_cast<double>(n_tokens))),
                   std::memory_order_relaxed);
  }

  /// Until what waits now will have been let in; 0 when nothing waits or nothing was measured.
  /// [any]
  [[nodiscard]] Nanoseconds wait() const {
    return Nanoseconds(wait_ns_.load(std::memory_order_relaxed));
  }

 private:
  DrainRate drain_;
  std::atomic<Nanoseconds::rep> wait_ns_{0};
};

}  // namespace luna::engine
