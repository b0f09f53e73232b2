// A machine of known costs in virtual time, driven by the shipped policy through its C table.
#pragma once

#include "plugins/scheduler_static/static_policy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace luna::test {

using scheduler_static::StaticOptions;
using scheduler_static::StaticPolicy;

inline constexpr std::uint64_t kMs = 1'000'000;

struct MachineOptions {
  /// About a CPU of two cores with a model of 135M parameters.
  StepCost cost{.fixed_ns = 3e6, .row_ns = 2e5, .kv_ns = 100.0};
  bool shows_cost = true;  ///< in the snapshot
  std::uint32_t n_rows_max = 512;
  std::uint32_t n_seqs_max = 64;
  std::uint32_t n_blocks = 8192;
  std::uint32_t block_tokens = 32;
};

/// What is asked of the machine, and what came of it.
struct Job {
  std::uint32_t n_prompt = 10;
  std::uint32_t n_generated_max = 10;
  std::int32_t priority = 0;
  std::uint32_t tenant = 0;
  std::uint64_t deadline_ns = 0;
  bool shares_blocks = false;  ///< all that it holds is another's too
  std::uint32_t n_draft = 0;   ///< offered at each step; each one turns out wrong

  std::uint64_t id = 0;
  std::uint64_t arrival_ns = 0;
  std::uint32_t state = LUNA_REQ_WAITING;
  std::uint32_t n_prefill = 0;
  std::uint32_t n_computed = 0;
  std::uint32_t n_generated = 0;
  std::uint32_t n_blocks = 0;
  std::uint32_t n_preempted = 0;
  std::uint64_t n_verified = 0;         ///< tokens computed while it decoded
  std::uint64_t n_prompt_computed = 0;  ///< tokens computed before
  bool has_ended = false;
  std::optional<std::uint16_t> rejected_for = std::nullopt;
  std::uint32_t told_wait_ms = 0;  ///< of a rejection for the queue
  std::uint32_t told_wait_ms_max = 0;
  std::uint64_t started_ns = 0;  ///< end of its first step
  std::uint64_t ended_ns = 0;
  std::vector<std::uint64_t> token_ns = {};  ///< when each token came
  std::vector<std::uint32_t> chunks = {};    ///< prompt tokens, by step

  [[nodiscard]] std::uint32_t n_wanted() const {
    return state == LUNA_REQ_DECODE ? 1 + n_draft : n_prefill - n_computed;
  }
  /// Gaps between its tokens from `from_ns` to `to_ns`.
  [[nodiscard]] std::vector<double> gaps_ms(std::uint64_t from_ns, std::uint64_t to_ns) const {
    std::vector<double> gaps;
    for (std::size_t i = 1; i < token_ns.size(); ++i)
      if (token_ns[i - 1] >= from_ns && token_ns[i] <= to_ns)
        gaps.push_back(static_cast<double>(token_ns[i] - token_ns[i - 1]) * 1e-6);
    return gaps;
  }
};

class PolicyRig {
 public:
  explicit PolicyRig(const StaticOptions& options, const MachineOptions& with = {})
      : machine(with), policy_(std::make_unique<StaticPolicy>(options)) {}

  Job& add(Job job) {
    job.id = ++last_id_;
    job.arrival_ns = now_ns;
    job.n_prefill = job.n_prompt;
    jobs.push_back(std::move(job));
    live_.push_back(&jobs.back());
    return jobs.back();
  }

  /// One plan and its step. Returns false when nothing is left to do.
  bool step() {
    if (live_.empty()) return false;
    ask();
    const double ns = apply();
    now_ns += static_cast<std::uint64_t>(ns) + 1;
    finish();
    ++n_steps;
    return true;
  }
  void run(std::size_t n_steps_max = 200'000) {
    for (std::size_t i = 0; i < n_steps_max; ++i)
      if (!step()) return;
    ADD_FAILURE() << "the policy does not come to an end";
  }
  /// Steps until `condition` holds.
  void run_until(const std::function<bool()>& condition, std::size_t n_steps_max = 200'000) {
    for (std::size_t i = 0; i < n_steps_max && !condition(); ++i)
      if (!step()) break;
    EXPECT_TRUE(condition());
  }

  [[nodiscard]] std::uint32_t n_blocks_used() const {
    std::uint32_t n = 0;
    for (const Job* job : live_)
      n += job->n_blocks;
    return n;
  }

  const MachineOptions machine;
  std::deque<Job> jobs;
  std::uint64_t now_ns = 1000 * kMs;
  std::uint64_t n_steps = 0;
  std::uint64_t plan_hash = 0xCBF29CE484222325U;  ///< of all plans so far
  double decode_ns = 0.0;                         ///< of the last step
  double prefill_ns = 0.0;                        ///< of the last step

 private:
  void ask() {
    rows_.clear();
    for (const Job* job : live_)
      rows_.push_back(row_of(*job));
    luna_device_row device{};
    device.n_kv_blocks_total = machine.n_blocks;
    device.n_kv_blocks_free = machine.n_blocks - n_blocks_used();
    if (machine.shows_cost) {
      device.step_ns_fixed = static_cast<float>(machine.cost.fixed_ns);
      device.step_ns_per_row = static_cast<float>(machine.cost.row_ns);
      device.step_ns_per_kv_token = static_cast<float>(machine.cost.kv_ns);
    }
    luna_snapshot snapshot{};
    snapshot.struct_size = sizeof(snapshot);
    snapshot.req_stride = sizeof(luna_req_row);
    snapshot.device_stride = sizeof(luna_device_row);
    snapshot.n_reqs = static_cast<std::uint32_t>(rows_.size());
    snapshot.n_devices = 1;
    snapshot.n_rows_max = machine.n_rows_max;
    snapshot.n_seqs_max = machine.n_seqs_max;
    snapshot.kv_block_tokens = machine.block_tokens;
    snapshot.step = n_steps;
    snapshot.now_ns = now_ns;
    snapshot.reqs = rows_.data();
    snapshot.devices = &device;
    actions_.assign(4096, luna_action{});
    plan_ = {};
    plan_.struct_size = sizeof(plan_);
    plan_.n_actions_max = static_cast<std::uint32_t>(actions_.size());
    plan_.actions = actions_.data();
    luna_err err = make_err();
    ASSERT_EQ(SchedulerInstance<StaticPolicy>::plan(&policy_, &snapshot, &plan_, &err), LUNA_OK);
    ASSERT_GT(plan_.n_actions, 0U) << "rows wait and the plan changes nothing";
  }

