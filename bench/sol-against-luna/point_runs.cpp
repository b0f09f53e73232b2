#include "point_runs.hpp"

#include "budgets.hpp"
#include "core/base/word_hash.hpp"
#include "limit_search.hpp"
#include "open_loop.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <thread>
#include <utility>

namespace luna::sol_against_luna {
namespace {

constexpr std::size_t kAloneRequests = 5;
// Until a queue has the length that it keeps, in requests that run alone.
constexpr double kWarmUpRequestTimes = 10;
constexpr std::size_t kSliceRequestsMin = 25;

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
  if (side != Side::luna || !plan.luna_layers) return name;
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

std::string PointRuns::run_key(Side which, Routing routing) const {
  return key() + ", " + name_of(which, plan_) + ", " + std::string(routing_name(routing)) + ',';
}

std::string PointRuns::key() const {
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

Result<void> PointRuns::start(Side which) {
  LUNA_TRY(sides_[static_cast<std::size_t>(which)], Deployment::start(which, plan_));
  return {};
}

Result<void> PointRuns::deploy() {
  LUNA_TRY(const model::ShardMemory copy, measure_copy(plan_));
  plan_.device_bytes = device_budget_bytes(copy, place_.weight_share);
  plan_.expected = expected_of(*place_.load);
  LUNA_TRY(start(Side::sol));
  LUNA_TRY(start(Side::luna));
  size_load();
  return {};
}

Result<void> PointRuns::deploy_tensor() {
  if (sides_[static_cast<std::size_t>(Side::tensor)] != nullptr) return {};
  return start(Side::tensor);
}

/// Sessions and the largest request, by the KV of both sides.
void PointRuns::size_load() {
  const Load& load = *place_.load;
  const Deployment& sol = side(Side::sol);
  const Deployment& luna = side(Side::luna);
  if (load.has_sessions())
    n_sessions_ =
        n_sessions(sol.kv_tokens() * sol.n_copies(), luna.kv_tokens(), load.n_sequence_tokens());
  n_sequence_tokens_max_ = sequence_tokens_max(
      sol.kv_tokens(), luna.kv_tokens(), sol.context_tokens_max(), load.n_history);
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

Result<bench::PromptSource> PointRuns::mean_prompts() const {
  const PromptSeeds seeds{.history = parts_.options.seed,
                          .draws = parts_.options.seed,
                          .ids = mix(parts_.options.seed, 0, 0)};
  return make_mean_prompts(*place_.load, n_sequence_tokens_max_, seeds);
}

Result<void> PointRuns::can_fit(Side which) const {
  LUNA_TRY(const auto prompts, mean_prompts());
  const bench::Prompt mean = prompts.prompt(0);
  const auto n_prompt = std::get<bench::TokenIds>(mean.input).size();
  return side(which).can_fit(static_cast<std::uint32_t>(n_prompt), mean.n_generated_max);
}

PointResult PointRuns::describe(double limit_factor) const {
  PointResult point;
  point.load = place_.load->name;
  point.n_devices = plan_.n_devices;
  point.weight_share = place_.weight_share;
  point.limit_factor = limit_factor;
  point.alone_ms = alone_ms_;
  point.device_bytes = plan_.device_bytes;
  point.sol_memory = side(Side::sol).memory().shards;
  point.luna_memory = side(Side::luna).memory().shards;
  point.sol_kv_tokens = side(Side::sol).kv_tokens();
  point.luna_kv_tokens = side(Side::luna).kv_tokens();
  point.n_sessions = place_.load->has_sessions() ? n_sessions_ : 0;
  point.shortened_ratio = shortened_ratio_;
  point.n_cores = n_cores();
  point.n_parallel = std::min<std::size_t>(plan_.n_devices, n_cores());
  return point;
}

Result<Prediction> PointRuns::predict_at(double limit_factor) {
  const std::string name = key() + ", forecast at " + std::to_string(limit_factor) + ", ";
  Journal& journal = parts_.journal;
  Prediction made;
  const std::array<std::pair<const char*, double*>, 13> numbers = {
      {{"alone", &made.alone_ms},
       {"sol", &made.sol.rps},
       {"sol hits", &made.sol.hit_ratio},
       {"sol sequences", &made.sol.step_seqs},
       {"sol recomputed", &made.sol.recomputed_tokens},
       {"luna", &made.luna.rps},
       {"luna hits", &made.luna.hit_ratio},
       {"luna sequences", &made.luna.step_seqs},
       {"luna recomputed", &made.luna.recomputed_tokens},
       {"tensor", &made.tensor.rps},
       {"tensor hits", &made.tensor.hit_ratio},
       {"tensor sequences", &made.tensor.step_seqs},
       {"tensor recomputed", &made.tensor.recomputed_tokens}}};
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

Result<void> PointRuns::measure_alone() {
  const std::string name = key() + ", alone";
  if (const auto known = parts_.journal.find_number(name)) {
    alone_ms_ = *known;
    return {};
  }
  LUNA_TRY(parts_.time.begin(30));
  LUNA_TRY(const auto prompts, mean_prompts());
  LUNA_TRY(alone_ms_, mean_alone_ms(side(Side::sol), prompts, kAloneRequests));
  return parts_.journal.add_number(name, alone_ms_);
}

std::size_t PointRuns::n_warm_up(double rate_per_s) const {
  const double n = rate_per_s * kWarmUpRequestTimes * alone_ms_ / 1e3;
  const std::size_t n_for_histories = place_.load->has_sessions() ? 3 * n_sessions_ : 0;
  return static_cast<std::size_t>(std::ceil(n)) + n_for_histories + 2;
}

Result<RunFigures> PointRuns::measure(const RunKind& kind) {
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

Result<RunFigures> PointRuns::measure_slice(const RunKind& kind,
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

}  // namespace luna::sol_against_luna
