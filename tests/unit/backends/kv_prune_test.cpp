// Which slots kv_prune keeps: against the definition written out.
#include "support/backend_fixture.hpp"

#include <luna/kv_prune.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace luna {
namespace {

std::vector<std::uint32_t> keep(std::vector<float> weights, std::uint32_t n_keep) {
  std::vector<float> ranks(weights.size());
  std::vector<std::uint32_t> kept(weights.size());
  select_kept_slots(weights, ranks, kept, n_keep);
  kept.resize(n_keep);
  return kept;
}

/// One slot after the other: the best that is left.
std::vector<std::uint32_t> keep_by_definition(const std::vector<float>& weights,
                                              std::uint32_t n_keep) {
  const auto n = static_cast<std::uint32_t>(weights.size());
  const auto rank = [&](std::uint32_t slot) {
    float best = 0.0F;
    for (std::uint32_t s = 0; s < n; ++s)
      if ((s > slot ? s - slot : slot - s) <= LUNA_PRUNE_REACH && weights[s] > best)
        best = weights[s];
    return best;
  };
  std::vector<bool> is_kept(n);
  std::uint32_t n_kept = 0;
  for (std::uint32_t s = 0; s < n; ++s) {
    is_kept[s] = s < LUNA_PRUNE_FIRST || s + LUNA_PRUNE_RECENT >= n;
    n_kept += is_kept[s] ? 1 : 0;
  }
  for (; n_kept < n_keep; ++n_kept) {
    std::uint32_t best = n;
    for (std::uint32_t s = 0; s < n; ++s)
      if (!is_kept[s] && (best == n || rank(s) > rank(best))) best = s;
    is_kept[best] = true;
  }
  std::vector<std::uint32_t> kept;
  for (std::uint32_t s = 0; s < n; ++s)
    if (is_kept[s]) kept.push_back(s);
  return kept;
}

TEST(KvPrune, KeepsTheEndsAndTheLargestRanks) {
  std::mt19937_64 rng(test::test_seed());
  for (int round = 0; round < 60; ++round) {
    const auto n = static_cast<std::uint32_t>(1 + rng() % 200);
    std::vector<float> weights(n);
    for (float& w : weights) {  // few values: many ties
      w = static_cast<float>(rng() % 7);
      if (rng() % 20 == 0) w = NAN;
    }
    const std::uint32_t least = std::min(n, LUNA_PRUNE_FIRST + LUNA_PRUNE_RECENT);
    const auto n_keep = least + static_cast<std::uint32_t>(rng() % (n - least + 1));
    EXPECT_EQ(keep(weights, n_keep), keep_by_definition(weights, n_keep))
        << "n " << n << " LUNA_TEST_SEED=" << test::test_seed();
  }
}

}  // namespace
}  // namespace luna
