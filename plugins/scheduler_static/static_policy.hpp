// First come, first served, decode first: the policy that others are measured against.
#pragma once

#include <luna/scheduler.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>

namespace luna::scheduler_static {

/// Rows of higher priority first, among them the older first. In each step: one token for every
/// decoding row, then prompts that were begun, then new ones while their prompt and one block fit.
/// A decoding row that needs a block takes it from the newest row of the lowest priority. A new row
/// waits until all before it have been let in, so none is passed over for ever. [step]
class StaticPolicy final : public Scheduler {
 public:
  void plan(const Snapshot& rows, Plan& out) override {
    auto& order = out.order();
    const auto goes_first = [&](std::uint32_t a, std::uint32_t b) {
      if (rows[a]->priority != rows[b]->priority) return rows[a]->priority > rows[b]->priority;
      return a < b;  // rows stand in order of arrival, so the sort is stable without a buffer
    };
    std::sort(order.begin(), order.end(), goes_first);

    std::uint32_t n_held = 0;  // rows that hold KV
    for (const std::uint32_t i : order)
      if (!rows[i].is_waiting()) ++n_held;
    const std::uint32_t n_preempted = run_decoding(rows, out);
    for (const std::uint32_t i : order)
      if (rows[i].is_prefilling()) out.take(i);
    // A row let in now would be the next to be pre-empted.
    if (n_preempted == 0) admit(rows, out, n_held);
  }

 private:
  // Returns how many rows gave their blocks up.
  static std::uint32_t run_decoding(const Snapshot& rows, Plan& out) {
    const auto& order = out.order();
    std::uint32_t n_preempted = 0;
    std::size_t end = order.size();  // rows from here on hold nothing any more
    for (std::size_t k = 0; k < end; ++k) {
      if (!rows[order[k]].is_decoding()) continue;
      while (out.n_rows_left() > 0 && out.n_tokens_left() > 0 && !out.take(order[k])) {
        // The last of the order that still holds blocks gives them up. When only older rows are
        // left, row k keeps its own and waits for them.
        --end;
        if (end <= k) break;
        if (out.preempt(order[end])) ++n_preempted;
      }
    }
    return n_preempted;
  }

  static void admit(const Snapshot& rows, Plan& out, std::uint32_t n_held) {
    for (const std::uint32_t i : out.order()) {
      if (!rows[i].is_waiting()) continue;
      if (n_held >= rows->n_seqs_max || !out.take(i)) return;
      ++n_held;
    }
  }
};

}  // namespace luna::scheduler_static
