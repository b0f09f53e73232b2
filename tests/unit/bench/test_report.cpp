// Percentiles, the schedule of an open loop, and what a report makes of records.
#include "core/bench/arrivals.hpp"
#include "core/bench/cdf_plot.hpp"
#include "core/bench/report.hpp"

#include <boost/json/parse.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

namespace luna::bench {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

TEST(Percentile, IsNumpysLinearInterpolation) {
  // numpy.percentile([1, 2, 4, 8, 16], [0, 10, 50, 90, 99, 100])
  const std::vector<double> values = {1, 2, 4, 8, 16};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(values, 0.10), 1.4);
  EXPECT_DOUBLE_EQ(percentile(values, 0.50), 4);
  EXPECT_DOUBLE_EQ(percentile(values, 0.90), 12.8);
  EXPECT_NEAR(percentile(values, 0.99), 15.68, 1e-12);
  EXPECT_DOUBLE_EQ(percentile(values, 1), 16);
}

TEST(Percentile, OfOneValueIsThatValue) {
  const std::vector<double> one = {3};
  for (const double ratio : {0.0, 0.5, 0.99, 1.0})
    EXPECT_DOUBLE_EQ(percentile(one, ratio), 3);
}

TEST(PoissonArrivals, AscendAndAreTheSeeds) {
  const auto times = poisson_arrivals(50, 1000, 7);
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_GT(times.front().count(), 0);
  EXPECT_EQ(times, poisson_arrivals(50, 1000, 7));
  EXPECT_NE(times, poisson_arrivals(50, 1000, 8));
}

TEST(PoissonArrivals, GapsAreExponential) {
  // Of an exponential distribution: mean and standard deviation 1 / rate, and 1 / e of the gaps are
  // longer than the mean. 20,000 gaps: the bounds are five standard errors.
  constexpr std::size_t kGaps = 20'000;
  constexpr double kRate = 100;
  const auto times = poisson_arrivals(kRate, kGaps, 20261130);
  double sum = 0, squares = 0, last = 0, n_long = 0;
  for (const auto time : times) {
    const double at = std::chrono::duration<double>(time).count();
    const double gap = (at - last) * kRate;
    last = at;
    sum += gap;
    squares += gap * gap;
    n_long += gap > 1 ? 1 : 0;
  }
  const double mean = sum / kGaps;
  EXPECT_NEAR(mean, 1, 0.036);
  EXPECT_NEAR(std::sqrt(squares / kGaps - mean * mean), 1, 0.05);
  EXPECT_NEAR(n_long / kGaps, std::exp(-1.0), 0.018);
}

/// A request due at 100 ms, sent at `sent_ms`, with tokens and an end.
RequestRecord record(int sent_ms, std::vector<int> token_ms, std::uint32_t n_generated) {
  RequestRecord r;
  r.intended = milliseconds(100);
  r.sent = milliseconds(sent_ms);
  for (const int ms : token_ms)
    r.token_times.emplace_back(milliseconds(ms));
  r.end = r.token_times.empty() ? r.sent : r.token_times.back();
  r.usage = ServerUsage{10, 4, n_generated};
  r.outcome = Outcome::done;
  return r;
}

TEST(Report, LatencyBeginsAtTheIntendedArrivalNotAtTheSending) {
  const std::vector<RequestRecord> records = {record(350, {400, 420, 460}, 3)};
  const Report report = make_report(records, {});
  EXPECT_EQ(report.ttft.values, (std::vector<double>{300}));
  EXPECT_EQ(report.itl.values, (std::vector<double>{20, 40}));
  EXPECT_EQ(report.tpot.values, (std::vector<double>{30}));
  EXPECT_EQ(report.e2e.values, (std::vector<double>{360}));
  EXPECT_EQ(report.delay.values, (std::vector<double>{250}));
  EXPECT_DOUBLE_EQ(report.seconds, 0.36);
}