  [[nodiscard]] static luna_req_row row_of(const Job& job) {
    luna_req_row row{};
    row.id = job.id;
    row.arrival_ns = job.arrival_ns;
    row.deadline_ns = job.deadline_ns;
    row.state = job.state;
    row.priority = job.priority;
    row.tenant = job.tenant;
    row.n_prompt = job.n_prefill;
    row.n_computed = job.n_computed;
    row.n_generated = job.n_generated;
    row.n_generated_max = job.n_generated_max;
    row.n_kv_blocks = job.n_blocks;
    row.n_kv_blocks_freed = job.shares_blocks ? 0 : job.n_blocks;
    row.n_preempted = job.n_preempted;
    row.n_draft = job.n_draft;
    return row;
  }

  // Carries the plan out as the engine does, and checks it as the gate does. Returns its time.
  double apply() {
    std::vector<std::uint8_t> taken(rows_.size());
    ran_.clear();
    for (std::uint32_t a = 0; a < plan_.n_actions; ++a) {
      const luna_action& action = plan_.actions[a];
      hash(action);
      EXPECT_LT(action.row, rows_.size());
      EXPECT_EQ(taken[action.row]++, 0) << "a row twice";
      Job& job = *live_[action.row];
      if (action.verb == LUNA_VERB_RUN) {
        ran_.push_back({&job, action.n_tokens});
      } else {
        give_up(job, action);
      }
    }
    std::uint32_t n_tokens = 0;
    decode_ns = machine.cost.fixed_ns;
    prefill_ns = 0.0;
    for (const auto& [job, n] : ran_) {
      n_tokens += n;
      EXPECT_GE(n, 1U);
      EXPECT_LE(n, job->n_wanted());
      (job->state == LUNA_REQ_DECODE ? decode_ns : prefill_ns) +=
          machine.cost.chunk_ns(job->n_computed, n);
      job->n_blocks = std::max(job->n_blocks, blocks(job->n_computed + n));
    }
    EXPECT_LE(n_tokens, machine.n_rows_max);
    EXPECT_LE(ran_.size(), machine.n_seqs_max);
    EXPECT_LE(n_blocks_used(), machine.n_blocks) << "more blocks than there are";
    return ran_.empty() ? 0.0 : decode_ns + prefill_ns;
  }

  void give_up(Job& job, const luna_action& action) {
    job.n_blocks = 0;
    job.n_computed = 0;
    if (action.verb == LUNA_VERB_REJECT) {
      job.rejected_for = action.reason;
      job.told_wait_ms = action.wait_ms;
      job.told_wait_ms_max = action.wait_ms_max;
      end(job);
      return;
    }
    EXPECT_EQ(action.verb, LUNA_VERB_PREEMPT);
    EXPECT_NE(job.state, LUNA_REQ_WAITING);
    job.state = LUNA_REQ_WAITING;
    job.n_prefill = job.n_prompt + job.n_generated;
    ++job.n_preempted;
  }

  // The step has ended: tokens come.
  void finish() {
    for (const auto& [job, n] : ran_) {
      if (job->started_ns == 0) job->started_ns = now_ns;
      const bool decoded = job->state == LUNA_REQ_DECODE;
      (decoded ? job->n_verified : job->n_prompt_computed) += n;
      if (!decoded) job->chunks.push_back(n);
      job->n_computed += decoded ? 1 : n;
      if (job->state == LUNA_REQ_WAITING) job->state = LUNA_REQ_PREFILL;
      if (job->n_computed < job->n_prefill && job->state == LUNA_REQ_PREFILL) continue;
      job->state = LUNA_REQ_DECODE;
      ++job->n_generated;
      job->token_ns.push_back(now_ns);
      if (job->n_generated == job->n_generated_max) end(*job);
    }
    std::erase_if(live_, [](const Job* job) { return job->has_ended; });
  }
  void end(Job& job) {
    job.has_ended = true;
    job.ended_ns = now_ns;
    job.n_blocks = 0;
  }
  [[nodiscard]] std::uint32_t blocks(std::uint32_t n_tokens) const {
    return (n_tokens + machine.block_tokens - 1) / machine.block_tokens;
  }
  void hash(const luna_action& action) {
    for (const std::uint64_t part : {rows_[action.row].id,
                                     std::uint64_t{action.verb},
                                     std::uint64_t{action.reason},
                                     std::uint64_t{action.n_tokens}})
      plan_hash = (plan_hash ^ part) * 0x100000001B3U;
  }

  struct Ran {
    Job* job;
    std::uint32_t n_tokens;
  };
  SchedulerInstance<StaticPolicy> policy_;
  std::uint64_t last_id_ = 0;
  std::vector<Job*> live_;  // in order of arrival
  std::vector<luna_req_row> rows_;
  std::vector<luna_action> actions_;
  luna_plan plan_{};
  std::vector<Ran> ran_;
};

}  // namespace luna::test
