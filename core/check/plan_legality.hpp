// Whether a plan is legal by the rules of abi/scheduler.h: what core's gate refuses, said in words.
// It knows of KV what a snapshot tells.
#pragma once

#include <luna/abi/scheduler.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna::check {

/// A rule that a plan breaks.
struct PlanBreach {
  std::string_view rule;  ///< of core/check/rules.hpp
  std::string text;       ///< with the row
};

/// The rules, over one snapshot and its plan. Rows have the sizes of this build.
class PlanLegality {
 public:
  PlanLegality(const luna_snapshot& snapshot, const luna_plan& plan) : s_(snapshot), plan_(plan) {
    for (std::uint32_t d = 0; d < s_.n_devices; ++d) {
      const luna_device_row& device = s_.devices[d];
      if (d > 0 && s_.devices[d - 1].group == device.group) {
        groups_.back().n_blocks_left =
            std::min<std::int64_t>(groups_.back().n_blocks_left, device.n_kv_blocks_free);
        continue;
      }
      groups_.push_back({.first = device.device,
                         .n_blocks_left = device.n_kv_blocks_free,
                         .n_blocks_reserve = device.n_kv_blocks_reserve,
                         .has_free_step = device.n_steps_in_flight < device.n_steps_in_flight_max ||
                                          device.n_steps_in_flight_max == 0});
    }
  }

  /// Everything that is wrong; empty: legal.
  std::vector<PlanBreach> faults() {
    faults_.clear();
    if (plan_.n_actions > plan_.n_actions_max) {
      blame("more actions than there is room for", 0, "O3");
      return faults_;
    }
    const std::span actions(plan_.actions, plan_.n_actions);
    for (const luna_action& action : actions)
      if (action.verb == LUNA_VERB_PREEMPT || action.verb == LUNA_VERB_REJECT) end(action);
    for (const luna_action& action : actions)
      carry_out(action);
    const bool waits = s_.n_reqs > 0 && !is_copying();
    if (waits && actions.empty() && plan_.wake_at_ns == 0 && s_.n_steps_in_flight == 0)
      blame("changes nothing", 0, "S5");
    return faults_;
  }

 private:
  static constexpr std::string_view kBudget = "S2";
  struct Group {
    std::uint32_t first;  // device
    std::int64_t n_blocks_left;
    std::int64_t n_blocks_reserve;
    bool has_free_step;
    std::uint32_t n_tokens = 0;
    std::uint32_t n_rows = 0;
  };

  void blame(const char* what, std::uint32_t row, std::string_view rule = "S1") {
    faults_.push_back({rule, "row " + std::to_string(row) + ": " + what});
  }
  Group* group_of(std::uint32_t device) {
    Group* found = nullptr;
    for (Group& group : groups_)
      if (group.first <= device) found = &group;
    return device == LUNA_NO_DEVICE ? nullptr : found;
  }
  [[nodiscard]] std::int64_t blocks(std::uint32_t n_tokens) const {
    return (std::int64_t{n_tokens} + s_.kv_block_tokens - 1) / s_.kv_block_tokens;
  }
  // Its group, as the plan leaves it.
  [[nodiscard]] std::uint32_t device_of(std::uint32_t row) const {
    const auto assigned = assigned_.find(row);
    return assigned != assigned_.end() ? assigned->second : s_.reqs[row].device;
  }

  // The end of a copy brings the next plan.
  [[nodiscard]] bool is_copying() const {
    const std::span rows(s_.reqs, s_.n_reqs);
    const std::span slices(s_.slices, s_.n_slices);
    return std::any_of(rows.begin(),
                       rows.end(),
                       [](const luna_req_row& row) { return row.moving_to != LUNA_NO_DEVICE; }) ||
           std::any_of(slices.begin(), slices.end(), [](const luna_slice_row& slice) {
             return slice.is_copying != 0;
           });
  }

  void end(const luna_action& action) {
    if (action.row >= s_.n_reqs) return blame("no such row", action.row);
    const luna_req_row& row = s_.reqs[action.row];
    if (row.n_steps > 0) return blame("ended while it is in a step", action.row);
    if (action.verb == LUNA_VERB_PREEMPT && row.state == LUNA_REQ_WAITING)
      return blame("pre-empted while it holds nothing", action.row);
    if (++n_actions_of_[action.row] > 1) return blame("named twice", action.row);
    ended_.insert(action.row);
    if (Group* group = group_of(row.device); group != nullptr && row.state != LUNA_REQ_WAITING)
      group->n_blocks_left += row.n_kv_blocks_freed;
  }

