// A policy that lets rows outgrow their group: what has no room at home is sliced to the others.
#pragma once

#include "support/engine_fixture.hpp"

#include <luna/slice_choice.hpp>

#include <algorithm>
#include <memory>
#include <vector>

namespace luna::test {

/// A value; state is reused buffers alone. One plan of it is short of cleverness, never of
/// legality.
class SlicingPolicy {
 public:
  /// n_ahead_blocks  blocks that a group keeps free for its rows to grow into
  explicit SlicingPolicy(std::uint32_t n_ahead_blocks = 2) : n_ahead_(n_ahead_blocks) {}

  luna_status operator()(const luna_snapshot& snapshot, luna_plan& plan) {
    const Snapshot rows(&snapshot);
    plan_ = &plan;
    plan.n_actions = 0;
    open_books(rows);
    for (std::uint32_t i = 0; i < rows.n_rows(); ++i) {
      const Row row = rows[i];
      std::size_t g = group_of(row->device);
      if (row.is_unassigned()) {
        g = row->id % groups_.size();
        act({i, LUNA_VERB_ASSIGN, 0, groups_[g].device, 0, {0}, {0}});
      }
      if (row.is_plannable()) run(rows, i, groups_[g]);
      if (!row.is_waiting()) make_room(rows, i, groups_[g]);
    }
    return LUNA_OK;
  }

 private:
  struct Books {
    std::uint32_t device = 0;
    std::uint32_t n_free = 0;
    std::uint32_t n_tokens = 0;
    std::uint32_t n_rows = 0;
    bool can_begin = false;
    bool is_short = false;
  };

  void open_books(const Snapshot& rows) {
    groups_.clear();
    for (std::uint32_t d = 0; d < rows.n_devices(); d = rows.group_end(d)) {
      const luna_device_row& device = rows.device(d);
      groups_.push_back({device.device,
                         device.n_kv_blocks_free,
                         rows->n_rows_max,
                         rows->n_seqs_max,
                         device.n_steps_in_flight < device.n_steps_in_flight_max,
                         false});
    }
  }
  [[nodiscard]] std::size_t group_of(std::uint32_t device) const {
    const auto found = std::ranges::find(groups_, device, &Books::device);
    return found == groups_.end() ? 0 : static_cast<std::size_t>(found - groups_.begin());
  }
  void act(const luna_action& action) { plan_->actions[plan_->n_actions++] = action; }

  /// As many tokens as there is room for.
  void run(const Snapshot& rows, std::uint32_t i, Books& books) {
    const Row row = rows[i];
    if (!books.can_begin || books.n_rows == 0) return;
    const std::uint32_t block = rows->kv_block_tokens;
    const std::uint32_t n_held = row.is_waiting() ? 0 : row->n_kv_blocks;
    const std::uint32_t n_computed = row.is_waiting() ? 0 : row->n_computed;
    std::uint32_t n_room =
        (n_held + books.n_free - std::min(books.n_free, row->n_kv_blocks_copied)) * block;
    n_room -= std::min(n_room, n_computed);
    const std::uint32_t n =
        std::min({row.is_waiting() ? row->n_prompt : row.n_wanted(), books.n_tokens, n_room});
    if (n == 0) {
      books.is_short = true;
      return;
    }
    const std::uint32_t n_blocks = (n_computed + n + block - 1) / block;
    const std::uint32_t n_taken = n_blocks > n_held ? n_blocks - n_held : 0;
    books.n_free -= std::min(books.n_free, n_taken + row->n_kv_blocks_copied);
    books.n_tokens -= n;
    --books.n_rows;
    // A waiting row runs what is left beside its prefix, which it finds where it was assigned.
    act({i,
         LUNA_VERB_RUN,
         0,
         0,
         0,
         {row.is_waiting() ? n - std::min(n - 1, row->n_computed) : n},
         {0}});
  }
  void make_room(const Snapshot& rows, std::uint32_t i, Books& books) {
    if (books.n_free >= n_ahead_) return;
    for (std::uint32_t s = 0; s < rows->n_slices; ++s)
      if (rows.slice(s).row == i && rows.slice(s).is_copying != 0) return;
    rooms_.clear();
    for (const Books& other : groups_)
      if (other.device != books.device)
        rooms_.push_back({other.device, other.n_free - std::min(other.n_free, n_ahead_)});
    for (const SliceShare& share : choice_.choose(rows, i, n_ahead_, rooms_)) {
      groups_[group_of(share.device)].n_free -= share.n_tokens / rows->kv_block_tokens;
      act({i,
           LUNA_VERB_SLICE,
           LUNA_REASON_MEMORY_HIGH,
           share.device,
           share.first_token,
           {share.n_tokens},
           {0}});
    }
  }

  std::uint32_t n_ahead_;
  luna_plan* plan_ = nullptr;
  std::vector<Books> groups_;
  std::vector<SliceRoom> rooms_;
  SliceChoice choice_;
};

/// As scheduler_of(), of a policy that slices.
inline plugin::Instance<luna_scheduler_if> slicing_scheduler(PlanFunction plan = SlicingPolicy()) {
  static constexpr luna_scheduler_if kTable = {
      {sizeof(luna_scheduler_if),
       LUNA_SCHEDULER_SLICES,
       0,
       0,
       nullptr,
       nullptr,
       [](void* self) { delete static_cast<PlanFunction*>(self); },
       nullptr},
      [](void* self, const luna_snapshot* snapshot, luna_plan* plan_out, luna_err*) {
        return (*static_cast<PlanFunction*>(self))(*snapshot, *plan_out);
      }};
  return {&kTable, new PlanFunction(std::move(plan)), "test"};
}

}  // namespace luna::test
