// What the cost model says of a point before anything is measured there.
#pragma once

#include "core/model/layout_cost.hpp"
#include "deployment.hpp"
#include "loads.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <optional>

namespace luna::sol_against_luna {

/// By the cost model that `layout = "auto"` decides with, under the point's load and limit.
struct Prediction {
  double sol_rps = 0;  ///< highest rate of whole copies; 0: they cannot be, or are beyond the limit
  double luna_rps = 0;                  ///< of the pipeline
  std::optional<model::Layout> choice;  ///< what "auto" takes; none: nothing was predicted
};

/// Times the devices where their speed is not known yet: nothing else runs meanwhile.
///
/// n_sessions  of a load that has some
Result<Prediction> predict(const DeploymentPlan& plan,
                           const Load& load,
                           std::uint32_t n_sessions,
                           double limit_factor);

}  // namespace luna::sol_against_luna
