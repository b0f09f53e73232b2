// Refuses requests that would wait too long, before their clients have waited.
#pragma once

#include <luna/drain_rate.hpp>
#include <luna/step_cost.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace luna::scheduling {

/// Ends waiting rows that never ran and have waited, or by the queue before them will wait, more
/// than max_queue_ms; and rows whose prompt cannot be computed before their deadline. [step], owned
/// by the policy.
class QueueLimit {
 public:
  explicit QueueLimit(double max_queue_ns) : max_queue_ns_(max_queue_ns) {}

  void begin(std::uint64_t now_ns) { drain_.begin(now_ns); }

  /// Rejects what is too late already. Before the rows are ordered.
  static void reject_late(const Snapshot& rows, const StepCost& cost, Plan& out) {
    for (std::uint32_t i = 0; i < rows.n_rows(); ++i)
      if (is_too_late(rows[i], rows->now_ns, cost)) out.reject(i, LUNA_REASON_DEADLINE);
  }
  /// Whether a row's prompt can no longer be computed before its deadline.
  static bool is_too_late(Row row, std::uint64_t now_ns, const StepCost& cost) {
    if (row->deadline_ns == 0 || row.is_decoding()) return false;
    const double alone = cost.fixed_ns + cost.chunk_ns(row, row.n_wanted());
    return kSurely * alone > static_cast<double>(row->deadline_ns) - static_cast<double>(now_ns);
  }

  /// Who was let in by this plan.
  void note_let_in(const Snapshot& rows, std::span<const std::uint32_t> queue, const Plan& out) {
    for (const std::uint32_t i : queue)
      if (rows[i].is_waiting() && out.is_planned(i)) drain_.let_in(rows[i].n_wanted());
  }
  /// After the step was divided: who was let in, and who waits on or has waited enough.
  void settle(const Snapshot& rows,
              std::span<const std::uint32_t> queue,
              const StepCost& cost,
              Plan& out) {
    note_let_in(rows, queue, out);
    double n_before = 0.0;   // tokens of rows that wait
    double ns_before = 0.0;  // of all prompts, computed without a pause, one after the other
    bool is_backlogged = false;
    for (const std::uint32_t i : queue) {
      const Row row = rows[i];
      if (row.is_waiting() && !out.is_planned(i)) {
        if (refuse(i, row, wait_ns(n_before, ns_before / rows.n_steps_in_flight_max()), out))
          continue;
        n_before += row.n_wanted();
        is_backlogged = true;
      }
      ns_before += cost.chunk_ns(row, row.n_wanted());
    }
    end(is_backlogged);
  }

  /// The same in parts, for who knows the queue's sums: whether there is a limit; how long a row
  /// waits behind so many tokens, whose computation alone would take `least_ns`; refuses row i if
  /// that is too long; whether some wait on.
  [[nodiscard]] bool is_on() const { return max_queue_ns_ > 0.0; }
  [[nodiscard]] double wait_ns(double n_tokens_before, double least_ns) const {
    return std::max(drain_.wait_ns(n_tokens_before), least_ns);
  }
  bool refuse(std::uint32_t i, Row row, double wait_ns, Plan& out) const {
    if (!is_too_long(row, wait_ns)) return false;
    const double wait_ms = std::ceil(row.waited_ms() + wait_ns * 1e-6);
    return out.reject_for_queue(i,
                                static_cast<std::uint32_t>(std::min(wait_ms, kTellableMs)),
                                static_cast<std::uint32_t>(max_queue_ns_ * 1e-6));
  }
  void end(bool is_backlogged) { drain_.end(is_backlogged); }

 private:
  // Fitted costs can be a little too high, and a wrong refusal is worse than some work in vain.
  static constexpr double kSurely = 0.8;
  static constexpr double kTellableMs = UINT32_MAX;

  [[nodiscard]] bool is_too_long(Row row, double wait_ns) const {
    // Who ran before has waited for it already.
    const bool is_new = row->n_preempted == 0 && row->n_generated == 0;
    const double waited_ns = row.waited_ms() * 1e6;
    return max_queue_ns_ > 0.0 && is_new && waited_ns + wait_ns > max_queue_ns_;
  }

  const double max_queue_ns_;
  DrainRate drain_;  // of tokens of prompts
};

}  // namespace luna::scheduling
