// Weights that follow load, and do not flap.
#include "core/engine/role_shares.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace luna::engine {
namespace {

double sum(const RoleShares& shares) {
  return std::accumulate(shares.weights().begin(), shares.weights().end(), 0.0);
}

bool follow(RoleShares& shares, std::vector<double> loads, int n_windows = 1) {
  bool any = false;
  for (int i = 0; i < n_windows; ++i) {
    any |= shares.follow(loads);
    EXPECT_NEAR(sum(shares), 1.0, 1e-9);
  }
  return any;
}

TEST(RoleShares, WeightsAreOneTogether) {
  const RoleShares shares({4.0, 3.0, 1.0});
  EXPECT_DOUBLE_EQ(shares.weights()[0], 0.5);
  EXPECT_DOUBLE_EQ(shares.weights()[2], 0.125);
}

TEST(RoleShares, ALoadThatStaysIsFollowedWithinFiveWindows) {
  RoleShares shares({0.5, 0.5});
  EXPECT_TRUE(follow(shares, {1.0, 0.25}, 5));
  EXPECT_NEAR(shares.weights()[0], 0.05 + 0.9 * 0.8, 0.03);
}

TEST(RoleShares, ALoadThatComesForOneWindowChangesNothing) {
  RoleShares shares({0.5, 0.5});
  for (int i = 0; i < 50; ++i) {
    EXPECT_FALSE(follow(shares, {1.0, 0.0}));
    EXPECT_FALSE(follow(shares, {0.8, 0.8}));
  }
  EXPECT_DOUBLE_EQ(shares.weights()[0], 0.5);
}

TEST(RoleShares, ALoadThatSwingsALittleChangesNothing) {
  RoleShares shares({0.5, 0.5});
  follow(shares, {0.9, 0.3}, 20);
  const double before = shares.weights()[0];
  for (int i = 0; i < 50; ++i)
    EXPECT_FALSE(follow(shares, {0.9, i % 2 == 0 ? 0.24 : 0.38}));
  EXPECT_DOUBLE_EQ(shares.weights()[0], before);
}

TEST(RoleShares, WhoHasNoWorkKeepsTheFloor) {
  RoleShares shares({0.3, 0.3, 0.4});
  follow(shares, {1.0, 0.0, 0.0}, 50);
  EXPECT_NEAR(shares.weights()[0], 0.90, 0.02);
  EXPECT_NEAR(shares.weights()[1], RoleShares::kFloor, 0.01);
}

TEST(RoleShares, NoLoadIsNotFollowed) {
  RoleShares shares({0.8, 0.2});
  EXPECT_FALSE(follow(shares, {0.0, 0.0}, 10));
  EXPECT_FALSE(follow(shares, {0.0, 0.004}, 10));
  EXPECT_DOUBLE_EQ(shares.weights()[0], 0.8);
}

}  // namespace
}  // namespace luna::engine
