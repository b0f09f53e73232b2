// Groups of devices of known costs in virtual time, driven by a policy through its C table. Every
// plan is held against the rules of the contract before it is carried out.
#pragma once

#include "core/check/plan_legality.hpp"

#include <luna/abi/scheduler.h>
#include <luna/step_cost.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace luna::check {

struct FleetGroup {
  std::uint32_t n_devices = 1;
  std::uint32_t n_blocks = 1024;
  std::uint32_t n_blocks_reserve = 0;
  std::uint32_t n_steps_max = 1;  ///< in flight
  StepCost cost{.fixed_ns = 3e6, .row_ns = 2e5, .kv_ns = 100.0};
};

struct FleetOptions {
  std::vector<FleetGroup> groups = std::vector<FleetGroup>(2);
  bool shows_cost = true;
  std::uint32_t n_rows_max = 256;
  std::uint32_t n_seqs_max = 16;
  std::uint32_t block_tokens = 32;
  std::uint64_t block_bytes = 4096;
  double bytes_per_ns = 0.0;           ///< of every link; 0: no KV leaves its group
  bool can_move = true;                ///< where there are links: whole rows
  bool can_slice = false;              ///< likewise: parts of rows
  bool lets_in_wide = false;           ///< rows that no group holds alone: the policy slices
  std::uint32_t n_actions_max = 8192;  ///< of a plan
};

/// A part of a job's KV that lies in another group, or is on its way: whole partitions.
struct FleetPart {
  std::uint32_t first_token = 0;
  std::uint32_t n_tokens = 0;
  std::size_t group = 0;  ///< where it lies
  std::optional<std::size_t> copying_to = std::nullopt;
  std::uint64_t copied_ns = 0;  ///< when it is there
  [[nodiscard]] std::uint32_t end() const { return first_token + n_tokens; }
};

/// What is asked of the fleet, and what came of it.
struct FleetJob {
  std::uint32_t n_prompt = 10;
  std::uint32_t n_generated_max = 10;
  std::int32_t priority = 0;
  std::uint32_t tenant = 0;
  std::uint64_t deadline_ns = 0;
  /// What the prefix cache of each group has of the prompt; none: nothing.
  std::vector<std::uint32_t> n_found = {};
  std::uint32_t n_draft = 0;  ///< offered at each step; each one turns out wrong
  /// Another job and how many tokens, of whole blocks, both begin with: while one holds them in a
  /// group, the other finds them there.
  std::uint64_t twin = 0;
  std::uint32_t n_alike = 0;
  bool forks = false;  ///< at the end of its prompt: a second answer that shares all blocks

  std::uint64_t id = 0;
  std::uint64_t arrival_ns = 0;
  std::uint32_t state = LUNA_REQ_WAITING;
  std::optional<std::size_t> group = std::nullopt;
  std::uint16_t assigned_for = 0;  ///< reason
  std::uint32_t n_prefill = 0;
  std::uint32_t n_computed = 0;  ///< with those of steps in flight
  std::uint32_t n_finished = 0;  ///< of n_computed, those that no step in flight computes
  std::uint32_t n_common = 0;    ///< blocks that it and its twin hold together
  std::vector<FleetPart> parts = {};
  std::uint32_t n_generated = 0;
  std::uint32_t n_blocks = 0;
  std::uint32_t n_preempted = 0;
  std::uint32_t n_steps = 0;
  std::optional<std::size_t> moving_to = std::nullopt;
  std::uint64_t copied_ns = 0;  ///< when its KV is there
  std::uint32_t n_moves = 0;
  bool has_ended = false;
  std::optional<std::uint16_t> rejected_for = std::nullopt;
  std::uint64_t started_ns = 0;  ///< end of its first step
  std::uint64_t ended_ns = 0;
};

/// What a plan breaks, and in which one.
struct FleetBreach {
  std::uint64_t plan = 0;
  PlanBreach breach;
};

/// The machine. It stands still from the first breach on. A resource, used on one thread.
class Fleet {
 public:
  /// Asks the policy: luna_scheduler_if::plan.
  using PlanCall = std::function<luna_status(const luna_snapshot&, luna_plan&, luna_err&)>;

