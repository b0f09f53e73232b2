// What the cost model says of a point before anything is measured there.
#pragma once

#include "core/model/layout_cost.hpp"
#include "deployment.hpp"
#include "loads.hpp"

#include <luna/result.hpp>

#include <array>
#include <cstdint>
#include <optional>

namespace luna::sol_against_luna {

/// A side at the highest rate within the limit.
struct PredictedSide {
  double rps = 0;                ///< 0: the side cannot be, or no rate is within the limit
  double hit_ratio = 0;          ///< cached tokens of all prompt tokens
  double step_seqs = 0;          ///< sequences a step
  double recomputed_tokens = 0;  ///< after pre-emption, a request
};

/// By the cost model that `layout = "auto"` decides with, under the point's load and limit.
struct Prediction {
  PredictedSide sol;
  PredictedSide luna;
  PredictedSide tensor;
  double alone_ms = 0;                  ///< a mean request alone on a copy
  std::optional<model::Layout> choice;  ///< what "auto" takes; none: nothing was predicted

  /// By Side.
  [[nodiscard]] std::array<const PredictedSide*, kSides> sides() const {
    return {&sol, &luna, &tensor};
  }
};

/// A load as a point has it. A value.
struct DrawnLoad {
  Load load;
  std::uint32_t n_sessions = 1;             ///< of a load that has some
  std::uint32_t n_sequence_tokens_max = 0;  ///< requests are shortened to it
};

/// The plan's devices and memory. Times the devices where their speed is not known yet: nothing
/// else runs meanwhile.
Result<model::LayoutProblem> describe_layouts(const DeploymentPlan& plan);

/// Each of Sol's copies is an engine of its own, which holds nothing of the others'.
model::LayoutProblem without_slices(model::LayoutProblem problem);

/// problem  of describe_layouts()
/// Errors   exhausted: no layout fits
Result<Prediction> predict(model::LayoutProblem problem,
                           const DrawnLoad& drawn,
                           double limit_factor);

}  // namespace luna::sol_against_luna
