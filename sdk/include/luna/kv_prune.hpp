// Which slots kv_prune keeps: one definition for every backend (see abi/op_program.h).
#pragma once

#include <luna/abi/op_program.h>

#include <algorithm>
#include <cstdint>
#include <span>

namespace luna {

/// Writes the kept slots, ascending, to kept[0, n_keep).
///
/// weights  [n_slots]: the group's masses of each slot; changed: NaN becomes 0
/// ranks    [n_slots]: scratch
/// kept     [n_slots]: the first n_keep are the answer
/// n_keep   min(n_slots, LUNA_PRUNE_FIRST + LUNA_PRUNE_RECENT) .. n_slots
/// Cost     O(n_slots) on average, allocates nothing
inline void select_kept_slots(std::span<float> weights,
                              std::span<float> ranks,
                              std::span<std::uint32_t> kept,
                              std::uint32_t n_keep) {
  const auto n = static_cast<std::uint32_t>(weights.size());
  for (float& w : weights)
    w = w >= 0.0F ? w : 0.0F;
  const std::uint32_t first = std::min(n, LUNA_PRUNE_FIRST);
  const std::uint32_t last = n - std::min(n - first, LUNA_PRUNE_RECENT);
  for (std::uint32_t s = first; s < last; ++s) {
    const std::uint32_t low = s - std::min(s, LUNA_PRUNE_REACH);
    const std::uint32_t high = std::min(n, s + LUNA_PRUNE_REACH + 1);
    ranks[s] = *std::max_element(weights.begin() + low, weights.begin() + high);
  }
  // Candidates by rank; what is kept of them is put in order again.
  const std::uint32_t n_chosen = n_keep - first - (n - last);
  for (std::uint32_t s = 0; s < n; ++s)
    kept[s] = s;
  const auto by_rank = [&](std::uint32_t a, std::uint32_t b) {
    return ranks[a] != ranks[b] ? ranks[a] > ranks[b] : a < b;
  };
  if (n_chosen == last - first) return;
  const auto candidates = kept.begin() + first;
  std::nth_element(candidates, candidates + n_chosen, kept.begin() + last, by_rank);
  std::sort(candidates, candidates + n_chosen);
  std::copy(kept.begin() + last, kept.end(), candidates + n_chosen);
}

}  // namespace luna
