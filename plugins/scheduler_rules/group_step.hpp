// One step of one group: what its decoding rows and its queue get of it.
#pragma once

#include "plugins/scheduler_rules/decode_turns.hpp"
#include "plugins/scheduler_rules/group_rows.hpp"
#include "plugins/scheduler_rules/prefill_share.hpp"
#include "plugins/scheduler_rules/seniority.hpp"
#include "plugins/scheduler_rules/step_share.hpp"
#include "plugins/scheduler_rules/tenant_accounts.hpp"

#include <luna/scheduler.hpp>
#include <luna/step_cost.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

namespace luna::scheduling {

/// A step: the tokens of every decoding row (DecodeTurns may make long ones wait a few steps), then
/// prompts in the order of the queue, as much of them as keeps the step within target_itl_ms
/// (PrefillShare). A decoding row that needs a block takes it from the most junior row that has
/// some of its own.
///
/// Where several steps are in flight, each takes its part of the decoding rows and of the queue
/// (StepShare). A row's next token comes when all of them have passed, which is what the fitted
/// cost of a step tells: so each is bounded by the target, and the gaps are. [step], owned by the
/// policy, for all of its groups in turn.
class GroupStep {
 public:
  /// A zero switches a rule off.
  struct Options {
    std::int64_t target_itl_ms = 0;
    bool adaptive_batch = false;
  };
  GroupStep(const Options& options, const Seniority& seniority)
      : options_(options), seniority_(seniority) {}

  /// Plans the step and charges the tenants.
  void plan(const GroupRows& group, TenantAccounts& accounts, Plan& out) {
    turns_.choose(group, options_.adaptive_batch ? group.cost : StepCost{}, out);
    step_.choose(group, turns_, out);
    const bool decodes_elsewhere =
        std::any_of(group.held.begin(), group.held.end(), [&](std::uint32_t i) {
          return group.rows[i].is_decoding() && group.rows[i].is_in_step();
        });
    const Decoded decoded = run_decoding(group, accounts, out);
    const bool delays_tokens = decoded.n_rows > 0 || decodes_elsewhere;
    const StalledWork stalled = StalledWork::of(group);
    const std::uint32_t n_prompt_tokens =
        StepShare::n_prompt_tokens(group, delays_tokens, stalled.is_some);
    PrefillShare::Budget budget = delays_tokens
                                      ? budget_of(decoded.ns, n_prompt_tokens, stalled, group)
                                      : lone_budget(n_prompt_tokens, stalled.is_some);
    // A row let in now would be the next to be pre-empted.
    if (decoded.n_preempted == 0) budget.n_seats = n_seats(group);
    const auto part = StepShare::of_queue(group, n_prompt_tokens);
    const std::uint32_t n_rows_left = group.books.n_rows_left;
    share_.run(group, part, budget, accounts, out);
    const bool is_idle = decoded.n_rows == 0 && group.books.n_rows_left == n_rows_left;
    if (!is_idle || part.size() == group.queue.size()) return;
    // What stands first waits for KV of rows behind it that were begun: these go on.
    budget.n_seats = 0;
    share_.run(group, group.queue.subspan(part.size()), budget, accounts, out);
  }

 private:
  static constexpr std::int64_t kNsPerMs = 1'000'000;
  // The fit follows a machine that others use too with a delay, and steps scatter round it: planned
  // to nine tenths of the target, the median step was measured at 0.96 to 1.04 of it.
  static constexpr double kHeadroom = 0.8;
  // Prompts get a fifth of the time however long the decoding rows take: with less, a full engine
  // would hardly let anybody in, and its users would wait for the first token instead of the next.
  static constexpr double kPrefillOverDecode = 0.25;
  // Rows that had begun to answer get nine tenths of it, for as long as there are any: their
  // clients have been without a token for longer than those of the others will be.
  static constexpr double kStalledOverDecode = 9.0;
  // Of the target, prompts get so much as long as decoding rows leave it: see steady_ns().
  static constexpr double kSteadyShare = 0.6;

