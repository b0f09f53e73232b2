// One run under load against a side.
#pragma once

#include "core/bench/prompt_source.hpp"
#include "deployment.hpp"
#include "router.hpp"
#include "run_figures.hpp"

#include <luna/result.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace luna::sol_against_luna {

/// Beyond this a request is late, and a run in which too many are is ended.
struct GiveUp {
  double limit_ms = 0;
  std::size_t n_late_allowed = 0;
};

struct OpenLoopOptions {
  double rate_per_s = 1;
  std::size_t n_warm_up = 0;  ///< sent first and dropped
  std::size_t n_requests = 0;
  std::uint64_t arrival_seed = 0;
  Routing routing = Routing::sticky;
  std::optional<GiveUp> give_up;
};

/// Poisson arrivals, each request sent when it is due whatever the side does. [main]
/// Errors  cancelled: by the user
Result<RunFigures> run_open_loop(Deployment& side,
                                 const bench::PromptSource& prompts,
                                 const OpenLoopOptions& options);

/// The mean latency of requests that run alone, one after the other, on one copy, the first two
/// dropped: the prefix cache is warm for those that share a history. [main]
/// Errors  cancelled; those of the requests
Result<double> mean_alone_ms(Deployment& side,
                             const bench::PromptSource& prompts,
                             std::size_t n_requests);

}  // namespace luna::sol_against_luna
