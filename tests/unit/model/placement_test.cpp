// Layers are placed in order, none twice, and as evenly as can be.
#include "core/model/placement.hpp"

#include "core/model/spare_weights.hpp"
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

TEST(Placement, EachDeviceGetsLayersThatItHas) {
  const ModelBytes bytes{.layers = std::vector<std::uint64_t>(10, 10)};
  const std::vector<std::uint64_t> budgets = {100, 100, 100};
  const auto cut = [&](const std::vector<LayerRange>& at_hand) {
    return balance_layers(bytes, budgets, at_hand);
  };
  // Those with everything take what the others leave, as evenly as can be.
  EXPECT_EQ(*cut({{0, 10}, {0, 10}, {8, 2}}), (std::vector<LayerRange>{{0, 4}, {4, 4}, {8, 2}}));
  EXPECT_EQ(*cut({{0, 3}, {3, 3}, {6, 4}}), (std::vector<LayerRange>{{0, 3}, {3, 3}, {6, 4}}));
  const auto gap = cut({{0, 3}, {4, 2}, {6, 4}});
  ASSERT_FALSE(gap);
  EXPECT_EQ(gap.error().code(), Code::not_found);
  EXPECT_FALSE(cut({{3, 3}, {0, 3}, {6, 4}})) << "the order is that of the devices";
}

