#include "prediction.hpp"

#include "core/app/layout_choice.hpp"

namespace luna::sol_against_luna {
namespace {

// Users of a load without sessions: only how many requests are open bounds it.
constexpr std::uint32_t kManyUsers = 4096;

}  // namespace

Result<Prediction> predict(const DeploymentPlan& plan,
                           const Load& load,
                           std::uint32_t n_sessions,
                           double limit_factor) {
  LUNA_TRY(model::LayoutProblem problem,
           app::layout_problem(
               luna_settings(plan), plan.base.models.front().name, {plan.plugin_folder}));
  if (plan.luna_layers) problem.pipeline_layers = *plan.luna_layers;
  problem.load = {.prompt = load.n_prompt,
                  .reused = load.n_history,
                  .output = load.n_generated,
                  .users = load.has_sessions() ? n_sessions : kManyUsers,
                  .users_wait = false};
  const double limit_ns = limit_factor * model::time_alone_ns(problem);
  Prediction made;
  made.sol_rps =
      model::forecast_layout(problem, model::Layout::replicas, limit_ns).best.requests_per_s;
  made.luna_rps =
      model::forecast_layout(problem, model::Layout::pipeline, limit_ns).best.requests_per_s;
  LUNA_TRY(const model::LayoutChoice choice, model::choose_layout(problem));
  made.choice = choice.layout;
  return made;
}

}  // namespace luna::sol_against_luna
