#include "largest_request.hpp"

#include "budgets.hpp"
#include "core/app/prompt_runner.hpp"
#include "core/app/stop_signal.hpp"
#include "core/bench/prompt_source.hpp"

#include <boost/json/object.hpp>

#include <chrono>
#include <sstream>
#include <utility>

namespace luna::sol_against_luna {
namespace {

// Of every request that is tried.
constexpr std::uint32_t kGenerated = 64;

Result<pipeline::Request> make_request(Deployment& side, std::uint32_t n_tokens) {
  bench::SyntheticPrompts prompts;
  prompts.n_tokens = n_tokens - kGenerated;
  LUNA_TRY(const auto source, bench::PromptSource::synthetic(prompts, kGenerated));
  pipeline::Request request;
  request.id = "largest";
  request.model = side.pipeline(0).model_names().front();
  request.endpoint = pipeline::Endpoint::completion;
  request.prompt_ids = std::get<bench::TokenIds>(source.prompt(0).input);
  request.add_special_tokens = false;
  request.n_generated_max = kGenerated;
  request.sampling.temperature = 0;
  request.stop.ignore_eos = true;
  return request;
}

boost::json::object side_object(const LargestRequest& side) {
  boost::json::object object = {
      {"tokens", side.n_tokens}, {"generated", side.n_answered}, {"seconds", side.seconds}};
  if (side.n_refused > 0) {
    object["refused_tokens"] = side.n_refused;
    object["refusal"] = side.refusal;
  }
  return object;
}

}  // namespace

Result<LargestRequest> serve_largest(Deployment& side) {
  std::uint32_t fits = kGenerated + 1, refused = side.context_tokens_max() + 1;
  while (refused - fits > 1) {
    const std::uint32_t n = fits + (refused - fits) / 2;
    (side.can_fit(n - kGenerated, kGenerated) ? fits : refused) = n;
  }
  LargestRequest largest;
  largest.n_tokens = fits;
  if (refused <= side.context_tokens_max()) {
    largest.n_refused = refused;
    // By the front door, as a client would.
    LUNA_TRY(auto request, make_request(side, refused));
    const auto answer = app::run_prompt(
        side.pipeline(0), std::move(request), [](std::string_view) {}, [] { return true; });
    if (answer)
      return Error{Code::internal,
                   "a request of " + std::to_string(refused) +
                       " tokens was served, although it does "
                       "not fit"};
    largest.refusal = answer.error().message();
  }
  LUNA_TRY(auto request, make_request(side, fits));
  const auto begin = std::chrono::steady_clock::now();
  LUNA_TRY(const app::PromptOutcome outcome,
           app::run_prompt(
               side.pipeline(0),
               std::move(request),
               [](std::string_view) {},
               [] { return !app::StopSignal::is_set(); }));
  largest.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  largest.n_answered = outcome.usage.n_generated;
  if (largest.n_answered != kGenerated)
    return Error{Code::unavailable,
                 "a request of " + std::to_string(fits) + " tokens ended after " +
                     std::to_string(largest.n_answered) + " of " + std::to_string(kGenerated)};
  return largest;
}

Result<LargestRow> measure_largest(DeploymentPlan plan, double weight_share) {
  LUNA_TRY(const model::ShardMemory copy, measure_copy(plan));
  plan.device_bytes = device_budget_bytes(copy, weight_share);
  LargestRow row{.n_devices = plan.n_devices,
                 .weight_share = weight_share,
                 .device_bytes = plan.device_bytes,
                 .sol = {},
                 .luna = {}};
  for (auto [side, largest] : {std::pair{Side::sol, &row.sol}, {Side::luna, &row.luna}}) {
    LUNA_TRY(const auto deployment, Deployment::start(side, plan));
    auto served = serve_largest(*deployment);
    if (!served) return served.error().in(side_name(side));
    *largest = std::move(*served);
  }
  return row;
}

boost::json::object to_json(const LargestRow& row) {
  return {{"load", "largest"},
          {"devices", row.n_devices},
          {"weight_share", row.weight_share},
          {"device_bytes", row.device_bytes},
          {"sol", side_object(row.sol)},
          {"luna", side_object(row.luna)}};
}

std::string to_text(const LargestRow& row) {
  std::ostringstream out;
  out << "largest request, " << row.n_devices << " devices of "
      << model::bytes_text(row.device_bytes) << ", share " << row.weight_share << '\n';
  for (const auto& [name, side] : {std::pair{"Sol ", &row.sol}, {"Luna", &row.luna}}) {
    out << "  " << name << " serves " << side->n_tokens << " tokens in " << side->seconds << " s";
    if (side->n_refused > 0) out << " and refuses " << side->n_refused << ": " << side->refusal;
    out << '\n';
  }
  return out.str();
}

}  // namespace luna::sol_against_luna
