// Memory: from a weight share to a device's budget, and from what is left to sessions.
#pragma once

#include "core/model/memory_plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace luna::sol_against_luna {

/// What a copy takes beside its weights and KV, whatever the budget.
inline std::uint64_t fixed_scratch_bytes(const model::ShardMemory& copy) {
  return copy.fixed() - copy.weights;
}

/// A device's budget when the weights of a whole copy take this share of what the fixed scratch
/// leaves; the rest is the copy's KV.
///
/// weight_share  above 0, at most 1
inline std::uint64_t device_budget_bytes(const model::ShardMemory& copy, double weight_share) {
  const double rest = static_cast<double>(copy.weights) / weight_share;
  return fixed_scratch_bytes(copy) + static_cast<std::uint64_t>(std::ceil(rest));
}

/// Conversations of a load with sessions: the geometric mean of what the two sides hold, so that
/// neither all nor none of them fit on either side by choice of the load.
///
/// n_tokens_a, n_tokens_b  KV room of the sides
/// n_session_tokens        of a session while its turn runs
inline std::uint32_t n_sessions(std::uint64_t n_tokens_a,
                                std::uint64_t n_tokens_b,
                                std::uint32_t n_session_tokens) {
  const double a = static_cast<double>(n_tokens_a) / n_session_tokens;
  const double b = static_cast<double>(n_tokens_b) / n_session_tokens;
  return std::max(1U, static_cast<std::uint32_t>(std::lround(std::sqrt(a * b))));
}

/// The largest request that both sides can serve: longer ones shrink to it.
///
/// n_tokens_a, n_tokens_b  KV room of the sides
/// n_context_max           of the model
/// n_history               of a session, which does not shrink
inline std::uint32_t sequence_tokens_max(std::uint64_t n_tokens_a,
                                         std::uint64_t n_tokens_b,
                                         std::uint32_t n_context_max,
                                         std::uint32_t n_history) {
  const std::uint64_t n_max =
      std::min({n_tokens_a, n_tokens_b, static_cast<std::uint64_t>(n_context_max)});
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(n_max, n_history + 2));
}

}  // namespace luna::sol_against_luna
