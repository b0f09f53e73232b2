// A load run: which request is sent when, and what came back.
#pragma once

#include "core/bench/prompt_source.hpp"
#include "core/bench/request_record.hpp"
#include "core/bench/target.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace luna::bench {

struct LoadOptions {
  /// Open loop: requests are due at Poisson arrivals of this rate, whatever the server does.
  /// None: closed loop, `n_clients` that each send their next request when the last one has ended.
  std::optional<double> rate_per_s;
  std::uint32_t n_clients = 1;
  std::uint32_t n_connections_max =
      1024;                      ///< open loop; due requests beyond it wait, and it counts
  std::size_t n_warm_up = 0;     ///< the first requests, kept apart
  std::size_t n_requests = 100;  ///< after the warm-up
  /// No request is begun, or due, later than this after the start.
  std::optional<std::chrono::milliseconds> duration;
  std::uint64_t seed = 0;
};

/// Sends the requests and returns when all have ended, in the order of their starts. When
/// `keep_going` turns false nothing more is begun and what runs is cut. [main]
std::vector<RequestRecord> run_load(const LoadOptions& options,
                                    const PromptSource& prompts,
                                    const TargetFactory& make_target,
                                    const std::function<bool()>& keep_going);

}  // namespace luna::bench