  // Of a part of a prompt, so much longer may the last one be.
  static constexpr double kPartSlack = 0.5;

  // With more tokens in a step, each takes hardly less time.
  static constexpr std::uint32_t kTokensEnough = 128;
  // Fewer tokens hardly show in the time of a step: were chunks smaller because the fit takes
  // tokens for dear, it would never see that they are not.
  static constexpr std::uint32_t kChunkMin = 8;
  static constexpr std::uint32_t kChunkOnTrial = 4 * kChunkMin;

  struct Decoded {
    double ns = 0.0;  // of a step with the decoding rows alone
    std::uint32_t n_rows = 0;
    std::uint32_t n_preempted = 0;
  };
  // What decoding rows may verify beside their next tokens.
  struct DraftBudget {
    std::uint32_t n_tokens = 0;
    double ns = 0.0;
  };

  [[nodiscard]] bool has_target(const StepCost& cost) const {
    return options_.target_itl_ms > 0 && cost.is_known();
  }
  [[nodiscard]] double target_ns() const {
    return kHeadroom * static_cast<double>(options_.target_itl_ms * kNsPerMs);
  }

  Decoded run_decoding(const GroupRows& group, TenantAccounts& accounts, Plan& out) {
    const Snapshot& rows = group.rows;
    const StepCost& cost = group.cost;
    const std::span<const std::uint32_t> order = group.held;
    Decoded decoded{.ns = cost.fixed_ns};
    DraftBudget drafts = draft_budget(group);
    std::size_t end = order.size();  // rows from here on give way in this step
    for (std::size_t k = 0; k < end; ++k) {
      const std::uint32_t i = order[k];
      const Row row = rows[i];
      if (!runs(row, i)) continue;
      const std::uint32_t n_before = group.books.n_tokens_left;
      const std::uint32_t n_most = 1 + n_drafts(row, cost, drafts);
      while (group.books.n_rows_left > 0 && group.books.n_tokens_left > 0 && !out.take(i, n_most)) {
        // The most junior row that has blocks of its own gives them up; one that shares all it
        // holds would be computed again for nothing. When only senior rows are left, row k keeps
        // its own and waits for them; and so it does for one that cannot give way yet.
        --end;
        if (end <= k || waits_for_step(group, order[end])) break;
        const bool helps = rows[order[end]]->n_kv_blocks_freed > 0;
        if (helps && out.preempt(order[end])) ++decoded.n_preempted;
      }
      const std::uint32_t n = n_before - group.books.n_tokens_left;
      if (n == 0) continue;
      drafts.n_tokens -= n - 1;
      drafts.ns -= cost.chunk_ns(row, n) - cost.chunk_ns(row, 1);
      decoded.ns += cost.chunk_ns(row, n);
      ++decoded.n_rows;
      accounts.charge(row, n);
    }
    return decoded;
  }

  [[nodiscard]] bool runs(Row row, std::uint32_t i) const {
    return row.is_decoding() && !row.is_in_step() && turns_.runs(i) && step_.takes(i);
  }
  // Whether a row would give way that is not senior to `candidate`, were it in no step.
  [[nodiscard]] bool waits_for_step(const GroupRows& group, std::uint32_t candidate) const {
    if (group.n_steps_in_flight == 0) return false;
    const Snapshot& rows = group.rows;
    return std::any_of(group.held.begin(), group.held.end(), [&](std::uint32_t i) {
      return rows[i].is_in_step() && rows[i]->n_kv_blocks_freed > 0 &&
             !seniority_.is_senior(rows[i], rows[candidate]);
    });
  }

  // Drafts are guesses: they get what is certain to be left over.
  [[nodiscard]] DraftBudget draft_budget(const GroupRows& group) const {
    if (!group.queue.empty()) return {};
    double ns = group.cost.fixed_ns;
    std::uint32_t n_tokens = 0;
    for (const std::uint32_t i : group.held) {
      const Row row = group.rows[i];
      if (!runs(row, i)) continue;
      ns += group.cost.chunk_ns(row, 1);
      ++n_tokens;
    }
    return {group.books.n_tokens_left - std::min(n_tokens, group.books.n_tokens_left),
            target_ns() - ns};
  }
  [[nodiscard]] std::uint32_t n_drafts(Row row,
                                       const StepCost& cost,
                                       const DraftBudget& left) const {
    const std::uint32_t n = std::min(row->n_draft, left.n_tokens);
    return has_target(cost) ? cost.n_tokens_within(left.ns, row->n_computed + 1, n) : n;
  }

