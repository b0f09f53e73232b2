#include "core/engine/role_shares.hpp"

#include "core/base/assert.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace luna::engine {
namespace {

// Less work than this is no load to follow: it would be divided by itself.
constexpr double kLoadMin = 0.01;
constexpr std::uint32_t kWindows = 2;

void normalise(std::vector<double>& shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares)
    share /= sum;
}

}  // namespace

RoleShares::RoleShares(std::vector<double> weights)
    : weights_(std::move(weights)), wanted_(weights_.size()) {
  normalise(weights_);
}

bool RoleShares::follow(std::span<const double> loads) {
  LUNA_ASSERT(loads.size() == weights_.size());
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  if (sum < kLoadMin) return false;
  double furthest = 0.0;
  // What is above the floor is shared out by load.
  const double free = 1.0 - kFloor * static_cast<double>(weights_.size());
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    wanted_[i] = kFloor + free * loads[i] / sum;
    furthest = std::max(furthest, std::abs(wanted_[i] - weights_[i]));
  }
  n_off_ = furthest > kBegin ? n_off_ + 1 : 0;
  if (n_off_ >= kWindows) follows_ = true;
  if (furthest <= kEnd) follows_ = false;
  if (!follows_) return false;
  for (std::size_t i = 0; i < weights_.size(); ++i)
    weights_[i] += (wanted_[i] - weights_[i]) / 2;
  return true;
}

}  // namespace luna::engine
