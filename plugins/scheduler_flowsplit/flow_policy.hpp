// FlowSplit: requests over groups of devices, by memory, queue and predicted time.
#pragma once

#include "plugins/scheduler_flowsplit/balance.hpp"
#include "plugins/scheduler_flowsplit/completion.hpp"
#include "plugins/scheduler_flowsplit/fleet.hpp"
#include "plugins/scheduler_flowsplit/flow_options.hpp"
#include "plugins/scheduler_flowsplit/group_judge.hpp"
#include "plugins/scheduler_flowsplit/queue_ends.hpp"
#include "plugins/scheduler_flowsplit/reasons.hpp"
#include "plugins/scheduler_flowsplit/role_wishes.hpp"
#include "plugins/scheduler_flowsplit/row_book.hpp"
#include "plugins/scheduler_flowsplit/row_slices.hpp"
#include "plugins/scheduler_flowsplit/slicing.hpp"
#include "plugins/scheduler_flowsplit/turn_queue.hpp"
#include "plugins/scheduler_flowsplit/wide_rows.hpp"
#include "plugins/scheduler_rules/group_step.hpp"
#include "plugins/scheduler_rules/seniority.hpp"
#include "plugins/scheduler_rules/tenant_accounts.hpp"

#include <luna/scheduler.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace luna::scheduler_flowsplit {

/// A plan: read what changed; give waiting requests to groups (GroupPicker); one step in each group
/// that has room for one (GroupStep). Every interval and at each arrival groups are judged anew.
///
/// Requests wait together, not in groups: one is given away when its group can begin with it, so
/// that it goes where room comes first. `streaming_mode` gives it away at once. One that is larger
/// than any group begins where all groups together have room for it (WideRows). [step]
class FlowPolicy final : public Scheduler {
 public:
  static constexpr bool kPlansAllGroups = true;
  static constexpr bool kHoldsBack = true;
  static constexpr bool kSlices = true;
  static constexpr auto& kReasons = scheduler_flowsplit::kReasons;

  explicit FlowPolicy(const FlowOptions& options)
      : options_(options),
        seniority_(options.ageing_ms * kNsPerMs),
        judge_(options.thresholds, std::uint64_t{kDwellIntervals} * options.interval_ns()),
        balance_(options.thresholds),
        slicing_(options.thresholds),
        picker_(static_cast<double>(options.target_itl_ms * kNsPerMs)),
        fleet_(nodes_),
        book_({seniority_, options.fair_tenants}),
        step_({options.target_itl_ms, options.adaptive_batch}, seniority_),
        limit_(static_cast<double>(options.max_queue_ms * kNsPerMs)) {}
  /// Errors  invalid_argument (thresholds in no order)
  static Result<std::unique_ptr<FlowPolicy>> create(const Settings& settings) {
    LUNA_TRY(const FlowOptions options, FlowOptions::of(settings));
    return std::make_unique<FlowPolicy>(options);
  }
  static Result<RoleWeights> role_weights(const Settings& settings) {
    return role_weights_of(settings);
  }

  [[nodiscard]] bool slices() const { return !options_.streaming_mode; }

  void plan(const Snapshot& rows, Plan& out) override {
    reserve(out.n_reqs_max());
    fleet_.read(rows);
    book_.read(rows, fleet_);
    fleet_.sweep();
    slices_.read(rows);
    if (slices(rows)) wide_.promise(wide_scene(rows, out));
    accounts_.begin();
    for (const std::uint32_t account : book_.accounts())
      accounts_.note(account);
    accounts_.settle();
    limit_.begin(rows->now_ns);
    for (const std::uint32_t i : book_.late())
      out.reject(i, LUNA_REASON_DEADLINE);
    const bool is_due = rows->now_ns >= next_decision_ns_;
    if (is_due || book_.n_arrived() > 0) judge(rows->now_ns);
    if (wide_.has_any()) wide_.make_room(wide_scene(rows, out));
    if (!options_.streaming_mode) balance(is_due, rows, out);
    assign(rows, out);
    for (std::size_t g = 0; g < fleet_.groups().size(); ++g)
      run(g, rows, out);
    limit_.end({rows, fleet_, book_, accounts_, out});
    // Whatever waits is judged again, even if nothing happens.
    if (rows.n_rows() > 0) out.wake_at(std::max(next_decision_ns_, rows->now_ns + 1));
  }