  // What the step may spend on prompts where nobody counts the time.
  [[nodiscard]] PrefillShare::Budget token_budget(double n_tokens) const {
    PrefillShare::Budget budget;
    budget.cost = StepCost::of_tokens();
    budget.left = n_tokens;
    budget.shares = options_.adaptive_batch;
    return budget;
  }

  // What it may spend on them while nobody decodes. A first token comes with its step's end, so the
  // step takes no more prompts than use it well.
  [[nodiscard]] PrefillShare::Budget lone_budget(double n_tokens, bool has_stalled) const {
    PrefillShare::Budget budget = token_budget(n_tokens);
    budget.n_enough = has_stalled ? StepShare::kPartStalled : kTokensEnough;
    return budget;
  }

  // What it may spend on them where somebody decodes, in this step or in one that passes the
  // devices behind it.
  //
  // decode_ns        of the step without prompts
  // n_prompt_tokens  at most
  // stalled          rows that had begun to answer
  [[nodiscard]] PrefillShare::Budget budget_of(double decode_ns,
                                               std::uint32_t n_prompt_tokens,
                                               const StalledWork& stalled,
                                               const GroupRows& group) const {
    const StepCost& cost = group.cost;
    const double n_tokens = std::min(group.books.n_tokens_left, n_prompt_tokens);
    if (!has_target(cost)) {
      // Costs that do not tell a token from a step are learned by a chunk that cannot do much harm:
      // there is none to do where most are stalled.
      const bool on_trial = options_.target_itl_ms > 0 && cost.has_any() && !stalled.is_some;
      return token_budget(on_trial ? std::min<double>(n_tokens, kChunkOnTrial) : n_tokens);
    }
    PrefillShare::Budget budget;
    budget.shares = options_.adaptive_batch;
    const double floor = kPrefillOverDecode * std::max(target_ns(), decode_ns);
    budget.cost = cost;
    budget.n_min = kChunkMin;
    const double steady = std::min(target_ns() - decode_ns, steady_ns(decode_ns, group));
    const double for_stalled =
        std::min(stalled.ns, std::max(target_ns() - decode_ns, kStalledOverDecode * decode_ns));
    const double most = std::max({steady, floor, for_stalled});
    budget.left = std::min(most, n_tokens * cost.row_ns);
    const double headroom = target_ns() / kHeadroom - target_ns();
    budget.slack = std::clamp(target_ns() + headroom - decode_ns - budget.left, 0.0, headroom);
    if (group.n_steps_max > 1) budget.slack = std::min(budget.slack, kPartSlack * budget.left);
    return budget;
  }

  // What prompts can get in each step until the queue is empty, since who leaves it decodes from
  // then on. Clients come again as fast as they were let in: were the first of a crowd let in
  // faster than the last, all would wait longer the next time.
  [[nodiscard]] double steady_ns(double decode_ns, const GroupRows& group) const {
    double ns = target_ns() - decode_ns;
    for (const std::uint32_t i : group.queue)
      ns -= group.cost.chunk_ns(group.rows[i]->n_prompt, 1);
    return std::max(ns, kSteadyShare * target_ns());
  }

  // Waiting rows that may be let in.
  static std::uint32_t n_seats(const GroupRows& group) {
    const std::uint32_t n_seqs_max = group.rows->n_seqs_max;
    return n_seqs_max - std::min(static_cast<std::uint32_t>(group.held.size()), n_seqs_max);
  }

  const Options options_;
  const Seniority seniority_;
  DecodeTurns turns_;
  StepShare step_;
  PrefillShare share_;
};

}  // namespace luna::scheduling
