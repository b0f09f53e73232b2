// One point of the comparison: a load, a number of devices, a weight share.
#pragma once

#include "point_runs.hpp"
#include "results.hpp"

#include <luna/result.hpp>

#include <optional>
#include <string>
#include <vector>

namespace luna::sol_against_luna {

/// Measures a point: how rates are found. A resource.
class LoadPoint {
 public:
  LoadPoint(PointPlace place, DeploymentPlan plan, const PointRuns::Parts& parts)
      : runs_(place, std::move(plan), parts) {}

  /// A result a limit.
  /// Errors  timeout: the time box is over, what was measured is in the journal; cancelled
  Result<std::vector<PointResult>> measure();
  [[nodiscard]] const PointRuns& runs() const { return runs_; }

 private:
  Result<PointResult> measure_within(double limit_factor);
  [[nodiscard]] int first_step(double predicted_rps) const;
  Result<void> find_rate(PointResult& point, Side which);
  Result<std::optional<SideResult>> search(Side which, double limit_ms, int start);
  Result<std::optional<int>> search_routing(Side which,
                                            Routing routing,
                                            double limit_ms,
                                            int start);
  Result<void> confirm(PointResult& point);
  Result<bool> confirm_side(Side which, std::optional<SideResult>& result, double limit_ms);

  PointRuns runs_;
};

}  // namespace luna::sol_against_luna
