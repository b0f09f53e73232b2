#include "core/bench/arrivals.hpp"

#include "core/base/assert.hpp"
#include "core/base/counter_rng.hpp"

#include <cmath>

namespace luna::bench {
namespace {

// Apart from the streams that prompts are drawn from.
constexpr std::uint32_t kArrivalStream = 0xA881'7A15;

}  // namespace

std::vector<Nanoseconds> poisson_arrivals(double rate_per_s, std::size_t n, std::uint64_t seed) {
  LUNA_ASSERT(rate_per_s > 0);
  std::vector<Nanoseconds> times;
  times.reserve(n);
  double at_s = 0;
  for (std::size_t i = 0; i < n; ++i) {
    // 1 - u is in (0, 1]: the logarithm is finite.
    at_s -= std::log(1.0 - uniform01(seed, kArrivalStream, i).first) / rate_per_s;
    times.push_back(std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(at_s)));
  }
  return times;
}

}  // namespace luna::bench