  void carry_out(const luna_action& action) {
    if (action.verb >= 32 || (s_.verbs >> action.verb & 1U) == 0)
      return blame("a verb that core does not carry out", action.row);
    switch (action.verb) {
      case LUNA_VERB_PREEMPT:
      case LUNA_VERB_REJECT:
        named_.insert(action.row);
        return;
      case LUNA_VERB_RUN:
        return run(action);
      case LUNA_VERB_ASSIGN:
        return assign(action);
      case LUNA_VERB_SLICE:
        return slice(action);
      case LUNA_VERB_MOVE:
        return move(action);
      default:
        return blame("a verb that no policy needs", action.row);
    }
  }

  void assign(const luna_action& action) {
    if (action.row >= s_.n_reqs) return blame("no such row", action.row);
    if (!is_device(action.device)) return blame("assigned to no device", action.row);
    if (s_.reqs[action.row].state != LUNA_REQ_WAITING)
      return blame("assigned while it runs", action.row);
    if (named_.contains(action.row)) return blame("assigned after it was named", action.row);
    if (device(action.device).is_leaving != 0) return blame("to a group that leaves", action.row);
    if (!assigned_.emplace(action.row, group_of(action.device)->first).second)
      blame("assigned twice", action.row);
  }

  void run(const luna_action& action) {
    if (action.row >= s_.n_reqs) return blame("no such row", action.row);
    const luna_req_row& row = s_.reqs[action.row];
    if (++n_actions_of_[action.row] > 1) return blame("named twice", action.row);
    named_.insert(action.row);
    Group* const group = group_of(device_of(action.row));
    if (group == nullptr) return blame("runs in no group", action.row);
    if (!group->has_free_step) return blame("runs in a group that has no step free", action.row);
    const std::uint32_t n_first = first_token(action.row);
    const bool decodes = row.state == LUNA_REQ_DECODE;
    const std::uint32_t n_wanted =
        decodes ? (row.n_steps > 0 ? 0 : 1 + row.n_draft) : row.n_prompt - n_first;
    if (action.n_tokens == 0 || action.n_tokens > n_wanted)
      return blame("runs more or fewer tokens than it has", action.row);
    group->n_tokens += action.n_tokens;
    if (group->n_tokens > s_.n_rows_max)
      return blame("one token more than a step", action.row, kBudget);
    if (++group->n_rows > s_.n_seqs_max)
      return blame("one row more than a step", action.row, kBudget);
    take_blocks(*group, action, n_first);
  }

  // Where its next token stands: a waiting row begins behind what the prefix cache of its group
  // has.
  [[nodiscard]] std::uint32_t first_token(std::uint32_t row) const {
    const auto assigned = assigned_.find(row);
    if (assigned == assigned_.end()) return s_.reqs[row].n_computed;
    const luna_prefix_row* prefix = prefix_of(row, assigned->second);
    return prefix != nullptr ? prefix->n_tokens : 0;
  }

  void take_blocks(Group& group, const luna_action& action, std::uint32_t n_first) {
    const luna_req_row& row = s_.reqs[action.row];
    std::int64_t n_has = row.n_kv_blocks;
    std::int64_t n_spared = 0;
    if (row.state == LUNA_REQ_WAITING) {
      const auto assigned = assigned_.find(action.row);
      n_has = row.n_kv_blocks_shared;
      if (assigned != assigned_.end()) {
        const luna_prefix_row* prefix = prefix_of(action.row, assigned->second);
        n_has = prefix != nullptr ? prefix->n_kv_blocks_shared : 0;
      }
      n_spared = has_holders(group) ? group.n_blocks_reserve : 0;
    }
    const std::int64_t n_needed =
        std::max<std::int64_t>(blocks(n_first + action.n_tokens) - n_has, 0) +
        row.n_kv_blocks_copied;
    if (n_needed + n_spared > group.n_blocks_left)
      return blame("too few KV blocks", action.row, kBudget);
    group.n_blocks_left -= n_needed;
  }
  [[nodiscard]] bool has_holders(const Group& group) {
    for (std::uint32_t i = 0; i < s_.n_reqs; ++i)
      if (s_.reqs[i].state != LUNA_REQ_WAITING && group_of(s_.reqs[i].device) == &group)
        return true;
    return false;
  }

