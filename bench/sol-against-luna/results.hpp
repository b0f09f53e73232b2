// What is reported of a point: a row for programs and a line for people.
#pragma once

#include "core/model/memory_plan.hpp"
#include "prediction.hpp"
#include "router.hpp"
#include "run_figures.hpp"

#include <boost/json/fwd.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace luna::sol_against_luna {

/// A side at its highest rate within the limit.
struct SideResult {
  double rate_per_s = 0;  ///< offered
  Routing routing = Routing::sticky;
  std::vector<RunFigures> rounds;  ///< at least one; the figures reported are their medians
};

struct PointResult {
  std::string load;
  std::uint32_t n_devices = 0;
  double weight_share = 0;
  double limit_factor = 0;
  double alone_ms = 0;            ///< mean request alone on one Sol device
  bool is_of_search = false;      ///< of the search's short runs, without rounds of their own
  std::optional<SideResult> sol;  ///< none: it refuses the load, or no rate is within the limit
  std::optional<SideResult> luna;
  std::optional<SideResult> tensor;            ///< where "auto" takes it
  std::array<std::string, kSides> refusals{};  ///< why a side has no result
  std::uint64_t device_bytes = 0;
  std::vector<model::ShardMemory> sol_memory;   ///< of a copy's device
  std::vector<model::ShardMemory> luna_memory;  ///< [n_devices]
  std::uint64_t sol_kv_tokens = 0;              ///< of a copy
  std::uint64_t luna_kv_tokens = 0;
  std::uint32_t n_sessions = 0;  ///< 0: the load has none
  double shortened_ratio = 0;    ///< of the requests, to what Sol's copies can hold
  Prediction predicted;
  std::size_t n_parallel = 0;  ///< min(devices, cores)
  std::size_t n_cores = 0;

  [[nodiscard]] double p95_limit_ms() const { return limit_factor * alone_ms; }
  [[nodiscard]] std::optional<double> ratio() const;         ///< Luna's pipeline over Sol
  [[nodiscard]] std::optional<double> tensor_ratio() const;  ///< Luna's tensor split over Sol
  /// That of the pipeline by the cost model.
  [[nodiscard]] std::optional<double> predicted_ratio() const;
  /// The rate of the layout that "auto" takes over the better of Sol and the pipeline; none: it was
  /// not measured.
  [[nodiscard]] std::optional<double> auto_ratio() const;
  /// By Side.
  [[nodiscard]] std::array<std::optional<SideResult>*, kSides> sides() {
    return {&sol, &luna, &tensor};
  }
  [[nodiscard]] std::array<const std::optional<SideResult>*, kSides> sides() const {
    return {&sol, &luna, &tensor};
  }
};

/// The middle one; of an even number the mean of the two.
double median(std::vector<double> values);

boost::json::object to_json(const PointResult& result);
std::string to_text(const PointResult& result);

}  // namespace luna::sol_against_luna
