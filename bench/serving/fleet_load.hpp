// The tables of a fleet under constant load, as an engine would show them: for the time of plans
// alone. Steps of the groups end one after the other; every plan is carried out.
#pragma once

#include <luna/abi/scheduler.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace luna::bench {

struct FleetLoadOptions {
  std::uint32_t n_rows = 10'000;  ///< alive at any time: who ends is replaced
  std::uint32_t n_groups = 64;
  std::uint32_t n_devices_per_group = 1;
  std::uint32_t n_seqs_max = 64;  ///< a step
  std::uint32_t n_tenants = 1;
  std::uint32_t n_priorities = 1;
  bool has_deadlines = false;
};

class FleetLoad {
 public:
  explicit FleetLoad(const FleetLoadOptions& options) : options_(options) {
    rows_.reserve(options.n_rows);
    while (rows_.size() < options.n_rows)
      add_row();
    n_steps_.resize(options.n_groups);
    actions_.resize(std::size_t{2} * options.n_rows);
    fill_devices();
  }

  /// The snapshot of the next plan.
  luna_snapshot next() {
    now_ns_ += kStepNs / options_.n_groups;
    end_step(next_group_++ % options_.n_groups);
    fill_devices();
    luna_snapshot s{};
    s.struct_size = sizeof(s);
    s.req_stride = sizeof(luna_req_row);
    s.device_stride = sizeof(luna_device_row);
    s.n_reqs = static_cast<std::uint32_t>(rows_.size());
    s.n_devices = static_cast<std::uint32_t>(devices_.size());
    s.n_rows_max = 512;
    s.n_seqs_max = options_.n_seqs_max;
    s.kv_block_tokens = kBlockTokens;
    s.step = next_group_;
    s.now_ns = now_ns_;
    s.reqs = rows_.data();
    s.devices = devices_.data();
    s.n_steps_in_flight_max = options_.n_groups;
    s.verbs = UINT32_MAX;
    s.n_steps_in_flight =
        static_cast<std::uint32_t>(std::count(n_steps_.begin(), n_steps_.end(), std::uint32_t{1}));
    return s;
  }
  luna_plan plan() {
    luna_plan plan{};
    plan.struct_size = sizeof(plan);
    plan.n_actions_max = static_cast<std::uint32_t>(actions_.size());
    plan.actions = actions_.data();
    return plan;
  }
  /// Carries the plan out. Rows that it changed count with the next plan.
  void apply(const luna_plan& plan) {
    n_changed_ = 0;
    for (std::uint32_t a = 0; a < plan.n_actions; ++a) {
      const luna_action& action = actions_[a];
      luna_req_row& row = rows_[action.row];
      if (action.verb == LUNA_VERB_ASSIGN) row.device = action.device;
      if (action.verb != LUNA_VERB_RUN) continue;
      ++n_changed_;
      ++row.n_steps;
      if (row.state == LUNA_REQ_WAITING) row.state = LUNA_REQ_PREFILL;
      row.n_computed += action.n_tokens;
      row.n_kv_blocks = row.n_kv_blocks_freed = row.n_computed / kBlockTokens + 1;
      n_steps_[group_of(row.device)] = 1;
    }
  }
  /// Rows that differ from those of the plan before.
  [[nodiscard]] std::uint32_t n_changed() const { return n_changed_; }

 private:
  static constexpr std::uint32_t kBlockTokens = 32;
  static constexpr std::uint64_t kStepNs = 40'000'000;
  static constexpr std::uint32_t kBlocks = 4096;

  [[nodiscard]] std::uint32_t group_of(std::uint32_t device) const {
    return device / options_.n_devices_per_group;
  }
  void add_row() {
    luna_req_row row{};
    row.id = ++last_id_;
    row.arrival_ns = now_ns_;
    row.priority = static_cast<std::int32_t>(last_id_ * 7 % options_.n_priorities);
    row.tenant = static_cast<std::uint32_t>(1 + last_id_ * 5 % options_.n_tenants);
    row.deadline_ns = options_.has_deadlines && last_id_ % 2 == 0 ? now_ns_ + 600'000'000'000 : 0;
    row.n_prompt = 64 + static_cast<std::uint32_t>(last_id_ % 128);
    row.n_generated_max = 40 + static_cast<std::uint32_t>(last_id_ % 60);
    row.device = options_.n_groups == 1 ? 0 : LUNA_NO_DEVICE;
    row.moving_to = LUNA_NO_DEVICE;
    rows_.push_back(row);
    ++n_changed_;
  }
  void end_step(std::uint32_t group) {
    if (n_steps_[group] == 0) return;
    n_steps_[group] = 0;
    std::size_t n_ended = 0;
    for (luna_req_row& row : rows_) {
      if (row.n_steps == 0 || group_of(row.device) != group) continue;
      --row.n_steps;
      ++n_changed_;
      row.last_step_ns = now_ns_;
      if (row.n_computed < row.n_prompt) continue;
      row.state = LUNA_REQ_DECODE;
      if (++row.n_generated == row.n_generated_max) ++n_ended;
    }
    std::erase_if(rows_,
                  [](const luna_req_row& row) { return row.n_generated == row.n_generated_max; });
    for (; n_ended > 0; --n_ended)
      add_row();
  }
  void fill_devices() {
    std::vector<std::uint32_t> n_used(options_.n_groups);
    for (const luna_req_row& row : rows_)
      if (row.state != LUNA_REQ_WAITING) n_used[group_of(row.device)] += row.n_kv_blocks;
    devices_.assign(std::size_t{options_.n_groups} * options_.n_devices_per_group, {});
    for (std::uint32_t d = 0; d < devices_.size(); ++d) {
      luna_device_row& device = devices_[d];
      device.device = d;
      device.group = group_of(d);
      device.n_kv_blocks_total = kBlocks;
      device.n_kv_blocks_free = kBlocks - n_used[device.group];
      device.kv_bytes_total = std::uint64_t{kBlocks} * 4096;
      device.kv_bytes_free = std::uint64_t{device.n_kv_blocks_free} * 4096;
      device.n_steps_in_flight = n_steps_[device.group];
      device.n_steps_in_flight_max = 1;
      device.step_ns_fixed = 3e6F;
      device.step_ns_per_row = 2e5F;
      device.step_ns_per_kv_token = 100.0F;
    }
  }

  const FleetLoadOptions options_;
  std::vector<luna_req_row> rows_;
  std::vector<luna_device_row> devices_;
  std::vector<luna_action> actions_;
  std::vector<std::uint32_t> n_steps_;  // by group: in flight
  std::uint64_t now_ns_ = 1'000'000'000;
  std::uint64_t last_id_ = 0;
  std::uint32_t next_group_ = 0;
  std::uint32_t n_changed_ = 0;
};

}  // namespace luna::bench
