// The highest rate at which a latency stays within its limit.
#pragma once

#include <luna/result.hpp>

#include <functional>
#include <optional>

namespace luna::sol_against_luna {

/// Rates are taken from a grid of 4 % steps: searches of different limits and sides meet the same
/// rates, and what was measured once need not be measured again. A step of the grid, as an index.
struct RateGrid {
  static double rate_per_s(int step);
  /// The step nearest to a rate above 0.
  static int nearest(double rate_per_s);
};

/// The highest step of the grid that holds: by strides until one does and one does not, by halving
/// between. Strides double upwards, where a run of so many requests is short, and stay as they are
/// downwards, where it is long. Nothing: none down to `lowest` holds.
///
/// start    where to begin
/// holds    measures a step; an error ends the search
Result<std::optional<int>> find_highest_step(int start,
                                             int lowest,
                                             const std::function<Result<bool>(int step)>& holds);

}  // namespace luna::sol_against_luna
