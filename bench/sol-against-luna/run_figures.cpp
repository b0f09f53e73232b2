#include "run_figures.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value_from.hpp>
#include <boost/json/value_to.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace luna::sol_against_luna {
namespace {

namespace json = boost::json;

/// Calls visit(key, field) for each field: what is written is what is read.
template <typename Figures, typename Visit>
void for_each_field(Figures& f, Visit&& visit) {
  visit("rate_per_s", f.rate_per_s);
  visit("e2e_ms", f.e2e_ms);
  visit("failed", f.n_failed);
  visit("first_error", f.first_error);
  visit("given_up", f.is_given_up);
  visit("limit_ms", f.limit_ms);
  visit("seconds", f.seconds);
  visit("window_s", f.window_s);
  visit("busy_s", f.busy_s);
  visit("steps", f.n_steps);
  visit("step_sequences", f.n_step_seqs);
  visit("prompt_tokens", f.n_prompt_tokens);
  visit("cached_tokens", f.n_cached_tokens);
  visit("output_tokens", f.n_output_tokens);
  visit("recomputed_tokens", f.n_recomputed_tokens);
  visit("others_s", f.others_s);
}

double ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

}  // namespace

double RunFigures::p95_ms() const {
  const std::size_t n = e2e_ms.size() + n_failed;
  const std::size_t n_beyond = n_late_max(n);
  if (n_failed > n_beyond || e2e_ms.empty()) return std::numeric_limits<double>::infinity();
  std::vector<double> sorted = e2e_ms;
  const auto at = sorted.begin() + static_cast<std::ptrdiff_t>(n - n_beyond - 1);
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

bool RunFigures::is_within(double limit) const {
  return !is_given_up && p95_ms() <= limit;
}

bool RunFigures::tells(double limit) const {
  return !is_given_up || limit <= limit_ms;
}

double RunFigures::hit_ratio() const {
  return ratio(static_cast<double>(n_cached_tokens), static_cast<double>(n_prompt_tokens));
}

double RunFigures::output_tokens_per_s() const {
  return ratio(static_cast<double>(n_output_tokens), seconds);
}

double RunFigures::seqs_per_step() const {
  return ratio(n_step_seqs, static_cast<double>(n_steps));
}

double RunFigures::busy_ratio(std::size_t n_parallel) const {
  double sum = 0;
  for (const double device : busy_s)
    sum += device;
  return ratio(sum, window_s * static_cast<double>(n_parallel));
}

double RunFigures::others_ratio(std::size_t n_cores) const {
  return ratio(others_s, window_s * static_cast<double>(n_cores));
}

void RunFigures::add(const RunFigures& other) {
  rate_per_s = other.rate_per_s;
  e2e_ms.insert(e2e_ms.end(), other.e2e_ms.begin(), other.e2e_ms.end());
  n_failed += other.n_failed;
  if (first_error.empty()) first_error = other.first_error;
  is_given_up = is_given_up || other.is_given_up;
  limit_ms = std::max(limit_ms, other.limit_ms);
  seconds += other.seconds;
  window_s += other.window_s;
  busy_s.resize(std::max(busy_s.size(), other.busy_s.size()));
  for (std::size_t device = 0; device < other.busy_s.size(); ++device)
    busy_s[device] += other.busy_s[device];
  n_steps += other.n_steps;
  n_step_seqs += other.n_step_seqs;
  n_prompt_tokens += other.n_prompt_tokens;
  n_cached_tokens += other.n_cached_tokens;
  n_output_tokens += other.n_output_tokens;
  n_recomputed_tokens += other.n_recomputed_tokens;
  others_s += other.others_s;
}

json::object to_json(const RunFigures& figures) {
  json::object object;
  for_each_field(
      figures, [&](const char* key, const auto& field) { object[key] = json::value_from(field); });
  // A tenth of a millisecond is finer than a step.
  for (json::value& ms : object["e2e_ms"].get_array())
    ms = std::round(ms.get_double() * 10) / 10;
  return object;
}

Result<RunFigures> figures_from_json(const json::object& object) {
  RunFigures figures;
  std::string wrong;
  for_each_field(figures, [&](const char* key, auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    const json::value* value = object.if_contains(key);
    if (value == nullptr) {
      wrong = key;
      return;
    }
    if (auto read = json::try_value_to<Field>(*value); read.has_value())
      field = std::move(*read);
    else
      wrong = key;
  });
  if (!wrong.empty())
    return Error{Code::corrupt, "\"" + wrong + "\" of a run: missing or of another type"};
  return figures;
}

}  // namespace luna::sol_against_luna
