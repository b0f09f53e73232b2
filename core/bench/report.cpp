#include "core/bench/report.hpp"

#include "core/base/assert.hpp"

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include <algorithm>
#include <iomanip>
#include <ios>
#include <ostream>
#include <sstream>
#include <utility>

namespace luna::bench {
namespace {

namespace json = boost::json;

// Kinds of errors that are told apart: a server that puts an id into each would fill pages.
constexpr std::size_t kErrorKindsMax = 8;
constexpr int kNameWidth = 12;
constexpr int kNumberWidth = 11;

double milliseconds(Nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

/// One request's latencies; what has no meaning for it (a gap, without a second token) is absent.
struct RequestLatency {
  explicit RequestLatency(const RequestRecord& record)
      : e2e_ms(milliseconds(record.end - record.intended)),
        delay_ms(milliseconds(record.sent - record.intended)) {
    const auto& times = record.token_times;
    if (times.empty()) return;
    ttft_ms = milliseconds(times.front() - record.intended);
    for (std::size_t i = 1; i < times.size(); ++i)
      gaps_ms.push_back(milliseconds(times[i] - times[i - 1]));
    const std::size_t n = record.usage ? record.usage->n_generated : times.size();
    if (n > 1) tpot_ms = milliseconds(times.back() - times.front()) / static_cast<double>(n - 1);
  }

  bool is_within(const LatencyLimits& limits) const {
    const auto keeps = [](std::optional<double> value, std::optional<double> limit) {
      return !limit || !value || *value <= *limit;
    };
    const auto worst = std::max_element(gaps_ms.begin(), gaps_ms.end());
    const auto worst_ms = worst == gaps_ms.end() ? std::nullopt : std::optional(*worst);
    return ttft_ms && keeps(ttft_ms, limits.ttft_ms) && keeps(worst_ms, limits.itl_ms) &&
           keeps(tpot_ms, limits.tpot_ms) && keeps(e2e_ms, limits.e2e_ms);
  }

  std::optional<double> ttft_ms;
  std::vector<double> gaps_ms;
  std::optional<double> tpot_ms;
  double e2e_ms;
  double delay_ms;
};

void count_error(Report& report, const std::string& error) {
  const bool is_new = report.n_by_error.count(error) == 0;
  const bool is_full = report.n_by_error.size() >= kErrorKindsMax;
  ++report.n_by_error[is_new && is_full ? std::string("(others)") : error];
}

void add_done(Report& report, const RequestRecord& record, const LatencyLimits& limits) {
  const RequestLatency latency(record);
  ++report.n_done;
  report.n_within_limits += latency.is_within(limits) ? 1 : 0;
  if (record.usage) {
    report.n_prompt_tokens += record.usage->n_prompt;
    report.n_cached_tokens += record.usage->n_cached;
    report.n_output_tokens += record.usage->n_generated;
  } else {
    ++report.n_without_usage;
    report.n_output_tokens += record.token_times.size();
  }
  if (latency.ttft_ms) report.ttft.values.push_back(*latency.ttft_ms);
  report.itl.values.insert(report.itl.values.end(), latency.gaps_ms.begin(), latency.gaps_ms.end());
  if (latency.tpot_ms) report.tpot.values.push_back(*latency.tpot_ms);
  report.e2e.values.push_back(latency.e2e_ms);
  report.delay.values.push_back(latency.delay_ms);
}

std::string row(std::string_view name, const std::string& value) {
  std::string text(name);
  text.resize(std::max<std::size_t>(text.size() + 1, 26), ' ');
  return text + value + '\n';
}

std::string number(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values)
    sum += value;
  return sum / static_cast<double>(values.size());
}

json::object latency_object(const Latency& latency) {
  const std::vector<double>& values = latency.values;
  if (values.empty()) return {{"n", 0}};
  return {{"n", values.size()},
          {"mean", mean(values)},
          {"p50", percentile(values, 0.50)},
          {"p90", percentile(values, 0.90)},
          {"p95", percentile(values, 0.95)},
          {"p99", percentile(values, 0.99)},
          {"max", values.back()}};
}

const char* outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::done:
      return "done";
    case Outcome::failed:
      return "failed";
    case Outcome::cut:
      return "cut";
  }
  return "cut";
}

json::object request_object(const RequestRecord& record, bool with_token_times) {
  json::object object = {{"outcome", outcome_name(record.outcome)},
                         {"warm_up", record.is_warm_up},
                         {"intended_ms", milliseconds(record.intended)},
                         {"sent_ms", milliseconds(record.sent)},
                         {"end_ms", milliseconds(record.end)}};
  if (!record.token_times.empty()) {
    object["first_token_ms"] = milliseconds(record.token_times.front());
    object["last_token_ms"] = milliseconds(record.token_times.back());
  }
  if (record.usage) {
    object["prompt_tokens"] = record.usage->n_prompt;
    object["cached_tokens"] = record.usage->n_cached;
    object["completion_tokens"] = record.usage->n_generated;
  }
  if (!record.error.empty()) object["error"] = record.error;
  if (!with_token_times) return object;
  json::array times;
  times.reserve(record.token_times.size());
  for (const Nanoseconds time : record.token_times)
    times.push_back(milliseconds(time));
  object["token_times_ms"] = std::move(times);
  return object;
}

