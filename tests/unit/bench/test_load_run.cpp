// Closed and open loop, warm-up, the end by the user: against a target that answers at once.
#include "core/bench/load_run.hpp"
#include "core/bench/pipeline_target.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

namespace luna::bench {
namespace {

namespace asio = boost::asio;

/// What the fake server saw; outlives the run.
struct Seen {
  std::uint32_t n_running = 0;
  std::uint32_t n_running_max = 0;
  std::atomic<std::size_t> n_answered{0};
};

/// Answers each request at its next turn; from request `n_silent_from` on, only when cancelled.
class FakeTarget final : public Target {
 public:
  FakeTarget(const asio::any_io_executor& executor,
             const Clock& clock,
             Seen& seen,
             std::size_t n_silent_from)
      : executor_(executor),
        clock_(clock),
        seen_(seen),
        n_silent_from_(n_silent_from),
        silence_(executor) {
    silence_.expires_at(asio::steady_timer::time_point::max());
  }

  asio::awaitable<void> answer(const Prompt& prompt, RequestRecord& record) override {
    seen_.n_running_max = std::max(seen_.n_running_max, ++seen_.n_running);
    const bool is_silent = record.request_idx >= n_silent_from_;
    if (is_silent) {
      if (!is_cancelled_) co_await silence_.async_wait(asio::as_tuple(asio::use_awaitable));
    } else {
      co_await asio::post(executor_, asio::use_awaitable);
      record.token_times.push_back(clock_.now());
      record.usage = ServerUsage{1, 0, prompt.n_generated_max};
    }
    record.end = clock_.now();
    record.outcome = is_silent ? Outcome::cut : Outcome::done;
    --seen_.n_running;
    ++seen_.n_answered;
  }

  void cancel_all() override {
    is_cancelled_ = true;
    silence_.cancel();
  }

 private:
  asio::any_io_executor executor_;
  const Clock& clock_;
  Seen& seen_;
  const std::size_t n_silent_from_;
  asio::steady_timer silence_;
  bool is_cancelled_ = false;
};

constexpr std::size_t kNever = SIZE_MAX;

std::vector<RequestRecord> run(
    const LoadOptions& options,
    Seen& seen,
    std::size_t n_silent_from = kNever,
    const std::function<bool()>& keep_going = [] { return true; }) {
  const auto prompts = PromptSource::synthetic({}, 4);
  const TargetFactory factory = [&](const asio::any_io_executor& executor, const Clock& clock) {
    return std::make_unique<FakeTarget>(executor, clock, seen, n_silent_from);
  };
  return run_load(options, *prompts, factory, keep_going);
}

TEST(ClosedLoop, KeepsItsClientsBusyAndNoMore) {
  LoadOptions options;
  options.n_clients = 5;
  options.n_warm_up = 7;
  options.n_requests = 50;
  Seen seen;
  const auto records = run(options, seen);
  ASSERT_EQ(records.size(), 57U);
  EXPECT_EQ(seen.n_running_max, 5U);
  for (const RequestRecord& record : records) {
    EXPECT_EQ(record.outcome, Outcome::done);
    EXPECT_EQ(record.is_warm_up, record.request_idx < 7);
    EXPECT_LE(record.intended, record.sent);
    EXPECT_LE(record.sent, record.end);
  }
}

TEST(ClosedLoop, NeedsNoMoreClientsThanRequests) {
  LoadOptions options;
  options.n_clients = 64;
  options.n_requests = 3;
  Seen seen;
  EXPECT_EQ(run(options, seen).size(), 3U);
}

TEST(ClosedLoop, BeginsNothingAfterItsDuration) {
  LoadOptions options;
  options.duration = std::chrono::milliseconds(0);
  Seen seen;
  EXPECT_TRUE(run(options, seen).empty());
}

TEST(OpenLoop, SendsEveryRequestNotBeforeItIsDue) {
  LoadOptions options;
  options.rate_per_s = 50'000;
  options.n_requests = 500;
  options.seed = 3;
  Seen seen;
  const auto records = run(options, seen);
  ASSERT_EQ(records.size(), 500U);
  EXPECT_TRUE(std::is_sorted(records.begin(), records.end(), [](const auto& a, const auto& b) {
    return a.intended < b.intended;
  }));
  for (const RequestRecord& record : records)
    EXPECT_LE(record.intended, record.sent);
}

TEST(OpenLoop, RequestsBeyondTheConnectionsWaitAndAreNotForgotten) {
  LoadOptions options;
  options.rate_per_s = 1e6;
  options.n_requests = 200;
  options.n_connections_max = 3;
  Seen seen;
  EXPECT_EQ(run(options, seen).size(), 200U);
  EXPECT_LE(seen.n_running_max, 3U);
}

TEST(LoadRun, EndedByTheUserReturnsWhatCameTillThen) {
  for (const bool is_open : {false, true}) {
    LoadOptions options;
    options.n_clients = 2;
    options.n_requests = 1'000'000;
    if (is_open) options.rate_per_s = 10'000;
    Seen seen;
    // The user gives up when the first answers have come; later requests would never be answered.
    const auto records = run(options, seen, 10, [&] { return seen.n_answered < 10; });
    ASSERT_GE(records.size(), 11U);
    const auto n_done = std::count_if(records.begin(), records.end(), [](const auto& record) {
      return record.outcome == Outcome::done;
    });
    EXPECT_EQ(n_done, 10);
    EXPECT_EQ(records.back().outcome, Outcome::cut);
  }
}

/// Answers nothing and keeps whoever would be told.
class SilentPipeline final : public pipeline::Pipeline {
 public:
  std::vector<std::shared_ptr<pipeline::OutputSink>> sinks;

  [[nodiscard]] std::vector<std::string> model_names() const override { return {"main"}; }
  [[nodiscard]] std::uint32_t context_length(const std::string&) const override { return 1000; }
  [[nodiscard]] std::uint32_t vocab_size(const std::string&) const override { return 1000; }
  [[nodiscard]] Result<std::vector<pipeline::TokenId>> tokenize(
      const pipeline::Request& request) const override {
    return request.prompt_ids;
  }
  [[nodiscard]] std::string token_bytes(const std::string&, pipeline::TokenId) const override {
    return "";
  }
  Result<std::unique_ptr<pipeline::RunningRequest>> start(
      pipeline::Request, std::shared_ptr<pipeline::OutputSink> sink) override {
    sinks.push_back(std::move(sink));
    return std::make_unique<pipeline::RunningRequest>();
  }
};

TEST(PipelineTarget, WhatComesAfterTheRunHasEndedTouchesNothingOfIt) {
  SilentPipeline pipeline;
  LoadOptions options;
  options.n_clients = 3;
  const auto prompts = PromptSource::synthetic({}, 4);
  const auto records = run_load(
      options, *prompts, pipeline_target(pipeline), [&] { return pipeline.sinks.size() < 3; });
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records.front().outcome, Outcome::cut);
  // The run's clock and executor are gone; a cancelled request's last words come all the same.
  for (const auto& sink : pipeline.sinks) {
    std::vector<pipeline::OutputEvent> events(1);
    sink->on_output(events, std::nullopt);
    sink->on_output({}, pipeline::OutputEnd{});
  }
  pipeline.sinks.clear();
}

}  // namespace
}  // namespace luna::bench
