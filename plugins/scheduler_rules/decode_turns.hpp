// Which decoding rows run in a step, so that a few long conversations do not slow all others.
#pragma once

#include "plugins/scheduler_rules/group_rows.hpp"

#include <luna/step_cost.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace luna::scheduling {

/// Decoding rows by the KV that they read, ascending: a row is long when reading its KV takes
/// longer than the whole step without it and the longer ones. The long ones take turns, in order of
/// arrival, and get in the mean as much time as all others, or more where they are more: each other
/// row's mean gap is at most twice what it is without them (where long ones are the fewer), and no
/// long one runs at less than half the pace of a batch of all. Without fitted costs, and where all
/// rows are long, every row runs in every step. Where several steps are in flight, it is about
/// those that are in none. [step], owned by the policy.
class DecodeTurns {
 public:
  /// Chooses among the decoding rows of a group.
  ///
  /// cost  of the group's steps; none known: all run
  void choose(const GroupRows& group, const StepCost& cost, const Plan& out) {
    const Snapshot& rows = group.rows;
    skipped_.reserve(out.n_reqs_max());
    by_kv_.reserve(out.n_reqs_max());
    skipped_.assign(rows.n_rows(), 0);
    by_kv_.clear();
    double longest = 0.0;
    double step_ns = cost.fixed_ns;
    for (const std::uint32_t i : group.held) {
      if (!rows[i].is_decoding() || rows[i].is_in_step()) continue;
      by_kv_.push_back(i);
      longest = std::max(longest, kv_ns(rows[i], cost));
      step_ns += cost.row_ns;
    }
    if (longest <= step_ns) {  // with unknown costs both are 0
      group.turns.credit_ns = 0.0;
      return;
    }
    const std::size_t n_short = split(rows, cost, step_ns);
    if (n_short == 0 || n_short == by_kv_.size()) {
      group.turns.credit_ns = 0.0;
      return;
    }
    serve(group, cost, step_ns, n_short);
  }

  [[nodiscard]] bool runs(std::uint32_t row) const { return skipped_[row] == 0; }

 private:
  static double kv_ns(Row row, const StepCost& cost) { return cost.chunk_ns(row, 1) - cost.row_ns; }

  // Sorts by_kv_; step_ns becomes the time of a step of the short ones. Returns how many they are.
  std::size_t split(const Snapshot& rows, const StepCost& cost, double& step_ns) {
    std::sort(by_kv_.begin(), by_kv_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return rows[a]->n_computed != rows[b]->n_computed ? rows[a]->n_computed < rows[b]->n_computed
                                                        : a < b;
    });
    std::size_t n_short = 0;
    while (n_short < by_kv_.size()) {
      const double ns = kv_ns(rows[by_kv_[n_short]], cost);
      if (ns > step_ns) break;
      step_ns += ns;
      ++n_short;
    }
    return n_short;
  }

  // The long rows in turn, as far as their time reaches; the others are skipped.
  //
  // short_ns  of a step of the short ones, which are n_short
  void serve(const GroupRows& group, const StepCost& cost, double short_ns, std::size_t n_short) {
    const Snapshot& rows = group.rows;
    TurnCredit& turns = group.turns;
    const std::span<std::uint32_t> long_rows = std::span(by_kv_).subspan(n_short);
    std::sort(long_rows.begin(), long_rows.end());  // in order of arrival, hence of ids
    const auto n_long = static_cast<double>(long_rows.size());
    double all_ns = 0.0;
    for (const std::uint32_t i : long_rows) {
      skipped_[i] = 1;
      all_ns += kv_ns(rows[i], cost);
    }
    turns.credit_ns += short_ns * std::max(1.0, n_long / static_cast<double>(n_short));
    turns.credit_ns = std::min(turns.credit_ns, all_ns);
    auto next = std::find_if(long_rows.begin(), long_rows.end(), [&](std::uint32_t i) {
      return rows[i]->id > turns.last_served_id;
    });
    for (std::size_t n = 0; n < long_rows.size(); ++n, ++next) {
      if (next == long_rows.end()) next = long_rows.begin();
      const double ns = kv_ns(rows[*next], cost);
      if (ns > turns.credit_ns) return;
      turns.credit_ns -= ns;
      skipped_[*next] = 0;
      turns.last_served_id = rows[*next]->id;
    }
  }

  std::vector<std::uint8_t> skipped_;  // by row
  std::vector<std::uint32_t> by_kv_;   // decoding rows
};

}  // namespace luna::scheduling
