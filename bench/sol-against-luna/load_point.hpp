// One point of the comparison: a load, a number of devices, a weight share.
#pragma once

#include "deployment.hpp"
#include "journal.hpp"
#include "loads.hpp"
#include "results.hpp"
#include "time_box.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace luna::sol_against_luna {

/// How points are measured. A value.
struct MeasureOptions {
  std::vector<double> limit_factors = {
      10};                        ///< the first gets rounds, the others the search's runs
  std::size_t n_requests = 1000;  ///< a round
  std::size_t n_rounds = 3;       ///< 0: what the search says
  std::size_t n_search_requests = 200;
  double slice_s = 60;  ///< longest run; longer ones are several, each with a warm-up
  std::uint64_t seed = 1;
};

/// Measures a point, from the journal as far as it goes. A resource.
class LoadPoint {
 public:
  /// Everything outlives the point.
  struct Parts {
    const MeasureOptions& options;
    Journal& journal;
    TimeBox& time;
  };
  struct Place {
    const Load* load = nullptr;
    double weight_share = 0.8;
  };

  LoadPoint(Place place, DeploymentPlan plan, const Parts& parts)
      : place_(place), plan_(std::move(plan)), parts_(parts) {}

  /// A result a limit.
  /// Errors  timeout: the time box is over, what was measured is in the journal; cancelled
  Result<std::vector<PointResult>> measure();

  /// The point, for people and in the journal.
  [[nodiscard]] std::string key() const;
  /// What the keys of a side's runs begin with.
  [[nodiscard]] std::string run_key(Side which, Routing routing) const;

 private:
  /// Runs of one kind.
  struct RunKind {
    Side side = Side::sol;
    Routing routing = Routing::sticky;
    int step = 0;           // of the grid of rates
    std::size_t round = 0;  // 0: the search
    std::size_t n_requests = 0;
    std::optional<double> give_up_ms;
  };

  [[nodiscard]] Deployment& side(Side which) { return which == Side::sol ? *sol_ : *luna_; }
  Result<void> deploy();
  void size_load();
  [[nodiscard]] PointResult describe(double limit_factor) const;
  Result<Prediction> predict_at(double limit_factor);
  Result<void> measure_alone();
  Result<RunFigures> measure(const RunKind& kind);
  Result<RunFigures> measure_slice(const RunKind& kind,
                                   std::size_t slice,
                                   std::size_t n_requests,
                                   std::size_t n_late_allowed);
  [[nodiscard]] std::size_t n_warm_up(double rate_per_s) const;
  [[nodiscard]] int first_step(double predicted_rps) const;
  Result<std::optional<SideResult>> search(Side which, double limit_ms, int start);
  Result<std::optional<int>> search_routing(Side which,
                                            Routing routing,
                                            double limit_ms,
                                            int start);
  Result<void> confirm(PointResult& point);
  Result<bool> confirm_side(Side which, std::optional<SideResult>& result, double limit_ms);

  Place place_;
  DeploymentPlan plan_;
  Parts parts_;
  std::unique_ptr<Deployment> sol_, luna_;
  double alone_ms_ = 0;
  std::uint32_t n_sessions_ = 1;
  std::uint32_t n_sequence_tokens_max_ = 0;
  double shortened_ratio_ = 0;
};

}  // namespace luna::sol_against_luna