 private:
  static constexpr std::int64_t kNsPerMs = 1'000'000;
  // A group stays what it became for two decisions: what it did meanwhile shows in the third.
  static constexpr std::uint32_t kDwellIntervals = 2;
  // Rows that wait for a group of their own let others pass; so many are looked at in one plan.
  static constexpr std::uint32_t kLookAheadMax = 16;

  /// A row that this plan gives to a group, with its place among the others.
  struct Assigned {
    std::size_t group;
    std::uint32_t row;
    std::uint64_t turn;
    QueueKey key;
  };

  void reserve(std::uint32_t n_rows_max) {
    if (n_rows_max == n_rows_max_) return;
    n_rows_max_ = n_rows_max;
    nodes_.reserve(n_rows_max);
    book_.reserve(n_rows_max);
    walk_.reserve();
    for (std::vector<std::uint32_t>* rows : {&held_, &queue_})
      rows->reserve(n_rows_max);
    assigned_.reserve(n_rows_max);
  }

  void judge(std::uint64_t now_ns) {
    next_decision_ns_ = now_ns + options_.interval_ns();
    const std::size_t n_groups = fleet_.groups().size();
    const double n_shared = static_cast<double>(fleet_.nowhere().n_waiting) /
                            static_cast<double>(std::max<std::size_t>(n_groups, 1));
    for (const GroupState& group : fleet_.groups()) {
      GroupMemory& memory = fleet_.memory_of(group);
      judge_.judge(group, static_cast<double>(memory.home.n_waiting) + n_shared, now_ns, memory);
    }
  }

  [[nodiscard]] bool slices(const Snapshot& rows) const {
    return slices() && rows.takes(LUNA_VERB_SLICE);
  }
  [[nodiscard]] WideRows::Scene wide_scene(const Snapshot& rows, Plan& out) {
    return {rows, fleet_, book_, slices_, out};
  }

  // One row a group in each interval: what it did shows in the next. Where none can move as a
  // whole, a part of some does; and at any time where decoding rows are about to find no block.
  void balance(bool is_due, const Snapshot& rows, Plan& out) {
    const bool moves = rows.takes(LUNA_VERB_MOVE);
    const bool does_slice = slices(rows);
    if (fleet_.groups().size() < 2 || (!moves && !does_slice)) return;
    const Slicing::Scene scene{rows, fleet_, book_, slices_, out};
    for (std::size_t g = 0; g < fleet_.groups().size(); ++g) {
      if (!is_due) {
        if (does_slice && fleet_.groups()[g].can_start()) slicing_.relieve_short(scene, g);
        continue;
      }
      if (does_slice) slicing_.bring_back(scene, g);
      const bool has_moved = moves && move_one(g, rows, out);
      if (does_slice && !has_moved) slicing_.relieve(scene, g);
    }
  }
  bool move_one(std::size_t g, const Snapshot& rows, Plan& out) {
    const auto move = balance_.choose({rows, fleet_, book_, slices_, out}, g);
    if (!move || !out.move(move->row, move->device, move->reason)) return false;
    balance_.note(rows[move->row], rows->now_ns);
    return true;
  }

  // ---- which group

