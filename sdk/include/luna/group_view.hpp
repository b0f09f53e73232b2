// One group's part of the tables and of the plan, for policies that know of one group only.
#pragma once

#include <luna/plan.hpp>
#include <luna/plugin.hpp>
#include <luna/snapshot.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace luna {

/// A snapshot of the rows and devices of one group, and a plan whose actions go to the end of the
/// whole one. Its buffers are reused.
class GroupView {
 public:
  /// Copies the group's rows, those that `whole` has just assigned to it among them. Returns false
  /// when there are none.
  bool open(const luna_snapshot& tables,
            const Plan& whole,
            const GroupBooks& books,
            const luna_plan& out) {
    const Snapshot rows(&tables);
    rows_.reserve(whole.n_reqs_max());
    indices_.reserve(whole.n_reqs_max());
    rows_.clear();
    indices_.clear();
    for (std::uint32_t i = 0; i < rows.n_rows(); ++i) {
      if (whole.group_of(i) != &books) continue;
      indices_.push_back(i);
      luna_req_row& row = rows_.emplace_back();
      std::memcpy(
          &row, rows[i].operator->(), std::min(sizeof(row), std::size_t{tables.req_stride}));
      row.device = books.device;
      if (!whole.is_assigned(i)) continue;
      row.n_computed = row.n_cached = whole.n_found_tokens(i);
      row.n_kv_blocks_shared = whole.n_found_blocks_shared(i);
    }
    const luna_device_row& device = rows.device(books.first_row);
    snapshot_ = copy_record(tables);
    snapshot_.reqs = rows_.data();
    snapshot_.req_stride = sizeof(luna_req_row);
    snapshot_.n_reqs = static_cast<std::uint32_t>(rows_.size());
    snapshot_.devices = &device;
    snapshot_.n_devices = books.n_devices;
    snapshot_.n_slices = 0;
    snapshot_.n_prefixes = 0;
    snapshot_.n_steps_in_flight = device.n_steps_in_flight;
    snapshot_.n_steps_in_flight_max = device.n_steps_in_flight_max;
    plan_ = copy_record(out);
    plan_.actions = out.actions + out.n_actions;
    plan_.n_actions_max = out.n_actions_max - out.n_actions;
    return !rows_.empty();
  }

  [[nodiscard]] const luna_snapshot& snapshot() const { return snapshot_; }
  [[nodiscard]] luna_plan& plan() { return plan_; }

  /// Takes the actions over into the whole plan.
  void close(luna_plan& out) const {
    for (std::uint32_t a = 0; a < plan_.n_actions; ++a)
      plan_.actions[a].row = indices_[plan_.actions[a].row];
    out.n_actions += plan_.n_actions;
    const bool wakes_first =
        plan_.wake_at_ns != 0 && (out.wake_at_ns == 0 || plan_.wake_at_ns < out.wake_at_ns);
    if (wakes_first) out.wake_at_ns = plan_.wake_at_ns;
  }

 private:
  luna_snapshot snapshot_{};
  luna_plan plan_{};
  std::vector<luna_req_row> rows_;
  std::vector<std::uint32_t> indices_;  // of these rows in the whole snapshot
};

}  // namespace luna
