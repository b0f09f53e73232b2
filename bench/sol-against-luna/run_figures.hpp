// What one run under load gave; runs of one kind add up.
#pragma once

#include <luna/result.hpp>

#include <boost/json/fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace luna::sol_against_luna {

/// Of the requests after the warm-up. A value.
struct RunFigures {
  double rate_per_s = 0;       ///< offered
  std::vector<double> e2e_ms;  ///< of those that were answered, from the intended arrival
  std::size_t n_failed = 0;
  std::string first_error;   ///< of those that failed
  bool is_given_up = false;  ///< ended early: more were late than the limit's percentile allows
  double limit_ms = 0;       ///< beyond which a request was late then
  double seconds = 0;        ///< first measured arrival to the last end
  double window_s =
      0;  ///< first to last measured arrival: the load is steady, and what follows is of this time
  std::vector<double> busy_s;  ///< by device, inside op programs
  std::uint64_t n_steps = 0;
  double n_step_seqs = 0;             ///< sequences, summed over the steps
  std::uint64_t n_prompt_tokens = 0;  ///< from here on of answered requests
  std::uint64_t n_cached_tokens = 0;
  std::uint64_t n_output_tokens = 0;
  std::uint64_t n_recomputed_tokens = 0;  ///< after pre-emption
  double others_s = 0;  ///< CPU time that other processes of the machine took in `window_s`

  /// Nearest rank; requests that failed count as never ended, so it may be infinite.
  [[nodiscard]] double p95_ms() const;
  /// Whether 95 % of the requests ended within a limit. False of a run that was given up over this
  /// limit or a higher one.
  [[nodiscard]] bool is_within(double limit_ms) const;
  /// False of a run that was given up over a lower limit: it does not tell.
  [[nodiscard]] bool tells(double limit_ms) const;
  [[nodiscard]] double hit_ratio() const;  ///< cached tokens of all prompt tokens
  [[nodiscard]] double output_tokens_per_s() const;
  [[nodiscard]] double seqs_per_step() const;
  /// Time inside op programs over what `n_parallel` cores had.
  [[nodiscard]] double busy_ratio(std::size_t n_parallel) const;
  [[nodiscard]] double others_ratio(std::size_t n_cores) const;

  void add(const RunFigures& other);
};

/// Late requests of n beyond which the 95th percentile is late.
inline std::size_t n_late_max(std::size_t n_requests) {
  return n_requests / 20;
}

boost::json::object to_json(const RunFigures& figures);
/// Errors  corrupt, with the key
Result<RunFigures> figures_from_json(const boost::json::object& object);

}  // namespace luna::sol_against_luna