json::object summary_object(const Report& report) {
  json::object object = {{"requests", report.n_done},
                         {"warm_up_requests", report.n_warm_up},
                         {"failed_requests", report.n_failed},
                         {"cut_requests", report.n_cut},
                         {"requests_without_usage", report.n_without_usage},
                         {"seconds", report.seconds},
                         {"prompt_tokens", report.n_prompt_tokens},
                         {"cached_tokens", report.n_cached_tokens},
                         {"output_tokens", report.n_output_tokens},
                         {"requests_per_s", report.per_second(report.n_done)},
                         {"output_tokens_per_s", report.per_second(report.n_output_tokens)},
                         {"prompt_tokens_per_s", report.per_second(report.n_prompt_tokens)}};
  if (report.has_limits) {
    object["requests_within_limits"] = report.n_within_limits;
    object["goodput_requests_per_s"] = report.per_second(report.n_within_limits);
  }
  return object;
}

}  // namespace

double percentile(std::span<const double> sorted, double ratio) {
  LUNA_ASSERT(!sorted.empty());
  LUNA_ASSERT(ratio >= 0 && ratio <= 1);
  const double at = ratio * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = at - static_cast<double>(below);
  return sorted[below] + part * (sorted[above] - sorted[below]);
}

Report make_report(std::span<const RequestRecord> records, const LatencyLimits& limits) {
  Report report;
  report.has_limits = limits.any();
  std::optional<Nanoseconds> begin;
  Nanoseconds end{0};
  for (const RequestRecord& record : records) {
    if (record.is_warm_up) {
      ++report.n_warm_up;
    } else if (record.outcome == Outcome::cut) {
      ++report.n_cut;
    } else if (record.outcome == Outcome::failed) {
      ++report.n_failed;
    } else {
      add_done(report, record, limits);
      begin = std::min(begin.value_or(record.intended), record.intended);
      end = std::max(end, record.end);
    }
    // An error of the warm-up is one, too: a server that refuses everything must not look fine.
    if (record.outcome == Outcome::failed) count_error(report, record.error);
  }
  if (begin) report.seconds = std::chrono::duration<double>(end - *begin).count();
  for (Latency* latency : {&report.ttft, &report.itl, &report.tpot, &report.e2e, &report.delay})
    std::sort(latency->values.begin(), latency->values.end());
  return report;
}

void print_report(const Report& report, std::ostream& out) {
  out << row("requests",
             std::to_string(report.n_done) + " in " + number(report.seconds, 2) + " s") +
             row("  dropped, warm-up", std::to_string(report.n_warm_up)) +
             row("  failed", std::to_string(report.n_failed));
  if (report.n_cut > 0) out << row("  cut by the end", std::to_string(report.n_cut));
  out << row("requests a second", number(report.per_second(report.n_done), 2)) +
             row("output tokens a second", number(report.per_second(report.n_output_tokens), 1)) +
             row("prompt tokens",
                 std::to_string(report.n_prompt_tokens) + ", of these cached " +
                     std::to_string(report.n_cached_tokens)) +
             row("output tokens", std::to_string(report.n_output_tokens));
  if (report.n_without_usage > 0)
    out << row("  counted by events",
               std::to_string(report.n_without_usage) + " requests: the server sent no usage");
  if (report.has_limits)
    out << row("goodput, requests a second",
               number(report.per_second(report.n_within_limits), 2) + " (" +
                   std::to_string(report.n_within_limits) + " requests within the limits)");
  out << '\n' << std::left << std::setw(kNameWidth) << "milliseconds" << std::right;
  for (const char* name : {"mean", "P50", "P90", "P95", "P99", "max"})
    out << std::setw(kNumberWidth) << name;
  out << '\n';
  for (const Latency* latency : report.latencies()) {
    out << std::left << std::setw(kNameWidth) << latency->name << std::right;
    const auto& v = latency->values;
    if (v.empty()) {
      out << std::setw(kNumberWidth) << "-" << '\n';
      continue;
    }
    for (const double value : {mean(v),
                               percentile(v, 0.5),
                               percentile(v, 0.9),
                               percentile(v, 0.95),
                               percentile(v, 0.99),
                               v.back()})
      out << std::setw(kNumberWidth) << number(value, 2);
    out << "   " << latency->what << '\n';
  }
  for (const auto& [error, n] : report.n_by_error)
    out << "error, " << n << " times: " << error << '\n';
}

std::string report_json(const Report& report,
                        std::span<const RequestRecord> records,
                        json::object about,
                        bool with_token_times) {
  json::object latencies;
  for (const Latency* latency : report.latencies())
    latencies[latency->key] = latency_object(*latency);
  json::object errors;
  for (const auto& [error, n] : report.n_by_error)
    errors[error] = n;
  json::array requests;
  for (const RequestRecord& record : records)
    requests.push_back(request_object(record, with_token_times));
  const json::object root = {{"run", std::move(about)},
                             {"summary", summary_object(report)},
                             {"latency_ms", std::move(latencies)},
                             {"errors", std::move(errors)},
                             {"requests", std::move(requests)}};
  return json::serialize(root) + '\n';
}

}  // namespace luna::bench
