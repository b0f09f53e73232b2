// One copy of a model in virtual time: its queue, its steps and its KV blocks.
#pragma once

#include "core/model/block_cache.hpp"
#include "core/model/load_forecast.hpp"

#include <luna/step_cost.hpp>

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

namespace luna::model {

/// A request on its way through a copy.
struct VirtualRequest {
  double arrived_ns = 0.0;
  std::uint32_t session = 0;
  std::uint32_t n_history = 0;
  std::uint32_t n_prompt = 0;
  std::uint32_t n_output = 0;

  std::uint32_t n_made = 0;      // tokens of the answer
  std::uint32_t n_computed = 0;  // tokens whose KV is there, or comes with steps in flight
  std::uint32_t n_blocks = 0;    // of KV, beside the full ones of its history
  std::uint32_t n_steps = 0;     // in flight, with a part of it
  bool was_admitted = false;
  bool is_decoding = false;
  bool is_chosen = false;  // to decode in the step that is planned

  [[nodiscard]] std::uint32_t n_tokens() const { return n_history + n_prompt + n_output; }
  /// What is computed before its next token comes.
  [[nodiscard]] std::uint32_t n_prefill() const { return n_history + n_prompt + n_made; }
  /// Of that, what no step has taken; while it prefills.
  [[nodiscard]] std::uint32_t n_left() const { return n_prefill() - n_computed; }
};

/// The steps of one engine under the shipped policy (plugins/scheduler_rules), as it plans them:
/// all that decode, or a lane's part of them; and prompts in their order, as far as a step has
/// time. A sequence that finds no room for its prompt waits; one that finds no block for its next
/// token takes those of the latest, which is computed again later, as far as the prefix cache has
/// lost it.
class VirtualCopy {
 public:
  /// forecast, requests   outlive it; requests stand in the order of their arrival
  VirtualCopy(const CopyForecast& forecast, std::vector<VirtualRequest>& requests);

  [[nodiscard]] bool has_room_ever(const VirtualRequest& request) const;
  void add(std::uint32_t request);
  /// Leaves a session's history in the cache, as if it had been here, while there is room.
  void warm(std::uint32_t session, std::uint32_t n_history);
  [[nodiscard]] std::uint64_t n_tokens_outstanding() const { return n_outstanding_; }
  [[nodiscard]] const CopyCost& cost() const { return forecast_.cost; }

  /// A lane, and the work of the step that begins in it.
  struct Begun {
    std::uint32_t lane = 0;
    StepWork work;
  };
  /// Plans a step; none: all lanes are taken, or nothing could run.
  std::optional<Begun> begin_step();
  /// Steps end in the order in which they began. Appends the requests that this one finished.
  void end_step(std::uint32_t lane, std::vector<std::uint32_t>& finished);

  /// Blocks that sequences use or were let in for; and those that are kept.
  [[nodiscard]] std::uint32_t n_blocks_used() const { return n_used_; }
  [[nodiscard]] std::uint32_t n_blocks_cached() const { return cache_.n_blocks(); }

  struct Totals {
    double n_prompt = 0.0;      // tokens of prompts, histories among them
    double n_reused = 0.0;      // of histories
    double n_found = 0.0;       // of them, in the cache
    double n_recomputed = 0.0;  // once more, after pre-emption
    double n_steps = 0.0;
    double n_step_seqs = 0.0;  // sequences in them, summed
    double n_decoding = 0.0;   // sequences that decoded in the copy, summed over its steps
  };
  [[nodiscard]] const Totals& totals() const { return totals_; }

 private:
  struct Row {
    std::uint32_t request = 0;
    std::uint32_t n_tokens = 0;
    bool gives_token = false;
  };
  struct Step {
    bool is_in_flight = false;
    std::vector<Row> rows;
    StepWork work;
  };
  /// What a step may spend on prompts.
  struct PromptBudget {
    double ns = 0.0;
    double slack_ns = 0.0;          // beyond, for a prompt that ends with it
    double n_tokens = 0.0;          // at most
    double n_tokens_enough = 1e18;  // the prompt that reaches them is the last
    std::uint32_t n_min = 0;        // tokens of the first, whatever they cost
  };

  [[nodiscard]] std::uint32_t blocks_of(std::uint64_t n_tokens) const;
  [[nodiscard]] std::uint32_t shared_blocks(const VirtualRequest& request) const;
  void take_decoding(std::size_t n, Step& step);
  bool make_room(std::size_t row);
  [[nodiscard]] PromptBudget prompt_budget(const Step& step) const;
  void take_prompts(PromptBudget budget, Step& step);
  void take_part(std::uint32_t idx, PromptBudget& budget, Step& step);
  bool admit_next();
  void admit(VirtualRequest& request, BlockCache::Key own_key);
  void leave(std::uint32_t idx);
  void count_waiting(std::uint32_t idx);

  const CopyForecast& forecast_;
  std::vector<VirtualRequest>& requests_;
  const std::uint32_t block_tokens_;
  const std::uint32_t n_blocks_;
  const StepCost fitted_;  // what the policy knows of a round of equal steps
  BlockCache cache_;
  std::vector<Step> steps_;  // by lane
  std::deque<std::uint32_t> waiting_;
  std::vector<std::uint32_t> held_;   // that hold KV, in the order of their arrival
  std::vector<std::uint32_t> ready_;  // that decode and are in no step; who waits longest first
  std::unordered_map<std::uint32_t, std::uint32_t> n_held_by_session_;
  std::uint32_t n_decoding_ = 0;
  std::uint32_t n_used_ = 0;             // blocks
  std::uint64_t n_waiting_tokens_ = 0;   // new ones, of those that wait
  std::uint64_t n_waiting_context_ = 0;  // with their histories
  std::uint64_t n_outstanding_ = 0;
  bool has_preempted_ = false;  // in the plan that is made
  Totals totals_;
};

}  // namespace luna::model
