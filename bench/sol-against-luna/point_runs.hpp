// One point of the comparison, laid out and ready: its sides and runs of them.
#pragma once

#include "deployment.hpp"
#include "journal.hpp"
#include "loads.hpp"
#include "results.hpp"
#include "time_box.hpp"

#include <luna/result.hpp>

#include <array>
#include <cstdint>
#include <map>
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
  /// A round that would last longer has fewer requests. No end: none does.
  double round_s_max = 1e300;
  std::size_t n_search_requests = 200;
  double slice_s = 60;  ///< longest run; longer ones are several, each with a warm-up
  std::uint64_t seed = 1;
  /// Requests a second that rounds begin with, nothing is searched; sides without one are not
  /// measured. None: all sides are searched.
  std::map<Side, double> given_rates;
};

/// What is measured where. A value.
struct PointPlace {
  const Load* load = nullptr;
  double weight_share = 0.8;
};

/// Runs of one kind.
struct RunKind {
  Side side = Side::sol;
  Routing routing = Routing::sticky;
  int step = 0;           ///< of the grid of rates
  std::size_t round = 0;  ///< 0: the search
  std::size_t n_requests = 0;
  std::optional<double> give_up_ms;
};

/// Sides of a point and their runs, from the journal as far as it goes. A resource.
class PointRuns {
 public:
  /// Everything outlives the point.
  struct Parts {
    const MeasureOptions& options;
    Journal& journal;
    TimeBox& time;
  };

  PointRuns(PointPlace place, DeploymentPlan plan, const Parts& parts)
      : place_(place), plan_(std::move(plan)), parts_(parts) {}

  /// Loads Sol's copies and Luna's pipeline, and sizes the load by what they hold.
  Result<void> deploy();
  /// Loads the tensor split, once.
  Result<void> deploy_tensor();
  /// Whether a request of mean lengths, shortened where the load's are, fits a copy of a side.
  [[nodiscard]] Result<void> can_fit(Side side) const;
  /// The limits' unit. Errors  those of the requests; timeout
  Result<void> measure_alone();
  [[nodiscard]] double alone_ms() const { return alone_ms_; }
  /// Made once, so that a search that goes on goes the same way. All sides sleep meanwhile.
  Result<Prediction> predict_at(double limit_factor);
  /// One run, or several where it would be too long for one.
  Result<RunFigures> measure(const RunKind& kind);
  /// What is known before anything runs.
  [[nodiscard]] PointResult describe(double limit_factor) const;
  [[nodiscard]] const Load& load() const { return *place_.load; }
  [[nodiscard]] std::uint32_t n_devices() const { return plan_.n_devices; }
  [[nodiscard]] const MeasureOptions& options() const { return parts_.options; }

  /// The point, for people and in the journal.
  [[nodiscard]] std::string key() const;
  /// What the keys of a side's runs begin with.
  [[nodiscard]] std::string run_key(Side which, Routing routing) const;

 private:
  [[nodiscard]] Deployment& side(Side which) const {
    return *sides_[static_cast<std::size_t>(which)];
  }
  Result<void> start(Side which);
  void size_load();
  /// Requests of mean lengths, shortened where the load's are.
  [[nodiscard]] Result<bench::PromptSource> mean_prompts() const;
  Result<RunFigures> measure_slice(const RunKind& kind,
                                   std::size_t slice,
                                   std::size_t n_requests,
                                   std::size_t n_late_allowed);
  [[nodiscard]] std::size_t n_warm_up(double rate_per_s) const;

  PointPlace place_;
  DeploymentPlan plan_;
  Parts parts_;
  std::array<std::unique_ptr<Deployment>, kSides> sides_;
  double alone_ms_ = 0;
  std::uint32_t n_sessions_ = 1;
  std::uint32_t n_sequence_tokens_max_ = 0;
  double shortened_ratio_ = 0;
};

}  // namespace luna::sol_against_luna