TEST(Report, TokensAreCountedByTheServersUsage) {
  // Two events, but five tokens: a server may send several at once.
  RequestRecord without = record(100, {200, 300}, 0);
  without.usage.reset();
  const std::vector<RequestRecord> records = {record(100, {200, 300}, 5), without};
  const Report report = make_report(records, {});
  EXPECT_EQ(report.n_output_tokens, 7U);
  EXPECT_EQ(report.n_without_usage, 1U);
  EXPECT_EQ(report.n_cached_tokens, 4U);
  EXPECT_EQ(report.tpot.values, (std::vector<double>{25, 100}));
}

TEST(Report, WarmUpFailedAndCutRequestsAreNotMeasured) {
  RequestRecord warm = record(100, {900}, 1), failed = warm, cut = warm;
  warm.is_warm_up = true;
  failed.outcome = Outcome::failed;
  failed.error = "HTTP 429";
  cut.outcome = Outcome::cut;
  const std::vector<RequestRecord> records = {warm, failed, cut, record(100, {150}, 1)};
  const Report report = make_report(records, {});
  EXPECT_EQ(report.n_done, 1U);
  EXPECT_EQ(report.n_warm_up, 1U);
  EXPECT_EQ(report.n_failed, 1U);
  EXPECT_EQ(report.n_cut, 1U);
  EXPECT_EQ(report.ttft.values, (std::vector<double>{50}));
  EXPECT_EQ(report.n_by_error.at("HTTP 429"), 1U);
}

TEST(Report, GoodputCountsRequestsWithinEveryLimit) {
  const std::vector<RequestRecord> records = {
      record(100, {150, 160, 170}, 3),  // fine
      record(100, {250, 260, 270}, 3),  // late first token
      record(100, {150, 160, 220}, 3),  // a long gap
      record(100, {}, 0),               // no token at all
  };
  LatencyLimits limits;
  limits.ttft_ms = 100;
  limits.itl_ms = 50;
  EXPECT_EQ(make_report(records, limits).n_within_limits, 1U);
}

TEST(Report, KindsOfErrorsAreBounded) {
  std::vector<RequestRecord> records(100);
  for (std::size_t i = 0; i < records.size(); ++i) {
    records[i].outcome = Outcome::failed;
    records[i].error = "error " + std::to_string(i);
  }
  const Report report = make_report(records, {});
  EXPECT_EQ(report.n_by_error.size(), 9U);
  EXPECT_EQ(report.n_by_error.at("(others)"), 92U);
}

TEST(Report, NothingMeasuredIsPrintedAndWrittenAllTheSame) {
  const Report report = make_report({}, {});
  std::ostringstream text;
  print_report(report, text);
  EXPECT_THAT(text.str(), HasSubstr("0 in 0.00 s"));
  EXPECT_THAT(plot_cdfs(report, {}, "nothing"), HasSubstr("no values"));
  EXPECT_EQ(boost::json::parse(report_json(report, {}, {}, true)).at("summary").at("requests"), 0);
}

TEST(Report, JsonHoldsSummaryAndRequests) {
  const std::vector<RequestRecord> records = {record(120, {200, 210}, 2)};
  const auto json =
      boost::json::parse(report_json(make_report(records, {}), records, {{"seed", 3}}, true));
  EXPECT_EQ(json.at("run").at("seed"), 3);
  EXPECT_EQ(json.at("summary").at("output_tokens"), 2);
  EXPECT_EQ(json.at("latency_ms").at("ttft").at("p50"), 100.0);
  EXPECT_EQ(json.at("requests").at(0).at("token_times_ms"), (boost::json::array{200.0, 210.0}));
}

TEST(CdfPlot, HasFourPanelsAndAnEscapedTitle) {
  const std::vector<RequestRecord> records = {record(100, {200, 210}, 2),
                                              record(100, {220, 260}, 2)};
  LatencyLimits limits;
  limits.ttft_ms = 110;
  const std::string svg = plot_cdfs(make_report(records, limits), limits, "<script>&");
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
  EXPECT_THAT(svg, HasSubstr("&lt;script&gt;&amp;"));
  for (const char* text : {">TTFT<", ">ITL<", ">TPOT<", ">E2E<", ">limit<", "</svg>"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace luna::bench
