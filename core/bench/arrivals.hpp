// When the requests of an open loop are due.
#pragma once

#include "core/base/clock.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace luna::bench {

/// Arrivals of a Poisson process: independent, exponentially distributed gaps.
///
/// rate_per_s  mean number of requests a second, above 0
/// seed        the same seed gives the same times
/// Returns     n times since the start, ascending
std::vector<Nanoseconds> poisson_arrivals(double rate_per_s, std::size_t n, std::uint64_t seed);

}  // namespace luna::bench