  void assign(const Snapshot& rows, Plan& out) {
    assigned_.clear();
    const TurnQueue& waiting = fleet_.nowhere().queue;
    if (waiting.empty()) return;
    begin_work(rows);
    walk_.begin(waiting, accounts_);
    bool wide_waits = false;
    std::uint32_t n_wide = 0;
    for (std::uint32_t n = 0; n < kLookAheadMax && has_open() && !walk_.is_over();) {
      const QueueKey key = walk_.key();
      const std::uint64_t turn = walk_.turn();
      const std::uint32_t i = book_.index_of(key.id);
      walk_.next(rows[i].n_wanted());
      if (out.is_planned(i)) continue;
      const bool is_wide = is_larger_than_groups(rows[i], rows, out);
      // None passes another of its kind; those that wait with it are many where all are large.
      if (is_wide && wide_waits && ++n_wide < kWideMax) continue;
      const auto choice = is_wide ? pick_wide(i, rows, out) : pick(i, rows, out);
      if (!choice) {
        ++n;
        continue;
      }
      GroupWork& work = work_[choice->group];
      const bool holds_back = !options_.streaming_mode && !work.has_room;
      if (holds_back || work.is_closed) {
        ++n;
        wide_waits |= is_wide;
        hold_back(i, is_wide, choice->group, rows, out);
        continue;
      }
      const std::uint16_t reason = work.has_room ? choice->reason : std::uint16_t{kStreaming};
      if (!out.assign(i, fleet_.groups()[choice->group].first_device, reason)) continue;
      assigned_.push_back({choice->group, i, turn, key});
      if (is_wide) wide_.admit(wide_scene(rows, out), i, choice->group, taken_);
      note_assigned(rows[i], is_wide, work, found_[choice->group]);
    }
  }
  [[nodiscard]] bool has_open() const {
    return std::any_of(
        work_.begin(), work_.end(), [](const GroupWork& work) { return !work.is_closed; });
  }

  // The row waits for that group, and nobody behind it takes its place there. One that no group
  // holds alone waits for as many as would, unless it is for others of its kind that it waits.
  void hold_back(
      std::uint32_t i, bool is_wide, std::size_t group, const Snapshot& rows, Plan& out) {
    GroupWork& work = work_[group];
    if (!is_wide) {
      work.n_prompt_tokens += rows[i]->n_prompt;
      work.n_ahead += 1.0;
      work.is_closed = true;
      return;
    }
    if (!wide_.comes_by_waiting(wide_scene(rows, out), i, group)) return;
    std::int64_t n_left = n_blocks(rows[i].n_tokens_max(), rows);
    const auto close = [&](std::size_t g) {
      work_[g].is_closed = true;
      n_left -= out.groups()[g].n_blocks_total;
    };
    close(group);
    while (n_left > 0) {
      std::size_t next = work_.size();
      for (std::size_t g = 0; g < work_.size(); ++g) {
        if (work_[g].is_closed || !WideRows::takes_parts(out, group, g)) continue;
        const auto n_free = [&](std::size_t k) { return out.groups()[k].n_blocks_free; };
        if (next == work_.size() || n_free(g) > n_free(next)) next = g;
      }
      if (next == work_.size()) return;
      close(next);
    }
  }

  void begin_work(const Snapshot& rows) {
    work_.clear();
    bool all_known = true;
    for (const GroupState& group : fleet_.groups())
      all_known &= group.cost.is_known();
    for (std::size_t g = 0; g < fleet_.groups().size(); ++g) {
      const GroupState& group = fleet_.groups()[g];
      const GroupMemory& memory = fleet_.memory_of(group);
      GroupWork& work = work_.emplace_back();
      work.cost = all_known ? group.cost : StepCost::of_tokens();
      work.n_steps_max = group.n_steps_max;
      work.n_prompt_tokens = static_cast<double>(memory.home.n_prompt_tokens);
      work.n_kv_tokens = static_cast<double>(memory.home.n_kv_tokens);
      work.n_decoding = static_cast<double>(memory.home.n_decoding);
      work.n_output_tokens = static_cast<double>(memory.home.n_output_tokens);
      work.n_held = static_cast<double>(memory.home.held.size());
      work.is_relaxed = memory.is_relaxed;
      work.is_pressed = memory.is_pressed;
      n_begun_.resize(work_.size());
      n_blocks_taken_.resize(work_.size());
      n_begun_[g] = memory.home.held.size() + memory.home.n_waiting;
      n_blocks_taken_[g] = memory.home.n_waiting_blocks(rows->kv_block_tokens);
    }
  }

  std::optional<GroupPicker::Choice> pick(std::uint32_t i, const Snapshot& rows, const Plan& out) {
    const Row row = rows[i];
    const std::uint32_t n_output = row->n_generated_max - row->n_generated;
    // What Plan::take() asks for.
    n_blocks_wanted_ = n_blocks(row->n_prompt + std::min(n_output, rows->kv_block_tokens), rows);
    find_prefixes(i, rows, out);
    for (std::size_t g = 0; g < work_.size(); ++g) {
      work_[g].is_open = out.can_assign(i, out.groups()[g]);
      work_[g].has_room = has_room(g, rows, out);
    }
    return picker_.pick({row->n_prompt, n_output}, work_, found_);
  }
  void find_prefixes(std::uint32_t i, const Snapshot& rows, const Plan& out) {
    found_.assign(work_.size(), 0);
    for (std::size_t g = 0; g < work_.size(); ++g)
      if (const luna_prefix_row* prefix = rows.prefix(i, out.groups()[g].device); prefix != nullptr)
        found_[g] = prefix->n_tokens;
  }

