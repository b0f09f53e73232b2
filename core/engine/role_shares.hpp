// Weights that follow load.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace luna::engine {

/// Which part of their devices' time models get that share them. A value; pure.
///
/// Each is to get what its load is of all loads, but never less than kFloor. The weights stay while
/// none is further than kBegin from that; once one was in two windows in a row, they go half of the
/// way in each window until all are within kEnd: so a load that comes and goes changes nothing, and
/// one that stays is followed in a few windows.
class RoleShares {
 public:
  static constexpr double kFloor = 0.05;
  static constexpr double kBegin = 0.10;
  static constexpr double kEnd = 0.02;

  /// weights  positive; only what they are to each other counts
  explicit RoleShares(std::vector<double> weights);

  /// Takes what was measured in a window.
  ///
  /// loads    [weights] parts of the window in which each had work, 0..1
  /// Returns  whether a weight changed
  bool follow(std::span<const double> loads);
  /// They are 1 together.
  [[nodiscard]] std::span<const double> weights() const { return weights_; }

 private:
  std::vector<double> weights_;
  std::vector<double> wanted_;  // scratch of follow()
  std::uint32_t n_off_ = 0;     // windows in a row
  bool follows_ = false;
};

}  // namespace luna::engine