TEST(SpareWeights, WhatIsNearestIsPackedFirst) {
  ModelConfig config;
  config.architecture = "llama";
  config.n_layers = 6;
  config.tied_head = false;
  ShardOrder order;
  order.layers = {{0, 2}, {2, 1}, {3, 3}};
  const auto layers = [&](std::uint32_t rank) {
    order.rank = rank;
    std::vector<std::string> found;
    for (const std::string& name : spare_weight_names(order, config)) {
      const std::string part = name.substr(0, name.find('.', 4));  // "blk.N"
      if (found.empty() || found.back() != part) found.push_back(part);
    }
    return found;
  };
  EXPECT_EQ(layers(0), (std::vector<std::string>{"blk.2", "blk.3", "blk.4", "blk.5"}));
  // Beside both ends of the row, it may become either.
  EXPECT_EQ(
      layers(1),
      (std::vector<std::string>{
          "token_embd", "output_norm", "output", "blk.1", "blk.3", "blk.0", "blk.4", "blk.5"}));
  EXPECT_EQ(layers(2), (std::vector<std::string>{"blk.2", "blk.1", "blk.0"}));
  order.layers = {{0, 6}};
  EXPECT_TRUE(layers(0).empty()) << "nobody else can be lost";
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

/// Devices of 1 MB with 30 layers of 10 kB and 10 bytes of KV a token and layer.
std::vector<PlaceTerms> equal_places(std::size_t n_devices) {
  PlaceTerms place;
  place.memory_bytes = 1'000'000;
  place.layer_bytes.assign(30, 10'000);
  place.kv_token_bytes = 10;
  place.layer_ns = 100.0;
  return std::vector<PlaceTerms>(n_devices, place);
}
constexpr PlaceGoals kGoals{.kv_tokens_min = 64, .kv_tokens_wanted = 1'000'000};

std::vector<std::uint32_t> counts(const std::vector<LayerRange>& ranges) {
  std::vector<std::uint32_t> n;
  for (const LayerRange& range : ranges)
    n.push_back(range.count);
  return n;
}

TEST(PlaceBySpeed, TheDeviceWithTheHeadTakesFewerLayers) {
  auto places = equal_places(2);
  places[1].fixed_ns = 400.0;  // as long as four layers
  const auto ranges = place_by_speed(places, kGoals);
  ASSERT_TRUE(ranges) << ranges.error().message();
  EXPECT_EQ(counts(*ranges), (std::vector<std::uint32_t>{17, 13}));
}

TEST(PlaceBySpeed, AFasterDeviceTakesMoreLayers) {
  auto places = equal_places(3);
  places[1].layer_ns = 50.0;
  PlaceGoals goals = kGoals;
  goals.kv_given_up_max = 0.9;
  const auto ranges = place_by_speed(places, goals);
  ASSERT_TRUE(ranges);
  // Of those that take 800: the one whose middle device has most room.
  EXPECT_EQ(counts(*ranges), (std::vector<std::uint32_t>{8, 14, 8}));
  const auto roomier = place_by_speed(places, kGoals);
  ASSERT_TRUE(roomier);
  EXPECT_LE((*roomier)[1].count, 13U);
}

TEST(PlaceBySpeed, RoomIsNotGivenUpBeyondItsBound) {
  auto places = equal_places(2);
  places[1].fixed_ns = 2'000.0;  // even would be 25 and 5
  for (const double given_up : {0.0, 0.1, 0.25, 0.5}) {
    PlaceGoals goals = kGoals;
    goals.kv_given_up_max = given_up;
    const auto ranges = place_by_speed(places, goals);
    ASSERT_TRUE(ranges);
    const auto room = [](std::uint32_t n) { return (1e6 - n * 1e4) / (n * 10.0); };
    EXPECT_GE(room((*ranges)[0].count), (1.0 - given_up) * room(15) - 1.0) << given_up;
    if (given_up < 0.5) {
      EXPECT_LT(room((*ranges)[0].count + 1), (1.0 - given_up) * room(15));
    }
  }
}

TEST(PlaceBySpeed, RoomThatNobodyCanUseIsNoReasonToBeSlow) {
  auto places = equal_places(2);
  places[1].fixed_ns = 2'000.0;
  PlaceGoals goals = kGoals;
  goals.kv_given_up_max = 0.0;
  goals.kv_tokens_wanted = 1'000;
  const auto ranges = place_by_speed(places, goals);
  ASSERT_TRUE(ranges);
  EXPECT_EQ(counts(*ranges), (std::vector<std::uint32_t>{25, 5}));
}

TEST(PlaceBySpeed, OfEquallyFastPlacementsTheRoomiestIsTaken) {
  auto places = equal_places(3);
  for (PlaceTerms& place : places)
    place.layer_ns = 0.0;  // nothing known
  places[2].fixed_bytes = 700'000;
  const auto ranges = place_by_speed(places, kGoals);
  ASSERT_TRUE(ranges);
  EXPECT_LT((*ranges)[2].count, (*ranges)[0].count);
}

TEST(PlaceBySpeed, WhatFitsNowhereIsRefused) {
  auto places = equal_places(2);
  places[0].fixed_bytes = 990'000;
  places[1].memory_bytes = 200'000;
  const auto ranges = place_by_speed(places, kGoals);
  ASSERT_FALSE(ranges);
  EXPECT_EQ(ranges.error().code(), Code::exhausted);
  EXPECT_EQ(place_by_speed({}, kGoals).error().code(), Code::invalid_argument);
  EXPECT_EQ(place_by_speed(equal_places(31), kGoals).error().code(), Code::invalid_argument);
}

TEST(OrderByLayers, PartsStandWhereTheyLieAndWholesWhereAGapIs) {
  using Order = std::vector<std::size_t>;
  const LayerRange whole{0, 30};
  const LayerRange begin{0, 10};
  const LayerRange middle{10, 10};
  const LayerRange end{20, 10};
  EXPECT_EQ(order_by_layers(std::vector{whole, whole}, 30), (Order{0, 1}));
  EXPECT_EQ(order_by_layers(std::vector{end, middle, begin}, 30), (Order{2, 1, 0}));
  EXPECT_EQ(order_by_layers(std::vector{whole, begin}, 30), (Order{1, 0}));
  EXPECT_EQ(order_by_layers(std::vector{end, whole}, 30), (Order{1, 0}));
  EXPECT_EQ(order_by_layers(std::vector{end, begin, whole}, 30), (Order{1, 2, 0}));
  EXPECT_EQ(order_by_layers(std::vector{whole, middle, whole}, 30), (Order{0, 1, 2}));
  EXPECT_EQ(order_by_layers({}, 30), Order{});
}

}  // namespace
}  // namespace luna::model
