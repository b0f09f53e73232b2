#include "load_point.hpp"

#include "budgets.hpp"
#include "core/base/word_hash.hpp"
#include "limit_search.hpp"
#include "open_loop.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <thread>
#include <utility>

namespace luna::sol_against_luna {
namespace {

constexpr std::size_t kAloneRequests = 5;
// Until a queue has the length that it keeps, in requests that run alone.
constexpr double kWarmUpRequestTimes = 4;
constexpr std::size_t kSliceRequestsMin = 25;
// What is beyond a side shows soon, what is within takes as long as it takes: a search without a
// prediction begins low.
constexpr double kStartBelow = 3;
// A rate below this is none: a run of it would take hours.
constexpr double kRateMin = 0.02;
// How often a round's rate is lowered when its rounds say that the search was lucky.
constexpr int kLoweredMax = 8;

std::uint64_t mix(std::uint64_t seed, std::uint64_t a, std::uint64_t b) {
  const std::array<std::uint32_t, 4> words = {static_cast<std::uint32_t>(a),
                                              static_cast<std::uint32_t>(a >> 32U),
                                              static_cast<std::uint32_t>(b),
                                              static_cast<std::uint32_t>(b >> 32U)};
  return hash_words(seed, words);
}

std::size_t n_cores() {
  return std::max(1U, std::thread::hardware_concurrency());
}

/// The side as runs of it are keyed.
std::string name_of(Side side, const DeploymentPlan& plan) {
  std::string name(side_name(side));
  if (side == Side::sol || !plan.luna_layers) return name;
  name += " of layers";
  for (const std::uint32_t count : *plan.luna_layers)
    name += ' ' + std::to_string(count);
  return name;
}

std::size_t n_late(const RunFigures& figures, double limit_ms) {
  return figures.n_failed + static_cast<std::size_t>(std::count_if(
                                figures.e2e_ms.begin(), figures.e2e_ms.end(), [&](double ms) {
                                  return ms > limit_ms;
                                }));
}

}  // namespace

std::string LoadPoint::run_key(Side which, Routing routing) const {
  return key() + ", " + name_of(which, plan_) + ", " + std::string(routing_name(routing)) + ',';
}

std::string LoadPoint::key() const {
  std::array<char, 128> text{};
  std::snprintf(text.data(),
                text.size(),
                "%s, %u devices, share %.3f, %s, %s weights, seed %llu",
                std::string(place_.load->name).c_str(),
                plan_.n_devices,
                place_.weight_share,
                plan_.luna_policy.c_str(),
                plan_.shares_weights ? "shared" : "private",
                static_cast<unsigned long long>(parts_.options.seed));
  return text.data();
}

Result<void> LoadPoint::deploy() {
  LUNA_TRY(const model::ShardMemory copy, measure_copy(plan_));
  plan_.device_bytes = device_budget_bytes(copy, place_.weight_share);
  plan_.expected = expected_of(*place_.load);
  LUNA_TRY(sol_, Deployment::start(Side::sol, plan_));
  LUNA_TRY(luna_, Deployment::start(Side::luna, plan_));
  return {};
}

/// Sessions and the largest request, by the KV of both sides.
void LoadPoint::size_load() {
  const Load& load = *place_.load;
  const std::uint64_t n_sol = sol_->kv_tokens() * sol_->n_copies();
  if (load.has_sessions())
    n_sessions_ = n_sessions(n_sol, luna_->kv_tokens(), load.n_sequence_tokens());
  n_sequence_tokens_max_ = sequence_tokens_max(
      sol_->kv_tokens(), luna_->kv_tokens(), sol_->context_tokens_max(), load.n_history);
  // The same draws with a bound and without one.
  const PromptSeeds seeds{.history = 0, .draws = parts_.options.seed, .ids = 0};
  const auto bounded = make_prompts(load, n_sessions_, n_sequence_tokens_max_, seeds);
  const auto free = make_prompts(load, n_sessions_, 1U << 30U, seeds);
  std::size_t n_shortened = 0;
  for (std::size_t i = 0; i < parts_.options.n_requests; ++i)
    if (bounded->prompt(i).n_generated_max != free->prompt(i).n_generated_max) ++n_shortened;
  shortened_ratio_ = static_cast<double>(n_shortened) /
                     static_cast<double>(std::max<std::size_t>(1, parts_.options.n_requests));
}

PointResult LoadPoint::describe(double limit_factor) const {
  PointResult point;
  point.load = place_.load->name;
  point.n_devices = plan_.n_devices;
  point.weight_share = place_.weight_share;
  point.limit_factor = limit_factor;
  point.alone_ms = alone_ms_;
  point.device_bytes = plan_.device_bytes;
  point.sol_memory = sol_->memory().shards;
  point.luna_memory = luna_->memory().shards;
  point.sol_kv_tokens = sol_->kv_tokens();
  point.luna_kv_tokens = luna_->kv_tokens();
  point.n_sessions = place_.load->has_sessions() ? n_sessions_ : 0;
  point.shortened_ratio = shortened_ratio_;
  point.n_cores = n_cores();
  point.n_parallel = std::min<std::size_t>(plan_.n_devices, n_cores());
  return point;
}

/// Made once, so that a search that goes on goes the same way. Both sides sleep meanwhile.
Result<Prediction> LoadPoint::predict_at(double limit_factor) {
  const std::string name = key() + ", forecast at " + std::to_string(limit_factor) + ", ";
  Journal& journal = parts_.journal;
  Prediction made;
  const std::array<std::pair<const char*, double*>, 9> numbers = {
      {{"alone", &made.alone_ms},
       {"sol", &made.sol.rps},
       {"sol hits", &made.sol.hit_ratio},
       {"sol sequences", &made.sol.step_seqs},
       {"sol recomputed", &made.sol.recomputed_tokens},
       {"luna", &made.luna.rps},
       {"luna hits", &made.luna.hit_ratio},
       {"luna sequences", &made.luna.step_seqs},
       {"luna recomputed", &made.luna.recomputed_tokens}}};
  // The last that is written: with it all are there.
  if (const auto layout = journal.find_number(name + "auto")) {
    for (const auto& [what, number] : numbers)
      *number = journal.find_number(name + what).value_or(0);
    made.choice = static_cast<model::Layout>(static_cast<int>(*layout));
    return made;
  }
  LUNA_TRY(parts_.time.begin(30));
  LUNA_TRY(model::LayoutProblem problem, describe_layouts(plan_));
  LUNA_TRY(
      made,
      predict(
          std::move(problem), {*place_.load, n_sessions_, n_sequence_tokens_max_}, limit_factor));
  for (const auto& [what, number] : numbers)
    LUNA_TRY(journal.add_number(name + what, *number));
  LUNA_TRY(journal.add_number(name + "auto", static_cast<double>(*made.choice)));
  return made;
}

Result<void> LoadPoint::measure_alone() {
  const std::string name = key() + ", alone";
  if (const auto known = parts_.journal.find_number(name)) {
    alone_ms_ = *known;
    return {};
  }
  LUNA_TRY(parts_.time.begin(30));
  const PromptSeeds seeds{.history = parts_.options.seed,
                          .draws = parts_.options.seed,
                          .ids = mix(parts_.options.seed, 0, 0)};
  LUNA_TRY(const auto prompts, make_mean_prompts(*place_.load, seeds));
  LUNA_TRY(alone_ms_, mean_alone_ms(*sol_, prompts, kAloneRequests));
  return parts_.journal.add_number(name, alone_ms_);
}

std::size_t LoadPoint::n_warm_up(double rate_per_s) const {
  const double n = rate_per_s * kWarmUpRequestTimes * alone_ms_ / 1e3;
  const std::size_t n_for_histories = place_.load->has_sessions() ? 3 * n_sessions_ : 0;
  return static_cast<std::size_t>(std::ceil(n)) + n_for_histories + 2;
}

/// One run, or several where it would be too long for one.
Result<RunFigures> LoadPoint::measure(const RunKind& kind) {
  const double rate = RateGrid::rate_per_s(kind.step);
  const std::size_t n_slice_max =
      std::max(kSliceRequestsMin, static_cast<std::size_t>(rate * parts_.options.slice_s));
  const std::size_t n_slices = (kind.n_requests + n_slice_max - 1) / n_slice_max;
  RunFigures sum;
  for (std::size_t slice = 0; slice < n_slices && !sum.is_given_up; ++slice) {
    const std::size_t n =
        kind.n_requests * (slice + 1) / n_slices - kind.n_requests * slice / n_slices;
    std::size_t n_allowed = n_late_max(kind.n_requests);
    if (kind.give_up_ms) n_allowed -= std::min(n_allowed, n_late(sum, *kind.give_up_ms));
    LUNA_TRY(const RunFigures figures, measure_slice(kind, slice, n, n_allowed));
    sum.add(figures);
  }
  return sum;
}

Result<RunFigures> LoadPoint::measure_slice(const RunKind& kind,
                                            std::size_t slice,
                                            std::size_t n_requests,
                                            std::size_t n_late_allowed) {
  const double rate = RateGrid::rate_per_s(kind.step);
  std::array<char, 160> text{};
  std::snprintf(text.data(),
                text.size(),
                " %.4f/s, round %zu, slice %zu of %zu requests",
                rate,
                kind.round,
                slice,
                n_requests);
  const std::string name = run_key(kind.side, kind.routing) + text.data();
  const RunFigures* known = parts_.journal.find_run(name);
  if (known != nullptr && known->tells(kind.give_up_ms.value_or(1e300))) return *known;
  OpenLoopOptions run;
  run.rate_per_s = rate;
  run.n_warm_up = n_warm_up(rate);
  run.n_requests = n_requests;
  // The same on both sides; another one each round and slice.
  run.arrival_seed = mix(parts_.options.seed, kind.round, slice);
  run.routing = kind.routing;
  if (kind.give_up_ms) run.give_up = GiveUp{*kind.give_up_ms, n_late_allowed};
  const double expected_s = static_cast<double>(run.n_warm_up + n_requests) / rate +
                            kWarmUpRequestTimes * alone_ms_ / 1e3;
  LUNA_TRY(parts_.time.begin(expected_s));
  const std::uint64_t run_id = mix(static_cast<std::uint64_t>(kind.routing),
                                   static_cast<std::uint64_t>(kind.step + (1 << 20)),
                                   std::hash<double>{}(kind.give_up_ms.value_or(0)));
  const PromptSeeds seeds{.history = parts_.options.seed,
                          .draws = run.arrival_seed,
                          .ids = mix(run.arrival_seed, run_id, kind.n_requests)};
  LUNA_TRY(const auto prompts,
           make_prompts(*place_.load, n_sessions_, n_sequence_tokens_max_, seeds));
  LUNA_TRY(RunFigures figures, run_open_loop(side(kind.side), prompts, run));
  std::cout << name << ": "
            << (figures.is_given_up
                    ? std::string("given up")
                    : "P95 " + std::to_string(std::lround(figures.p95_ms())) + " ms")
            << std::endl;
  LUNA_TRY(parts_.journal.add_run(name, figures));
  return figures;
}

Result<std::optional<int>> LoadPoint::search_routing(Side which,
                                                     Routing routing,
                                                     double limit_ms,
                                                     int start) {
  return find_highest_step(start, RateGrid::nearest(kRateMin), [&](int step) -> Result<bool> {
    LUNA_TRY(const RunFigures figures,
             measure({.side = which,
                      .routing = routing,
                      .step = step,
                      .round = 0,
                      .n_requests = parts_.options.n_search_requests,
                      .give_up_ms = limit_ms}));
    return figures.is_within(limit_ms);
  });
}

/// Where a search begins: at the predicted rate; without one at a part of the rate at which each of
/// Sol's devices always has one request.
int LoadPoint::first_step(double predicted_rps) const {
  const double one_each_per_s = plan_.n_devices * 1e3 / alone_ms_;
  return RateGrid::nearest(predicted_rps > 0 ? predicted_rps : one_each_per_s / kStartBelow);
}

/// The best routing of the side and its highest rate.
Result<std::optional<SideResult>> LoadPoint::search(Side which, double limit_ms, int start) {
  const auto routings = which == Side::sol ? place_.load->routings()
                                           : place_.load->routings().first(1);  // there is one copy
  std::optional<int> best;
  Routing best_routing = routings.front();
  for (const Routing routing : routings) {
    // Another routing is worth a search only where it holds one step beyond the best so far.
    const RunKind beyond{.side = which,
                         .routing = routing,
                         .step = best.value_or(0) + 1,
                         .round = 0,
                         .n_requests = parts_.options.n_search_requests,
                         .give_up_ms = limit_ms};
    if (best) {
      LUNA_TRY(const RunFigures figures, measure(beyond));
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
           measure({.side = which,
                    .routing = best_routing,
                    .step = *best,
                    .round = 0,
                    .n_requests = parts_.options.n_search_requests,
                    .give_up_ms = limit_ms}));
  result.rounds.push_back(std::move(figures));
  return std::optional(std::move(result));
}

/// Whether the rounds' median keeps the limit. Lowers the rate by a step where it does not.
Result<bool> LoadPoint::confirm_side(Side which,
                                     std::optional<SideResult>& result,
                                     double limit_ms) {
  if (!result || result->rounds.size() < parts_.options.n_rounds) return true;
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

/// Long runs of both sides in turn, at the rates found.
Result<void> LoadPoint::confirm(PointResult& point) {
  for (auto* side : {&point.sol, &point.luna})
    if (*side) (*side)->rounds.clear();
  for (int lowered = 0; lowered <= kLoweredMax; ++lowered) {
    for (std::size_t round = 1; round <= parts_.options.n_rounds; ++round) {
      for (auto [which, side] : {std::pair{Side::sol, &point.sol}, {Side::luna, &point.luna}}) {
        if (!*side || (*side)->rounds.size() >= round) continue;
        LUNA_TRY(RunFigures figures,
                 measure({.side = which,
                          .routing = (*side)->routing,
                          .step = RateGrid::nearest((*side)->rate_per_s),
                          .round = round,
                          .n_requests = parts_.options.n_requests,
                          .give_up_ms = std::nullopt}));
        (*side)->rounds.push_back(std::move(figures));
      }
    }
    LUNA_TRY(const bool sol_holds, confirm_side(Side::sol, point.sol, point.p95_limit_ms()));
    LUNA_TRY(const bool luna_holds, confirm_side(Side::luna, point.luna, point.p95_limit_ms()));
    if (sol_holds && luna_holds) return {};
  }
  return Error{Code::internal,
               "rounds stay beyond the limit at rates far below what the search found"};
}

Result<std::vector<PointResult>> LoadPoint::measure() {
  LUNA_TRY(deploy());
  size_load();
  const Load& load = *place_.load;
  const std::uint32_t n_prompt = load.n_history + load.n_prompt;
  const Result<void> sol_fits = sol_->can_fit(n_prompt, load.n_generated);
  const Result<void> luna_fits = luna_->can_fit(n_prompt, load.n_generated);
  if (sol_fits) {
    LUNA_TRY(measure_alone());
  }
  std::vector<PointResult> points;
  for (const double factor : parts_.options.limit_factors) {
    PointResult point = describe(factor);
    if (!sol_fits) point.sol_refusal = sol_fits.error().message();
    if (!luna_fits) point.luna_refusal = luna_fits.error().message();
    // Without a request alone there is no limit, and nothing to compare with.
    if (sol_fits && luna_fits) {
      LUNA_TRY(point.predicted, predict_at(factor));
      const double limit_ms = point.p95_limit_ms();
      LUNA_TRY(point.luna, search(Side::luna, limit_ms, first_step(point.predicted.luna.rps)));
      LUNA_TRY(point.sol, search(Side::sol, limit_ms, first_step(point.predicted.sol.rps)));
      point.is_of_search =
          parts_.options.n_rounds == 0 || factor != parts_.options.limit_factors.front();
      if (!point.is_of_search) {
        LUNA_TRY(confirm(point));
      }
      if (!point.sol) point.sol_refusal = "no rate keeps the limit";
      if (!point.luna) point.luna_refusal = "no rate keeps the limit";
    }
    points.push_back(std::move(point));
  }
  return points;
}

}  // namespace luna::sol_against_luna
