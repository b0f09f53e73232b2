// What of the work goes into this step, where several are in flight.
#pragma once

#include "plugins/scheduler_rules/decode_turns.hpp"

#include <luna/scheduler.hpp>
#include <luna/step_cost.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace luna::scheduling {

/// Devices in a row work all the time when as many steps as there are devices are in flight and
/// each takes them as long: a longer one holds up those behind it, a shorter one leaves a gap. So a
/// step takes its part of the decoding rows, by their cost, those first that have waited longest;
/// what the others leave comes with the next step. A row that is alone never waits for company, and
/// no step stays empty while a row could run. With one step at a time it takes all. [step], owned
/// by the policy.
class StepShare {
 public:
  /// Chooses among the decoding rows whose turn it is.
  void choose(const GroupRows& group, const DecodeTurns& turns, Plan& out) {
    const Snapshot& rows = group.rows;
    is_whole_ = group.n_steps_max == 1;
    if (is_whole_) return;
    const StepCost cost = group.cost.is_known() ? group.cost : StepCost::of_tokens();
    is_taken_.reserve(out.n_reqs_max());
    waiting_.reserve(out.n_reqs_max());
    is_taken_.assign(rows.n_rows(), 0);
    waiting_.clear();
    double total = 0.0;  // with those that are in other steps
    for (const std::uint32_t i : group.held) {
      if (!rows[i].is_decoding() || !turns.runs(i)) continue;
      total += cost.chunk_ns(rows[i], 1);
      if (!rows[i].is_in_step()) waiting_.push_back(i);
    }
    std::sort(waiting_.begin(), waiting_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return rows[a]->last_step_ns != rows[b]->last_step_ns
                 ? rows[a]->last_step_ns < rows[b]->last_step_ns
                 : a < b;
    });
    const double share = total / group.n_steps_max;
    double taken = 0.0;
    for (const std::uint32_t i : waiting_) {
      const double row = cost.chunk_ns(rows[i], 1);
      if (taken > 0.0 && taken + row / 2.0 > share) break;  // the nearer of the two
      taken += row;
      is_taken_[i] = 1;
    }
  }

  /// Whether a decoding row whose turn it is runs in this step.
  [[nodiscard]] bool takes(std::uint32_t row) const { return is_whole_ || is_taken_[row] != 0; }

  /// Tokens of prompts that a step computes. A prompt passes the devices in parts, the next behind
  /// the last: they work at the same time for all but the time of a part.
  ///
  /// beside_decoding  steps have rows that decode too: these make use of the weights, so parts may
  ///                  be small
  /// has_stalled      rows that had begun to answer are to be computed again
  static std::uint32_t n_prompt_tokens(const GroupRows& group,
                                       bool beside_decoding,
                                       bool has_stalled = false) {
    const Snapshot& rows = group.rows;
    const std::uint32_t n_steps = group.n_steps_max;
    if (n_steps == 1) return rows->n_rows_max;
    std::uint64_t n_tokens = 0;
    for (const std::uint32_t i : group.queue)
      n_tokens += rows[i].n_wanted();
    const std::uint64_t n_part = n_tokens / (std::uint64_t{kPartsPerStep} * n_steps) + 1;
    const std::uint64_t n_min = has_stalled       ? kPartStalled
                                : beside_decoding ? kPartMinBesideDecoding
                                                  : kPartMin;
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(std::max(n_part, n_min), rows->n_rows_max));
  }

  /// Tokens of rows that had begun to answer, in a step: equal parts, so that no step waits for a
  /// longer one, and large against the rows that decode beside them.
  static constexpr std::uint32_t kPartStalled = 256;

  /// The part of the queue, from its head on, whose prompts this step may compute. Where further
  /// steps could begin now, each gets whole prompts, as long as they are short, and about as many
  /// tokens as the others.
  ///
  /// n_tokens  of prompts, in a step
  static std::span<const std::uint32_t> of_queue(const GroupRows& group, std::uint32_t n_tokens) {
    const Snapshot& rows = group.rows;
    const std::span<const std::uint32_t> queue = group.queue;
    if (group.n_steps_free() == 1) return queue;
    const auto next_tokens = [&](std::uint32_t i) -> double {
      return std::min(rows[i].n_wanted(), n_tokens);
    };
    double total = 0.0;
    for (const std::uint32_t i : queue)
      total += next_tokens(i);
    const double share = total / group.n_steps_free();
    double taken = 0.0;
    std::size_t n = 0;
    while (n < queue.size() && (n == 0 || taken + next_tokens(queue[n]) / 2.0 <= share))
      taken += next_tokens(queue[n++]);
    return queue.first(n);
  }

 private:
  // Of what waits, each step takes so small a part that the last device begins soon; and no smaller
  // one than it takes to use the weights well that are read for it.
  static constexpr std::uint32_t kPartsPerStep = 4;
  static constexpr std::uint64_t kPartMin = 64;
  static constexpr std::uint64_t kPartMinBesideDecoding = 16;

  bool is_whole_ = true;
  std::vector<std::uint8_t> is_taken_;  // by row
  std::vector<std::uint32_t> waiting_;  // decoding rows that are in no step
};

}  // namespace luna::scheduling
