#include "limit_search.hpp"

#include <algorithm>
#include <cmath>

namespace luna::sol_against_luna {
namespace {
constexpr double kStepFactor = 1.04;
// 1.27 times the rate.
constexpr int kFirstStride = 6;
}  // namespace

double RateGrid::rate_per_s(int step) {
  return std::pow(kStepFactor, step);
}

int RateGrid::nearest(double rate_per_s) {
  return static_cast<int>(std::lround(std::log(rate_per_s) / std::log(kStepFactor)));
}

Result<std::optional<int>> find_highest_step(int start,
                                             int lowest,
                                             const std::function<Result<bool>(int step)>& holds) {
  std::optional<int> good, bad;
  int stride = kFirstStride;
  for (int step = std::max(start, lowest); !good || !bad;) {
    LUNA_TRY(const bool is_good, holds(step));
    if (is_good) {
      good = step;
      step += stride;
      stride *= 2;
    } else {
      bad = step;
      if (step == lowest) return std::optional<int>();
      step = std::max(step - kFirstStride, lowest);
    }
  }
  while (*bad - *good > 1) {
    const int step = *good + (*bad - *good) / 2;
    LUNA_TRY(const bool is_good, holds(step));
    (is_good ? good : bad) = step;
  }
  return good;
}

}  // namespace luna::sol_against_luna
