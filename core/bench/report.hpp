// What a load run says in the end: percentiles, rates, goodput, errors.
#pragma once

#include "core/bench/request_record.hpp"

#include <boost/json/object.hpp>

#include <array>
#include <cstddef>
#include <iosfwd>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna::bench {

/// The value below which a share of the values lie, interpolated between the two nearest.
///
/// sorted   ascending, not empty
/// ratio    0..1
double percentile(std::span<const double> sorted, double ratio);

/// One latency over all measured requests.
struct Latency {
  std::string_view name;       ///< for people: "TTFT"
  std::string_view key;        ///< for programs: "ttft"
  std::string_view what;       ///< from when to when
  std::vector<double> values;  ///< milliseconds, ascending
};

/// Limits that a request must keep to count for goodput; none: that one is not asked for.
struct LatencyLimits {
  std::optional<double> ttft_ms;
  std::optional<double> itl_ms;  ///< its longest gap
  std::optional<double> tpot_ms;
  std::optional<double> e2e_ms;

  [[nodiscard]] bool any() const { return ttft_ms || itl_ms || tpot_ms || e2e_ms; }
};

struct Report {
  std::size_t n_warm_up = 0;  ///< dropped
  std::size_t n_done = 0;     ///< measured; the numbers below are theirs
  std::size_t n_failed = 0;
  std::size_t n_cut = 0;            ///< by the user's end of the run
  std::size_t n_without_usage = 0;  ///< tokens counted by events, for want of better
  std::size_t n_within_limits = 0;  ///< of n_done
  bool has_limits = false;
  double seconds = 0;  ///< first measured arrival to the last end
  std::size_t n_prompt_tokens = 0;
  std::size_t n_cached_tokens = 0;
  std::size_t n_output_tokens = 0;
  Latency ttft{"TTFT", "ttft", "arrival to first token", {}};
  Latency itl{"ITL", "itl", "gap between two tokens", {}};
  Latency tpot{"TPOT", "tpot", "(last - first token) / (tokens - 1)", {}};
  Latency e2e{"E2E", "e2e", "arrival to end", {}};
  Latency delay{"send delay", "send_delay", "arrival to sent", {}};
  std::map<std::string, std::size_t> n_by_error;

  [[nodiscard]] std::array<const Latency*, 5> latencies() const {
    return {&ttft, &itl, &tpot, &e2e, &delay};
  }
  [[nodiscard]] double per_second(std::size_t n) const {
    return seconds > 0 ? static_cast<double>(n) / seconds : 0;
  }
};

/// Sums up the records of a run.
Report make_report(std::span<const RequestRecord> records, const LatencyLimits& limits);

/// For people.
void print_report(const Report& report, std::ostream& out);

/// For programs: {"run", "summary", "latency_ms", "errors", "requests"}.
///
/// about              what was run; becomes "run"
/// with_token_times   each request carries the time of every token
std::string report_json(const Report& report,
                        std::span<const RequestRecord> records,
                        boost::json::object about,
                        bool with_token_times);

}  // namespace luna::bench