  void slice(const luna_action& action) {
    if (action.row >= s_.n_reqs) return blame("no such row", action.row);
    const luna_req_row& row = s_.reqs[action.row];
    if (row.state == LUNA_REQ_WAITING) return blame("sliced while it holds nothing", action.row);
    if (!is_device(action.device)) return blame("sliced to no device", action.row);
    const std::uint64_t end = std::uint64_t{action.first_token} + action.n_tokens;
    if (action.first_token % LUNA_PARTITION_TOKENS != 0 ||
        action.n_tokens % LUNA_PARTITION_TOKENS != 0 || action.n_tokens == 0)
      return blame("cut within a partition", action.row);
    if (action.first_token < row.slice_first_token || end > row.slice_end_token)
      return blame("sliced outside of what may be sliced of it", action.row);
    if (device(action.device).attention != device(row.device).attention)
      return blame("sliced to a device of other arithmetic", action.row);
    const std::uint32_t set = device(action.device).slice_set;
    if (set == 0 || set != device(row.device).slice_set)
      return blame("sliced to a group that holds no parts of its own", action.row);
    Group* const to = group_of(action.device);
    if (device(action.device).is_leaving != 0 && to != group_of(row.device))
      return blame("to a group that leaves", action.row);
    if (!lies_together(action, *to)) return;
    if (ended_.contains(action.row)) return blame("sliced, and ended by the same plan", action.row);
    for (const luna_action& other : sliced_)
      if (other.row == action.row && other.first_token < end &&
          action.first_token < other.first_token + other.n_tokens)
        return blame("a part of it is sliced twice", action.row);
    sliced_.push_back(action);
    to->n_blocks_left -= blocks(action.n_tokens);
    if (to->n_blocks_left < 0) blame("sliced to where it has no room", action.row, kBudget);
  }

  // In one group, not the one that it goes to, and not on its way. False: it was blamed.
  bool lies_together(const luna_action& action, const Group& to) {
    const std::uint64_t end = std::uint64_t{action.first_token} + action.n_tokens;
    std::set<const Group*> holders;
    std::uint64_t n_away = 0;
    for (std::uint32_t i = 0; i < s_.n_slices; ++i) {
      const luna_slice_row& part = s_.slices[i];
      const std::uint64_t part_end = std::uint64_t{part.first_token} + part.n_tokens;
      if (part.row != action.row || part_end <= action.first_token || part.first_token >= end)
        continue;
      if (part.is_copying != 0) {
        blame("sliced while it is being copied", action.row);
        return false;
      }
      holders.insert(group_of(part.device));
      n_away +=
          std::min(end, part_end) - std::max<std::uint64_t>(action.first_token, part.first_token);
    }
    if (n_away < action.n_tokens) holders.insert(group_of(s_.reqs[action.row].device));
    if (holders.size() == 1 && *holders.begin() != &to) return true;
    blame(holders.size() > 1 ? "sliced out of two groups at once" : "sliced to where it is",
          action.row);
    return false;
  }

  void move(const luna_action& action) {
    if (action.row >= s_.n_reqs) return blame("no such row", action.row);
    const luna_req_row& row = s_.reqs[action.row];
    if (row.state == LUNA_REQ_WAITING) return blame("moved while it holds nothing", action.row);
    if (!is_device(action.device)) return blame("moved to no device", action.row);
    if (row.moving_to != LUNA_NO_DEVICE) return blame("moved while it moves", action.row);
    for (std::uint32_t s = 0; s < s_.n_slices; ++s)
      if (s_.slices[s].row == action.row) return blame("moved while it is sliced", action.row);
    Group* const to = group_of(action.device);
    if (to == group_of(row.device)) return blame("moved to where it is", action.row);
    if (device(action.device).is_leaving != 0) return blame("to a group that leaves", action.row);
    if (device(action.device).attention != device(row.device).attention)
      return blame("moved to a group of other arithmetic", action.row);
    to->n_blocks_left -= row.n_kv_blocks;
    if (to->n_blocks_left < 0) blame("moved to where it has no room", action.row, kBudget);
  }

  [[nodiscard]] const luna_prefix_row* prefix_of(std::uint32_t row, std::uint32_t device) const {
    for (std::uint32_t p = 0; p < s_.n_prefixes; ++p)
      if (s_.prefixes[p].row == row && s_.prefixes[p].device == device) return &s_.prefixes[p];
    return nullptr;
  }
  [[nodiscard]] bool is_device(std::uint32_t number) const {
    const std::span devices(s_.devices, s_.n_devices);
    return std::any_of(devices.begin(), devices.end(), [number](const luna_device_row& row) {
      return row.device == number;
    });
  }
  [[nodiscard]] const luna_device_row& device(std::uint32_t number) const {
    for (std::uint32_t d = 0; d < s_.n_devices; ++d)
      if (s_.devices[d].device == number) return s_.devices[d];
    return s_.devices[0];
  }

  const luna_snapshot& s_;
  const luna_plan& plan_;
  std::vector<Group> groups_;
  std::map<std::uint32_t, std::uint32_t> assigned_;  // row to first device
  std::map<std::uint32_t, std::uint32_t> n_actions_of_;
  std::set<std::uint32_t> named_;    // by actions that came before, but ASSIGN
  std::set<std::uint32_t> ended_;    // by PREEMPT or REJECT
  std::vector<luna_action> sliced_;  // actions SLICE so far
  std::vector<PlanBreach> faults_;
};

}  // namespace luna::check