  // Whether no group that takes it holds it alone, and core would let it lie in several.
  [[nodiscard]] bool is_larger_than_groups(Row row, const Snapshot& rows, const Plan& out) const {
    if (!slices(rows)) return false;
    const std::int64_t n = n_blocks(row.n_tokens_max(), rows);
    return std::none_of(out.groups().begin(), out.groups().end(), [n](const GroupBooks& group) {
      return !group.is_leaving && group.n_blocks_total >= n;
    });
  }
  // As pick(): the group whose devices compute it.
  std::optional<GroupPicker::Choice> pick_wide(std::uint32_t i, const Snapshot& rows, Plan& out) {
    const Row row = rows[i];
    const WideRows::Scene scene = wide_scene(rows, out);
    taken_ = n_blocks_taken_;
    for (std::size_t g = 0; g < work_.size(); ++g)
      if (work_[g].is_closed) taken_[g] = std::max(out.groups()[g].n_blocks_free, taken_[g]);
    wide_.open(scene, taken_);
    find_prefixes(i, rows, out);
    bool any = false;
    for (std::size_t g = 0; g < work_.size(); ++g) {
      work_[g].is_open = out.can_spread(i, out.groups()[g]);
      work_[g].has_room =
          work_[g].is_open && n_begun_[g] < rows->n_seqs_max && wide_.has_room(scene, i, g);
      any |= work_[g].has_room;
    }
    // What it needs is all of theirs, so it does not wait for one while another could begin.
    if (any)
      for (GroupWork& work : work_)
        work.is_open = work.has_room;
    auto choice =
        picker_.pick({row->n_prompt, row->n_generated_max - row->n_generated}, work_, found_);
    if (choice) choice->reason = kSpread;
    return choice;
  }

  // Whether a group could begin with the request looked at, beside those that were given to it.
  [[nodiscard]] bool has_room(std::size_t g, const Snapshot& rows, const Plan& out) const {
    const GroupBooks& books = out.groups()[g];
    const std::int64_t n_left = books.n_blocks_free - books.n_blocks_reserve - n_blocks_taken_[g];
    return n_begun_[g] < rows->n_seqs_max && n_blocks_wanted_ <= n_left;
  }

  void note_assigned(Row row, bool is_wide, GroupWork& work, std::uint32_t n_found) {
    const std::size_t g = static_cast<std::size_t>(&work - work_.data());
    work.n_prompt_tokens += row->n_prompt - std::min(n_found, row->n_prompt);
    ++n_begun_[g];
    if (!is_wide) n_blocks_taken_[g] += n_blocks_wanted_;  // the other has a promise
  }

  static std::int64_t n_blocks(std::uint32_t n_tokens, const Snapshot& rows) {
    return (std::int64_t{n_tokens} + rows->kv_block_tokens - 1) / rows->kv_block_tokens;
  }

  // ---- a step of a group

  void run(std::size_t g, const Snapshot& rows, Plan& out) {
    const GroupState& group = fleet_.groups()[g];
    GroupMemory& memory = fleet_.memory_of(group);
    if (!group.can_start()) return;
    fill_held(memory.home, rows);
    fill_queue(g, memory.home, rows, out);
    if (held_.empty() && queue_.empty()) return;
    const scheduling::GroupRows view{.rows = rows,
                                     .books = out.groups()[g],
                                     .cost = group.cost,
                                     .n_steps_in_flight = group.n_steps_in_flight,
                                     .n_steps_max = group.n_steps_max,
                                     .held = held_,
                                     .queue = queue_,
                                     .turns = memory.turns};
    step_.plan(view, accounts_, out);
    limit_.note_let_in(rows, queue_, out);
  }

