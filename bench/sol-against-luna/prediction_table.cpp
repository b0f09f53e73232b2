#include "prediction_table.hpp"

#include "budgets.hpp"
#include "journal.hpp"
#include "results.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include <algorithm>
#include <iostream>
#include <limits>
#include <string>

namespace luna::sol_against_luna {
namespace {

namespace json = boost::json;

/// What a point's sides are before the limit counts.
struct PredictedPoint {
  model::LayoutProblem problem;
  DrawnLoad drawn;
  PointResult result;
};

Result<PredictedPoint> describe_point(DeploymentPlan plan, const Load& load) {
  plan.expected = expected_of(load);
  PredictedPoint point;
  LUNA_TRY(point.problem, describe_layouts(plan));
  const std::uint64_t n_sol =
      model::kv_tokens_of(without_slices(point.problem), model::Layout::replicas);
  const std::uint64_t n_luna = model::kv_tokens_of(point.problem, model::Layout::pipeline);
  point.drawn = {.load = load};
  if (load.has_sessions())
    point.drawn.n_sessions = n_sessions(plan.n_devices * n_sol, n_luna, load.n_sequence_tokens());
  // What a model was trained for is beyond all loads.
  const std::uint32_t n_context = plan.base.models.front().context_tokens_max.value_or(
      std::numeric_limits<std::uint32_t>::max());
  point.drawn.n_sequence_tokens_max = sequence_tokens_max(n_sol, n_luna, n_context, load.n_history);
  PointResult& result = point.result;
  result.load = load.name;
  result.n_devices = plan.n_devices;
  result.device_bytes = plan.device_bytes;
  result.sol_kv_tokens = n_sol;
  result.luna_kv_tokens = n_luna;
  result.n_sessions = load.has_sessions() ? point.drawn.n_sessions : 0;
  for (const auto& [side, n_tokens] : {std::pair{Side::sol, n_sol}, {Side::luna, n_luna}})
    result.refusals[static_cast<std::size_t>(side)] =
        n_tokens < load.n_history + 2 ? "no room for a request" : "not measured";
  return point;
}

/// As a campaign judges it: both sides have room for requests, shortened where they must be.
bool can_be_measured(const PredictedPoint& point, const Load& load) {
  return std::min(point.result.sol_kv_tokens, point.result.luna_kv_tokens) >= load.n_history + 2;
}

}  // namespace

Result<void> print_predictions(const CampaignOptions& options) {
  LUNA_TRY(const model::ShardMemory copy, measure_copy(options.plan));
  json::array rows;
  for (const std::uint32_t n_devices : options.n_devices) {
    for (const double share : options.weight_shares) {
      DeploymentPlan plan = options.plan;
      plan.n_devices = n_devices;
      plan.device_bytes = device_budget_bytes(copy, share);
      for (const Load* load : options.loads) {
        LUNA_TRY(PredictedPoint point, describe_point(plan, *load));
        point.result.weight_share = share;
        for (const double factor : options.measure.limit_factors) {
          point.result.limit_factor = factor;
          if (can_be_measured(point, *load)) {
            LUNA_TRY(point.result.predicted, predict(point.problem, point.drawn, factor));
          }
          point.result.alone_ms = point.result.predicted.alone_ms;
          std::cout << to_text(point.result) << std::flush;
          rows.push_back(to_json(point.result));
        }
      }
    }
  }
  if (options.json_file.empty()) return {};
  return write_file(options.json_file, json::serialize(json::object{{"rows", rows}}) + '\n');
}

}  // namespace luna::sol_against_luna
