#include "load_point.hpp"

#include "limit_search.hpp"

#include <algorithm>
#include <iostream>
#include <utility>

namespace luna::sol_against_luna {
namespace {

// What is beyond a side shows soon, what is within takes as long as it takes: a search without a
// prediction begins low.
constexpr double kStartBelow = 3;
// A rate below this is none: a run of it would take hours.
constexpr double kRateMin = 0.02;
// How often a round's rate is lowered when its rounds say that the search was lucky.
constexpr int kLoweredMax = 8;

/// Of a round at this rate.
std::size_t round_requests(const MeasureOptions& options, double rate_per_s) {
  const double n_max = std::max(1.0, rate_per_s * options.round_s_max);
  return n_max < static_cast<double>(options.n_requests) ? static_cast<std::size_t>(n_max)
                                                         : options.n_requests;
}

}  // namespace

Result<std::optional<int>> LoadPoint::search_routing(Side which,
                                                     Routing routing,
                                                     double limit_ms,
                                                     int start) {
  return find_highest_step(start, RateGrid::nearest(kRateMin), [&](int step) -> Result<bool> {
    LUNA_TRY(const RunFigures figures,
             runs_.measure({.side = which,
                            .routing = routing,
                            .step = step,
                            .round = 0,
                            .n_requests = runs_.options().n_search_requests,
                            .give_up_ms = limit_ms}));
    return figures.is_within(limit_ms);
  });
}

/// Where a search begins: at the predicted rate; without one at a part of the rate at which each of
/// Sol's devices always has one request.
int LoadPoint::first_step(double predicted_rps) const {
  const double one_each_per_s = runs_.n_devices() * 1e3 / runs_.alone_ms();
  return RateGrid::nearest(predicted_rps > 0 ? predicted_rps : one_each_per_s / kStartBelow);
}

/// The best routing of the side and its highest rate.
Result<std::optional<SideResult>> LoadPoint::search(Side which, double limit_ms, int start) {
  const auto routings = which == Side::sol ? runs_.load().routings()
                                           : runs_.load().routings().first(1);  // there is one copy
  std::optional<int> best;
  Routing best_routing = routings.front();
  for (const Routing routing : routings) {
    // Another routing is worth a search only where it holds one step beyond the best so far.
    const RunKind beyond{.side = which,
                         .routing = routing,
                         .step = best.value_or(0) + 1,
                         .round = 0,
                         .n_requests = runs_.options().n_search_requests,
                         .give_up_ms = limit_ms};
    if (best) {
      LUNA_TRY(const RunFigures figures, runs_.measure(beyond));
      if (!figures.is_within(limit_ms)) continue;
    }
    LUNA_TRY(const auto found,
             search_routing(which, routing, limit_ms, best ? beyond.step : start));
    if (!found) continue;
    best = found;
    best_routing = routing;
  }
  if (!best) return std::optional<SideResult>();
  SideResult result{
      .rate_per_s = RateGrid::rate_per_s(*best), .routing = best_routing, .rounds = {}};
  LUNA_TRY(RunFigures figures,
           runs_.measure({.side = which,
                          .routing = best_routing,
                          .step = *best,
                          .round = 0,
                          .n_requests = runs_.options().n_search_requests,
                          .give_up_ms = limit_ms}));
  result.rounds.push_back(std::move(figures));
  return std::optional(std::move(result));
}

/// Whether the rounds' median keeps the limit. Lowers the rate by a step where it does not.
Result<bool> LoadPoint::confirm_side(Side which,
                                     std::optional<SideResult>& result,
                                     double limit_ms) {
  if (!result || result->rounds.size() < runs_.options().n_rounds) return true;
  std::vector<double> p95s;
  for (const RunFigures& round : result->rounds)
    p95s.push_back(round.p95_ms());
  if (median(p95s) <= limit_ms) return true;
  const int step = RateGrid::nearest(result->rate_per_s) - 1;
  std::cout << side_name(which) << ": the rounds are beyond the limit; a step lower" << std::endl;
  result->rate_per_s = RateGrid::rate_per_s(step);
  result->rounds.clear();
  return false;
}

/// Long runs of all sides in turn, at the rates found.
Result<void> LoadPoint::confirm(PointResult& point) {
  for (std::optional<SideResult>* side : point.sides())
    if (*side) (*side)->rounds.clear();
  for (int lowered = 0; lowered <= kLoweredMax; ++lowered) {
    for (std::size_t round = 1; round <= runs_.options().n_rounds; ++round) {
      for (std::size_t s = 0; s < kSides; ++s) {
        std::optional<SideResult>& side = *point.sides()[s];
        if (!side || side->rounds.size() >= round) continue;
        LUNA_TRY(RunFigures figures,
                 runs_.measure({.side = static_cast<Side>(s),
                                .routing = side->routing,
                                .step = RateGrid::nearest(side->rate_per_s),
                                .round = round,
                                .n_requests = round_requests(runs_.options(), side->rate_per_s),
                                .give_up_ms = std::nullopt}));
        side->rounds.push_back(std::move(figures));
      }
    }
    bool hold = true;
    for (std::size_t s = 0; s < kSides; ++s) {
      LUNA_TRY(const bool side_holds,
               confirm_side(static_cast<Side>(s), *point.sides()[s], point.p95_limit_ms()));
      hold = hold && side_holds;
    }
    if (hold) return {};
  }
  return Error{Code::internal,
               "rounds stay beyond the limit at rates far below what the search found"};
}

/// Searches, or takes the rate that was given.
Result<void> LoadPoint::find_rate(PointResult& point, Side which) {
  const std::size_t s = static_cast<std::size_t>(which);
  std::optional<SideResult>& side = *point.sides()[s];
  const auto& given = runs_.options().given_rates;
  if (given.empty()) {
    LUNA_TRY(side,
             search(which, point.p95_limit_ms(), first_step(point.predicted.sides()[s]->rps)));
    if (!side) point.refusals[s] = "no rate keeps the limit";
  } else if (const auto found = given.find(which); found != given.end()) {
    side = SideResult{.rate_per_s = RateGrid::rate_per_s(RateGrid::nearest(found->second)),
                      .routing = runs_.load().routings().front(),
                      .rounds = {}};
  } else {
    point.refusals[s] = "not asked for";
  }
  return {};
}

Result<PointResult> LoadPoint::measure_within(double limit_factor) {
  PointResult point = runs_.describe(limit_factor);
  bool fits = true;
  for (const Side which : {Side::sol, Side::luna}) {
    const Result<void> fitting = runs_.can_fit(which);
    if (!fitting) point.refusals[static_cast<std::size_t>(which)] = fitting.error().message();
    fits = fits && fitting;
  }
  // Without a request alone there is no limit, and nothing to compare with.
  if (!fits) return point;
  LUNA_TRY(point.predicted, runs_.predict_at(limit_factor));
  LUNA_TRY(find_rate(point, Side::luna));
  LUNA_TRY(find_rate(point, Side::sol));
  if (point.predicted.choice == model::Layout::tensor ||
      runs_.options().given_rates.contains(Side::tensor)) {
    LUNA_TRY(runs_.deploy_tensor());
    LUNA_TRY(find_rate(point, Side::tensor));
  }
  const MeasureOptions& options = runs_.options();
  point.is_of_search = options.n_rounds == 0 || limit_factor != options.limit_factors.front();
  if (!point.is_of_search) {
    LUNA_TRY(confirm(point));
  }
  return point;
}

Result<std::vector<PointResult>> LoadPoint::measure() {
  LUNA_TRY(runs_.deploy());
  if (runs_.can_fit(Side::sol)) {
    LUNA_TRY(runs_.measure_alone());
  }
  std::vector<PointResult> points;
  for (const double factor : runs_.options().limit_factors) {
    LUNA_TRY(PointResult point, measure_within(factor));
    points.push_back(std::move(point));
  }
  return points;
}

}  // namespace luna::sol_against_luna
