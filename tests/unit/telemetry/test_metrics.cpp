#include "core/telemetry/metrics.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace luna::telemetry {
namespace {

std::vector<std::string> lines_of(const std::string& page) {
  std::vector<std::string> lines;
  std::istringstream in(page);
  for (std::string line; std::getline(in, line);)
    lines.push_back(line);
  return lines;
}

boost::json::value public_case(const std::string& id) {
  std::ifstream in(LUNA_SOURCE_DIR "/tests/golden/cases/cases.jsonl");
  for (std::string line; std::getline(in, line);) {
    boost::json::value value = boost::json::parse(line);
    if (value.at("id").as_string() == id) return value;
  }
  return nullptr;
}

/// The label part of the table's line, as it must stand behind `model=`.
std::string label_of(const std::string& line) {
  return line.substr(4, line.size() - 4 - 3);
}

// Case UNIT-ESCAPE-1.
TEST(MetricsPage, LabelValuesAreEscaped) {
  const auto table = public_case("UNIT-ESCAPE-1");
  const auto& values = table.at("input").at("values").as_array();
  const auto& expected = table.at("expected").at("lines").as_array();
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const HttpStats http;
    const EngineStats stats;
    MetricsPage page("0", http);
    page.add_model(std::string(values[i].as_string()), stats);
    const std::string wanted =
        "luna_requests_running{model=" + label_of(std::string(expected[i].as_string())) + "} 0";
    const auto lines = lines_of(page.render());
    EXPECT_NE(std::find(lines.begin(), lines.end(), wanted), lines.end()) << wanted;
  }
}

TEST(MetricsPage, EveryNameAndLabelNameIsValidAndNoSeriesStandsTwice) {
  const HttpStats http;
  const EngineStats first, second;
  const std::atomic<std::uint64_t> n_role_runs{3};
  MetricsPage page("0", http);
  page.add_model("a", first);
  page.add_model("b", second);
  const std::atomic<std::uint64_t> role_run_ns{1'500'000'000};
  page.set_role_runs(n_role_runs, role_run_ns);
  EXPECT_NE(page.render().find("luna_role_run_seconds_total 1.5\n"), std::string::npos);
  const std::regex series(
      R"re(([a-zA-Z_][a-zA-Z0-9_]*)(\{([a-zA-Z_][a-zA-Z0-9_]*="[^"]*",?)*\})? [-+0-9.e]+|# (HELP|TYPE) .*)re");
  std::set<std::string> seen;
  for (const std::string& line : lines_of(page.render())) {
    EXPECT_TRUE(std::regex_match(line, series)) << line;
    EXPECT_TRUE(seen.insert(line.substr(0, line.rfind(' '))).second) << line;
  }
}

TEST(MetricsPage, TheFirstScrapeHasEverySeriesAtZero) {
  const HttpStats http;
  const EngineStats stats;
  MetricsPage page("0", http);
  page.add_model("main", stats);
  const std::string text = page.render();
  for (const char* name : {"luna_requests_running{",
                           "luna_requests_waiting{",
                           "luna_requests_total{",
                           "luna_prompt_tokens_total{",
                           "luna_generation_tokens_total{",
                           "luna_kv_blocks_used{",
                           "luna_kv_blocks_cached{",
                           "luna_kv_blocks_free{",
                           "luna_ttft_seconds_bucket{",
                           "luna_itl_seconds_bucket{",
                           "luna_e2e_seconds_bucket{",
                           "luna_step_seconds_bucket{",
                           "luna_border_calls_total{"})
    EXPECT_NE(text.find(name), std::string::npos) << name;
}

