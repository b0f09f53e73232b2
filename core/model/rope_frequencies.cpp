#include "core/model/rope_frequencies.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace luna::model {
namespace {

/// The pair (as a real number) that turns `n_turns` times within the original context.
double pair_by_turns(double n_turns, std::uint32_t n_rot, double base, double context) {
  return n_rot * std::log(context / (n_turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(base));
}

/// Share of the unstretched frequency in each pair: 1 for fast ones, 0 for slow ones.
class YarnRamp {
 public:
  YarnRamp(std::uint32_t n_rot, double base, const RopeScaling& scaling)
      : extrapolation_factor_(scaling.extrapolation_factor) {
    const double context = scaling.original_context;
    first_ = std::max(0.0, std::floor(pair_by_turns(scaling.beta_fast, n_rot, base, context)));
    last_ =
        std::min(n_rot - 1.0, std::ceil(pair_by_turns(scaling.beta_slow, n_rot, base, context)));
  }

  [[nodiscard]] double share(std::uint32_t pair) const {
    const double width = std::max(0.001, last_ - first_);  // the reference's guard against 0
    return (1.0 - std::clamp((pair - first_) / width, 0.0, 1.0)) * extrapolation_factor_;
  }

 private:
  double first_ = 0.0;
  double last_ = 0.0;
  double extrapolation_factor_ = 1.0;
};

}  // namespace

RopeConfig make_rope(std::uint32_t n_rot,
                     double base,
                     const RopeScaling& scaling,
                     std::span<const float> factors) {
  RopeConfig rope;
  rope.n_rot = n_rot;
  rope.base = base;
  const bool is_yarn = scaling.kind == RopeScalingKind::yarn;
  const double stretch = scaling.kind == RopeScalingKind::none ? 1.0 : scaling.factor;
  for (std::uint32_t pair = 0; pair < n_rot / 2; ++pair) {
    double frequency = std::pow(base, -2.0 * pair / n_rot);
    if (!factors.empty()) frequency /= factors[pair];
    const double stretched = frequency / stretch;
    const double share = is_yarn ? YarnRamp(n_rot, base, scaling).share(pair) : 0.0;
    rope.frequencies.push_back(stretched * (1.0 - share) + frequency * share);
  }
  if (is_yarn) {
    const bool mixes = scaling.extrapolation_factor != 0.0;
    rope.magnitude =
        scaling.attention_factor * (mixes ? 1.0 + 0.1 * std::log(scaling.factor) : 1.0);
  }
  return rope;
}

}  // namespace luna::model
