#include "core/engine/draft_lengths.hpp"

#include <cmath>

namespace luna::engine {
namespace {

// A token must be worth this much more than its fitted cost: it is also drawn on the host, and
// costs wander with what else the machine does.
constexpr double kMargin = 1.2;

}  // namespace

void choose_draft_lengths(std::span<DraftCandidate> candidates, double token_ns, double step_ns) {
  for (std::uint32_t j = 1;; ++j) {
    double gain_ns = -kMargin * step_ns;
    bool any = false;
    const auto gain_of = [&](const DraftCandidate& candidate) {
      if (candidate.n != j - 1 || candidate.n_max < j) return 0.0;
      return token_ns * std::pow(candidate.p_right, j) - kMargin * candidate.row_ns;
    };
    for (const DraftCandidate& candidate : candidates) {
      const double gain = gain_of(candidate);
      if (gain <= 0.0) continue;
      gain_ns += gain;
      any = true;
    }
    if (!any || gain_ns <= 0.0) return;
    for (DraftCandidate& candidate : candidates)
      if (gain_of(candidate) > 0.0) ++candidate.n;
  }
}

}  // namespace luna::engine
