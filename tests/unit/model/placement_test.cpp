// Layers are placed in order, none twice, and as evenly as can be.
#include "core/model/placement.hpp"

#include "support/test_seed.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace luna::model {
namespace {

double worst_share(const ModelBytes& bytes,
                   const std::vector<std::uint64_t>& budgets,
                   const std::vector<LayerRange>& ranges) {
  double worst = 0.0;
  for (std::size_t d = 0; d < ranges.size(); ++d) {
    std::uint64_t held = 0;
    for (std::uint32_t layer = ranges[d].first; layer < ranges[d].end(); ++layer)
      held += bytes.layers[layer];
    if (d == 0) held += bytes.embedding;
    if (d + 1 == ranges.size()) held += bytes.head;
    worst = std::max(worst, static_cast<double>(held) / static_cast<double>(budgets[d]));
  }
  return worst;
}

/// The least worst share over all ways of cutting, by trying each.
double best_by_search(const ModelBytes& bytes,
                      const std::vector<std::uint64_t>& budgets,
                      std::vector<LayerRange>& ranges,
                      std::uint32_t first) {
  const auto n_layers = static_cast<std::uint32_t>(bytes.layers.size());
  if (ranges.size() + 1 == budgets.size()) {
    if (first == n_layers) return 1e300;
    ranges.push_back({first, n_layers - first});
    const double worst = worst_share(bytes, budgets, ranges);
    ranges.pop_back();
    return worst;
  }
  double best = 1e300;
  for (std::uint32_t end = first + 1; end < n_layers; ++end) {
    ranges.push_back({first, end - first});
    best = std::min(best, best_by_search(bytes, budgets, ranges, end));
    ranges.pop_back();
  }
  return best;
}

TEST(Placement, IsAsEvenAsTheBestOfAllCuts) {
  std::mt19937 random(test::test_seed());
  for (int round = 0; round < 300; ++round) {
    ModelBytes bytes;
    const std::size_t n_layers = 1 + random() % 9;
    for (std::size_t i = 0; i < n_layers; ++i)
      bytes.layers.push_back(random() % 100);
    bytes.embedding = random() % 200;
    bytes.head = random() % 200;
    std::vector<std::uint64_t> budgets(1 + random() % std::min<std::size_t>(4, n_layers));
    for (std::uint64_t& budget : budgets)
      budget = 1 + random() % 50;
    const auto ranges = balance_layers(bytes, budgets);
    ASSERT_TRUE(ranges) << ranges.error().message();
    ASSERT_TRUE(check_layers(*ranges, static_cast<std::uint32_t>(n_layers), budgets.size()));
    std::vector<LayerRange> tried;
    EXPECT_DOUBLE_EQ(worst_share(bytes, budgets, *ranges),
                     best_by_search(bytes, budgets, tried, 0));
  }
}

TEST(Placement, EqualDevicesShareEqualLayers) {
  ModelBytes bytes{.layers = std::vector<std::uint64_t>(30, 10)};
  const auto ranges = balance_layers(bytes, std::vector<std::uint64_t>{100, 100});
  ASSERT_TRUE(ranges);
  EXPECT_EQ(*ranges, (std::vector<LayerRange>{{0, 15}, {15, 15}}));
}

TEST(Placement, RefusesWhatCannotBePlaced) {
  const ModelBytes bytes{.layers = {1, 1}};
  EXPECT_FALSE(balance_layers(bytes, {}));
  EXPECT_FALSE(balance_layers(bytes, std::vector<std::uint64_t>{1, 1, 1}));
  EXPECT_FALSE(balance_layers(bytes, std::vector<std::uint64_t>{1, 0}));
}

TEST(Placement, RefusesRangesThatDoNotCoverTheModelOnce) {
  const auto check = [](std::vector<LayerRange> ranges, std::size_t n_devices) {
    return check_layers(ranges, 6, n_devices).has_value();
  };
  EXPECT_TRUE(check({{0, 2}, {2, 4}}, 2));
  EXPECT_FALSE(check({{0, 2}, {2, 4}}, 3));
  EXPECT_FALSE(check({{0, 2}, {3, 3}}, 2));
  EXPECT_FALSE(check({{0, 3}, {2, 4}}, 2));
  EXPECT_FALSE(check({{0, 2}, {2, 3}}, 2));
  EXPECT_FALSE(check({{0, 2}, {2, 5}}, 2));
  EXPECT_FALSE(check({{0, 6}, {6, 0}}, 2));
  EXPECT_FALSE(check({{2, 4}, {0, 2}}, 2));
  EXPECT_FALSE(check({{0, 2}, {2, 0xFFFFFFFF}}, 2));
}

}  // namespace
}  // namespace luna::model
