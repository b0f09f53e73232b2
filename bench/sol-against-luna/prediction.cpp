#include "prediction.hpp"

#include "core/app/layout_choice.hpp"

#include <utility>

namespace luna::sol_against_luna {
namespace {

// Users of a load without sessions: only how many requests are open bounds it.
constexpr std::uint32_t kManyUsers = 4096;
// More than a start has time for: rates of two seeds then differ by a few per cent.
constexpr std::uint32_t kRequests = 4'000;

PredictedSide side_of(const model::LoadForecast& forecast) {
  return {.rps = forecast.requests_per_s,
          .hit_ratio = forecast.hit_ratio,
          .step_seqs = forecast.step_seqs_mean,
          .recomputed_tokens = forecast.recomputed_mean};
}

}  // namespace

Result<model::LayoutProblem> describe_layouts(const DeploymentPlan& plan) {
  LUNA_TRY(model::LayoutProblem problem,
           app::layout_problem(
               luna_settings(plan), plan.base.models.front().name, {plan.plugin_folder}));
  if (plan.luna_layers) problem.pipeline_layers = *plan.luna_layers;
  return problem;
}

model::LayoutProblem without_slices(model::LayoutProblem problem) {
  for (model::LayoutDevice& device : problem.devices)
    device.slice_bytes = 0;
  return problem;
}

Result<Prediction> predict(model::LayoutProblem problem,
                           const DrawnLoad& drawn,
                           double limit_factor) {
  const Load& load = drawn.load;
  problem.load = {.prompt = load.n_prompt,
                  .reused = load.n_history,
                  .output = load.n_generated,
                  .users = load.has_sessions() ? drawn.n_sessions : kManyUsers,
                  .users_wait = false,
                  .histories_differ = false,
                  .request_tokens_max = drawn.n_sequence_tokens_max};
  problem.n_requests = kRequests;
  Prediction made;
  LUNA_TRY(const model::LayoutChoice choice, model::choose_layout(problem));
  made.choice = choice.layout;
  const double alone_ns = model::time_alone_ns(problem);
  const double limit_ns = limit_factor * alone_ns;
  made.alone_ms = alone_ns / 1e6;
  made.luna = side_of(model::forecast_layout(problem, model::Layout::pipeline, limit_ns).best);
  made.tensor = side_of(model::forecast_layout(problem, model::Layout::tensor, limit_ns).best);
  made.sol = side_of(
      model::forecast_layout(without_slices(problem), model::Layout::replicas, limit_ns).best);
  return made;
}

}  // namespace luna::sol_against_luna