TEST(MetricsPage, ADevicesTimeStandsUnderItsName) {
  const HttpStats http;
  EngineStats stats;
  bump(stats.count_device("left")->busy_ns, 1'500'000'000);
  bump(stats.count_device("right")->busy_ns, 150'000'000);
  bump(stats.count_device("right")->busy_ns, 100'000'000);
  MetricsPage page("0", http);
  page.add_model("m", stats);
  const std::string text = page.render();
  const std::string name = "luna_device_busy_seconds_total{model=\"m\",device=";
  EXPECT_NE(text.find(name + "\"left\"} 1.5"), std::string::npos);
  EXPECT_NE(text.find(name + "\"right\"} 0.25"), std::string::npos);
}

TEST(MetricsPage, EachGroupOfDevicesHasItsNumbers) {
  const HttpStats http;
  EngineStats stats;
  bump(stats.groups[0].n_running, 3);
  bump(stats.groups[1].n_kv_blocks_free, 7);
  const std::array<const DeviceStats*, 2> first = {stats.count_device("a0"),
                                                   stats.count_device("a1")};
  const DeviceStats* second = stats.count_device("a2");
  stats.open_group(0, first);
  stats.open_group(1, std::span(&second, 1));
  MetricsPage page("0", http);
  page.add_model("m", stats);
  const std::string text = page.render();
  EXPECT_NE(text.find("luna_group_requests_running{model=\"m\",group=\"0\"} 3"), std::string::npos);
  EXPECT_NE(text.find("luna_group_kv_blocks_free{model=\"m\",group=\"1\"} 7"), std::string::npos);
  const std::string groups = page.render_groups();
  EXPECT_NE(groups.find(R"({"model":"m","group":0,"devices":["a0","a1"],"running":3,)"),
            std::string::npos);
  EXPECT_NE(groups.find(R"("group":1,"devices":["a2"],"running":0)"), std::string::npos);
}

TEST(MetricsPage, GroupsComeAndGo) {
  const HttpStats http;
  EngineStats stats;
  MetricsPage page("0", http);
  page.add_model("m", stats);
  EXPECT_EQ(page.render_groups(), "");
  const std::array<const DeviceStats*, 2> both = {stats.count_device("a"), stats.count_device("b")};
  stats.open_group(0, both);
  stats.open_group(1, std::span(both).first(1));
  EXPECT_NE(page.render_groups().find(R"("group":1,"devices":["a"])"), std::string::npos);
  stats.close_group(0);
  EXPECT_EQ(page.render_groups().find(R"("group":0)"), std::string::npos);
  EXPECT_EQ(page.render().find(R"(group="0")"), std::string::npos);
  // The place is used again.
  stats.open_group(0, std::span(both).last(1));
  EXPECT_NE(page.render_groups().find(R"("group":0,"devices":["b"])"), std::string::npos);
}

TEST(MetricsPage, WhatTheCheckOfOutputsFoundStandsThereToo) {
  const HttpStats http;
  EngineStats stats;
  MetricsPage page("0", http);
  page.add_model("m", stats);
  EXPECT_EQ(page.render_checks().find("last_mismatch"), std::string::npos);
  stats.output_check.percent = 20;
  stats.output_check.last.request_id = 7;
  stats.output_check.last.position = 31;
  bump(stats.output_check.n_checked, 4);
  bump(stats.output_check.n_mismatches, 1);
  bump(stats.output_check.n_skipped_of(CheckSkip::too_large), 2);
  const std::string text = page.render();
  EXPECT_NE(text.find("luna_output_checks_total{model=\"m\"} 4"), std::string::npos);
  EXPECT_NE(text.find("luna_output_mismatches_total{model=\"m\"} 1"), std::string::npos);
  EXPECT_NE(text.find("luna_output_checks_skipped_total{model=\"m\",reason=\"too_large\"} 2"),
            std::string::npos);
  const boost::json::value checks = boost::json::parse(page.render_checks());
  EXPECT_EQ(checks.at("percent").to_number<int>(), 20);
  EXPECT_EQ(checks.at("mismatches").to_number<int>(), 1);
  EXPECT_EQ(checks.at("skipped").at("too_large").to_number<int>(), 2);
  EXPECT_EQ(checks.at("last_mismatch").at("sequence").to_number<int>(), 7);
  EXPECT_EQ(checks.at("last_mismatch").at("position").to_number<int>(), 31);
}

TEST(MetricsPage, BucketsAreCumulativeAndEndAtTheCount) {
  const HttpStats http;
  EngineStats stats;
  stats.e2e_seconds.observe(0.002);
  stats.e2e_seconds.observe(1000.0);
  MetricsPage page("0", http);
  page.add_model("m", stats);
  const std::string text = page.render();
  EXPECT_NE(text.find("luna_e2e_seconds_bucket{model=\"m\",le=\"0.0025\"} 1"), std::string::npos);
  EXPECT_NE(text.find("luna_e2e_seconds_bucket{model=\"m\",le=\"500\"} 1"), std::string::npos);
  EXPECT_NE(text.find("luna_e2e_seconds_bucket{model=\"m\",le=\"+Inf\"} 2"), std::string::npos);
  EXPECT_NE(text.find("luna_e2e_seconds_count{model=\"m\"} 2"), std::string::npos);
}

}  // namespace
}  // namespace luna::telemetry