  Fleet(FleetOptions with, PlanCall call);
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  FleetJob& add(FleetJob job);
  /// Its client has gone. False: a step computes it, so that it cannot end now.
  bool cancel(FleetJob& job);
  /// Plans as long as they begin a step, then the time to the next event. False: nothing is left,
  /// or a plan broke a rule.
  bool turn();
  /// Turns until nothing is left. False: so many were not enough, or a plan broke a rule.
  bool run(std::size_t n_turns_max = 300'000);

  [[nodiscard]] std::uint32_t n_blocks_used(std::size_t group) const;
  [[nodiscard]] std::uint32_t n_running(std::size_t group) const;
  [[nodiscard]] std::size_t n_live() const { return live_.size(); }
  /// The first that has not ended, for messages.
  [[nodiscard]] std::string describe_first() const;

  const FleetOptions options;
  std::deque<FleetJob> jobs;
  std::vector<FleetBreach> breaches;
  std::uint64_t now_ns = 1'000'000'000;
  std::uint64_t n_plans = 0;
  std::uint64_t n_shared_starts = 0;              ///< of rows whose first blocks another one holds
  std::uint64_t n_slices = 0;                     ///< parts that went to other groups, or came back
  std::uint64_t plan_hash = 0xCBF29CE484222325U;  ///< of all plans so far

 private:
  struct Ran {
    FleetJob* job;
    std::uint32_t n_tokens;
    bool decodes;
  };
  struct Flight {
    std::uint64_t end_ns = 0;
    std::vector<Ran> rows;
  };

  [[nodiscard]] std::uint32_t first_device(std::size_t group) const;
  [[nodiscard]] std::size_t group_of(std::uint32_t device) const;
  [[nodiscard]] bool has_room() const;
  [[nodiscard]] bool has_plannable() const;
  void blame(std::string_view rule, std::string text);
  bool ask();
  [[nodiscard]] luna_snapshot snapshot() const;
  void fill();
  [[nodiscard]] luna_req_row row_of(const FleetJob& job);
  void fill_slices(std::uint32_t row, const FleetJob& job);
  [[nodiscard]] luna_device_row device_of(std::size_t group, std::uint32_t number) const;
  bool apply();
  void give_up(FleetJob& job, const luna_action& action);
  void start(std::size_t group, Flight flight, double ns);
  bool go_on();
  void end_copies();
  [[nodiscard]] std::optional<std::uint64_t> next_copy_ns() const;
  void finish(const Ran& ran);
  void end(FleetJob& job);
  void erase_ended();
  [[nodiscard]] std::uint32_t blocks(std::uint32_t n_tokens) const;
  // fleet_kv.cpp: who holds which blocks.
  FleetJob* twin_of(const FleetJob& job);
  [[nodiscard]] bool finds_twin(const FleetJob& job, std::size_t group);
  [[nodiscard]] std::uint32_t blocks_in(const FleetJob& job, std::size_t group) const;
  [[nodiscard]] std::uint32_t n_blocks_freed(const FleetJob& job) const;
  [[nodiscard]] bool copies_its_last(const FleetJob& job) const;
  [[nodiscard]] std::pair<std::uint32_t, std::uint32_t> sliceable(const FleetJob& job) const;
  void find_prefix(FleetJob& job);
  void share_prefix(FleetJob& job);
  void part_from_twin(FleetJob& job);
  void fork(FleetJob& job);
  void slice(FleetJob& job, const luna_action& action);
  void hash(const luna_action& action);

  PlanCall call_;
  std::uint64_t last_id_ = 0;
  std::vector<FleetJob*> live_;              // in order of arrival
  std::vector<std::deque<Flight>> flights_;  // by group, in order of their ends
  std::vector<luna_req_row> rows_;
  std::vector<luna_device_row> devices_;
  std::vector<luna_prefix_row> prefixes_;
  std::vector<luna_link_row> links_;
  std::vector<luna_slice_row> slices_;
  std::vector<luna_action> actions_;
  luna_plan plan_{};
};

}  // namespace luna::check
