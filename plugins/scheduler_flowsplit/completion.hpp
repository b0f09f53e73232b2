// When a request would end in each group, and which group therefore gets it.
#pragma once

#include "plugins/scheduler_flowsplit/fleet.hpp"
#include "plugins/scheduler_flowsplit/reasons.hpp"

#include <luna/scheduler.hpp>
#include <luna/step_cost.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace luna::scheduler_flowsplit {

/// What a group has to do, as the plan being made leaves it.
struct GroupWork {
  StepCost cost;
  double n_steps_max = 1.0;
  double n_prompt_tokens = 0.0;  ///< before the request
  double n_kv_tokens = 0.0;      ///< that a step reads
  double n_decoding = 0.0;       ///< rows
  double n_output_tokens = 0.0;  ///< that its rows may still generate
  double n_held = 0.0;           ///< rows that hold KV
  double n_ahead = 0.0;          ///< requests that wait for room before it
  bool is_open = true;           ///< could hold the request at all
  bool has_room = true;          ///< could begin with it now
  bool is_relaxed = false;
  bool is_pressed = false;
  bool is_closed = false;  ///< a request before waits for it: none behind may take its place
};

/// A request, as far as its time depends on it.
struct Request {
  std::uint32_t n_prompt = 0;
  std::uint32_t n_output = 0;
};

/// Predicts the time to a request's last token from the fitted costs of a group's steps and what it
/// has to do. A prompt is computed behind those before it, in what decoding leaves of the steps;
/// then comes a step a token, each with all rows that decode there. A value.
class CompletionTime {
 public:
  /// target_ns  that a step of decoding rows and prompts should not exceed; 0: none
  explicit CompletionTime(double target_ns) : target_ns_(target_ns) {}

  /// n_found  tokens of the prompt in the group's prefix cache
  [[nodiscard]] double of(const Request& request,
                          std::uint32_t n_found,
                          const GroupWork& work) const {
    const StepCost& cost = work.cost;
    const std::uint32_t n_left = request.n_prompt - std::min(n_found, request.n_prompt);
    const double decode_ns =
        cost.fixed_ns + work.n_decoding * cost.row_ns + work.n_kv_tokens * cost.kv_ns;
    const double prompt_ns = work.n_prompt_tokens * cost.row_ns / work.n_steps_max +
                             cost.chunk_ns(request.n_prompt - n_left, n_left);
    const double n_output = std::min(request.n_output, kOutputMax);
    const double step_ns = decode_ns + cost.row_ns + request.n_prompt * cost.kv_ns;
    return wait_ns(work, decode_ns) + prompt_ns / prompt_share(work, decode_ns) +
           n_output * step_ns;
  }

 private:
  // Answers end long before what was allowed, as a rule, and more tokens hardly change which group
  // is best.
  static constexpr std::uint32_t kOutputMax = 256;
  // What prompts get of the time at least (GroupStep).
  static constexpr double kPromptShareMin = 0.2;

  [[nodiscard]] double prompt_share(const GroupWork& work, double decode_ns) const {
    if (work.n_decoding == 0.0 || target_ns_ <= 0.0) return 1.0;
    return std::max(1.0 - decode_ns / std::max(target_ns_, decode_ns), kPromptShareMin);
  }
  // Until a row of it ends for each request that waits for room: they end evenly over what they
  // have left.
  static double wait_ns(const GroupWork& work, double decode_ns) {
    if (work.has_room || work.n_held == 0.0) return 0.0;
    return (1.0 + work.n_ahead) * work.n_output_tokens / work.n_held / work.n_held * decode_ns;
  }

  double target_ns_;
};

/// The group that a request goes to. [step], owned by the policy.
class GroupPicker {
 public:
  struct Choice {
    std::size_t group;  ///< in `groups`
    std::uint16_t reason;
  };

  explicit GroupPicker(double target_ns) : time_(target_ns) {}

  /// A pressed group only where there is no other. Of groups that are predicted to take equally
  /// long, within what a fit can tell, it is the turn of the next.
  ///
  /// n_found  by group: tokens of the prompt in its prefix cache
  /// Returns  none: no group is open
  std::optional<Choice> pick(const Request& request,
                             std::span<const GroupWork> groups,
                             std::span<const std::uint32_t> n_found) {
    const bool has_calm = std::any_of(groups.begin(), groups.end(), [](const GroupWork& group) {
      return group.is_open && !group.is_pressed;
    });
    const auto takes_part = [&](const GroupWork& group) {
      return group.is_open && (!has_calm || !group.is_pressed);
    };
    times_.clear();
    double least = 0.0;
    std::size_t n_open = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      times_.push_back(takes_part(groups[g]) ? time_.of(request, n_found[g], groups[g]) : 0.0);
      if (!takes_part(groups[g])) continue;
      least = n_open++ == 0 ? times_[g] : std::min(least, times_[g]);
    }
    if (n_open == 0) return std::nullopt;
    std::size_t n_equal = 0;
    std::size_t chosen = groups.size();
    for (std::size_t n = 0; n < groups.size(); ++n) {
      const std::size_t g = (next_ + n) % groups.size();
      if (!takes_part(groups[g]) || times_[g] > least * kEqual) continue;
      if (n_equal++ == 0) chosen = g;
    }
    next_ = chosen + 1;
    const double without_prefix = time_.of(request, 0, groups[chosen]);
    bool by_prefix = false;
    for (std::size_t g = 0; g < groups.size(); ++g)
      by_prefix |= g != chosen && takes_part(groups[g]) && times_[g] < without_prefix * kEqual;
    by_prefix &= n_found[chosen] > 0 && n_equal == 1;
    const std::uint16_t reason = by_prefix                   ? kPrefix
                                 : n_equal > 1               ? kTurn
                                 : groups[chosen].is_relaxed ? kMemoryLow
                                                             : kLeastTime;
    return Choice{chosen, reason};
  }

 private:
  // Fitted costs tell no finer differences.
  static constexpr double kEqual = 1.02;
  CompletionTime time_;
  std::vector<double> times_;  // by group
  std::size_t next_ = 0;
};

}  // namespace luna::scheduler_flowsplit
