#include "core/telemetry/step_trace.hpp"

#include <boost/json/parse.hpp>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace luna::telemetry {
namespace {

StepRecord record_of(std::uint64_t step) {
  StepRecord record;
  record.step = step;
  record.started_ns = 3 * step;
  record.n_kv_tokens = 7 * step;
  return record;
}

TEST(StepTrace, LastGivesTheNewestInOrder) {
  StepTrace trace;
  EXPECT_TRUE(trace.last(10).empty());
  for (std::uint64_t step = 1; step <= 5; ++step)
    trace.append(record_of(step));
  const auto records = trace.last(3);
  ASSERT_EQ(records.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(records[i].step, i + 3);
}

TEST(StepTrace, AFullRingForgetsTheOldest) {
  StepTrace trace;
  const std::uint64_t n = StepTrace::kRecords + 10;
  for (std::uint64_t step = 1; step <= n; ++step)
    trace.append(record_of(step));
  const auto records = trace.last(2 * StepTrace::kRecords);
  // The oldest slot counts as being written: a reader cannot tell.
  ASSERT_EQ(records.size(), StepTrace::kRecords - 1);
  EXPECT_EQ(records.front().step, n - StepTrace::kRecords + 2);
  EXPECT_EQ(records.back().step, n);
}

/// Every record is whole, and they follow each other. Returns how many there were.
std::size_t expect_whole(const std::vector<StepRecord>& records) {
  for (std::size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].started_ns, 3 * records[i].step);
    EXPECT_EQ(records[i].n_kv_tokens, 7 * records[i].step);
    EXPECT_EQ(records[i].step, records[0].step + i);
  }
  return records.size();
}

TEST(StepTrace, ReadersNeverSeeATornRecord) {
  StepTrace trace;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (std::uint64_t step = 1; step <= 200'000; ++step)
      trace.append(record_of(step));
    done = true;
  });
  while (!done) {
    expect_whole(trace.last(StepTrace::kRecords));
    expect_whole(trace.last(16));
  }
  writer.join();
  EXPECT_EQ(expect_whole(trace.last(StepTrace::kRecords)), StepTrace::kRecords - 1);
}

TEST(StepTrace, ARecordIsALineOfJson) {
  const auto parsed = boost::json::parse(to_json(record_of(4), "a \"model\"\n"));
  EXPECT_EQ(parsed.at("model").as_string(), "a \"model\"\n");
  EXPECT_EQ(parsed.at("step").to_number<int>(), 4);
  EXPECT_EQ(parsed.at("kv_tokens").to_number<int>(), 28);
}

}  // namespace
}  // namespace luna::telemetry
