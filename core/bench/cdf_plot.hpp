// The latencies of a report as a picture.
#pragma once

#include "core/bench/report.hpp"

#include <string>

namespace luna::bench {

/// An SVG of four panels, the cumulative distributions of TTFT, ITL, TPOT and E2E, each with its
/// median, P99 and, where there is one, its limit.
///
/// title   above the panels; any text
std::string plot_cdfs(const Report& report, const LatencyLimits& limits, const std::string& title);

}  // namespace luna::bench