  // Wide rows first: others do not give way to them, nor they to others. One that waits for a copy
  // is not there.
  void fill_held(const Home& home, const Snapshot& rows) {
    held_.clear();
    if (wide_.has_any()) {
      for (const HeldRow& held : home.wide)
        if (const std::uint32_t i = book_.index_of(held.id);
            !rows[i].is_waiting() && !wide_.is_blocked(i))
          held_.push_back(i);
    }
    for (const HeldRow& held : home.held)
      if (const std::uint32_t i = book_.index_of(held.id); !wide_.is_wide(i)) held_.push_back(i);
  }

  // As much of the group's queue as one step could use, those assigned by this plan in their
  // places. Wide rows that wait there go first: what they need is kept for them, and others,
  // however senior, may wait for no more than that.
  void fill_queue(std::size_t g, const Home& home, const Snapshot& rows, const Plan& out) {
    queue_.clear();
    const std::uint64_t n_tokens_most =
        std::uint64_t{rows->n_rows_max} * kStepsAhead * fleet_.groups()[g].n_steps_max;
    std::uint64_t n_tokens = 0;
    const auto add = [&](std::uint32_t i) {
      if (out.is_planned(i) || wide_.is_blocked(i)) return;
      queue_.push_back(i);
      n_tokens += rows[i].n_wanted();
    };
    for (const HeldRow& wide : home.wide)
      if (const std::uint32_t i = book_.index_of(wide.id);
          rows[i].is_waiting() && rows[i].is_plannable())
        add(i);
    auto next = next_assigned(g, assigned_.begin());
    walk_.begin(home.queue, accounts_);
    while (queue_.size() < kQueueMin || (n_tokens < n_tokens_most && queue_.size() < kQueueMax)) {
      const bool takes_assigned =
          next != assigned_.end() &&
          (walk_.is_over() || comes_before(next->turn, next->key, walk_.turn(), walk_.key()));
      if (takes_assigned) {
        add(next->row);
        next = next_assigned(g, next + 1);
        continue;
      }
      if (walk_.is_over()) break;
      const std::uint32_t i = book_.index_of(walk_.key().id);
      walk_.next(rows[i].n_wanted());
      if (!(rows[i].is_waiting() && wide_.is_wide(i))) add(i);
    }
  }
  std::vector<Assigned>::const_iterator next_assigned(
      std::size_t g, std::vector<Assigned>::const_iterator from) const {
    return std::find_if(
        from, assigned_.end(), [g](const Assigned& assigned) { return assigned.group == g; });
  }

  // Rows of a queue that a step looks at, at least and at most: more hardly change what it does.
  static constexpr std::size_t kQueueMin = 256;
  static constexpr std::size_t kQueueMax = 1024;
  // Requests larger than a group that are passed over in one plan behind the first of them.
  static constexpr std::uint32_t kWideMax = 1024;
  // StepShare cuts what waits into so many parts a step in flight.
  static constexpr std::uint32_t kStepsAhead = 4;

  const FlowOptions options_;
  const scheduling::Seniority seniority_;
  const GroupJudge judge_;
  Balance balance_;
  RowSlices slices_;
  Slicing slicing_;
  WideRows wide_;
  GroupPicker picker_;
  NodePool nodes_;
  Fleet fleet_;
  RowBook book_;
  scheduling::TenantAccounts accounts_;
  scheduling::GroupStep step_;
  QueueEnds limit_;
  TurnWalk walk_;
  std::uint64_t next_decision_ns_ = 0;
  std::uint32_t n_rows_max_ = 0;
  // Of the plan being made:
  std::vector<Assigned> assigned_;
  std::vector<GroupWork> work_;               // by group
  std::vector<std::size_t> n_begun_;          // by group: rows that hold KV or wait there
  std::vector<std::int64_t> n_blocks_taken_;  // by group: of rows that wait there
  std::vector<std::int64_t> taken_;           // by group: for the wide row that is looked at
  std::vector<std::uint32_t> found_;          // by group
  std::int64_t n_blocks_wanted_ = 0;          // by the row that is looked at
  std::vector<std::uint32_t> held_;
  std::vector<std::uint32_t> queue_;
};

}  // namespace luna::scheduler_flowsplit
