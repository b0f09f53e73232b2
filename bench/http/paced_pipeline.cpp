#include "bench/http/paced_pipeline.hpp"

#include "bench/http/stamped_token.hpp"

#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

namespace luna::bench {
namespace {

// Every connection has its first read behind it when production begins.
constexpr std::chrono::milliseconds kSettle{500};

}  // namespace

PacedPipeline::PacedPipeline(const Pace& pace) : pace_(pace), n_given_(pace.n_streams) {
  streams_.reserve(pace.n_streams);
}

PacedPipeline::~PacedPipeline() {
  join();
}

void PacedPipeline::join() {
  if (thread_.joinable()) thread_.join();
}

Result<std::unique_ptr<pipeline::RunningRequest>> PacedPipeline::start(
    pipeline::Request /*request*/, std::shared_ptr<pipeline::OutputSink> sink) {
  const std::lock_guard lock(mutex_);
  if (streams_.size() == pace_.n_streams)
    return Error{Code::exhausted, "more requests than the run was told of"};
  streams_.push_back(std::move(sink));
  n_started_.fetch_add(1);
  if (streams_.size() == pace_.n_streams) thread_ = std::thread([this] { produce(); });
  return std::make_unique<pipeline::RunningRequest>();
}

void PacedPipeline::give(std::size_t stream, std::uint64_t due_us) {
  const auto token = token_of(due_us);
  pipeline::OutputEvent event;
  event.text = std::string_view(token.data(), token.size());
  std::optional<pipeline::OutputEnd> end;
  if (++n_given_[stream] == pace_.n_tokens_each) {
    event.finish = pipeline::FinishReason::length;
    end.emplace();
    end->usage.n_generated = pace_.n_tokens_each;
  }
  streams_[stream]->on_output({&event, 1}, std::move(end));
}

void PacedPipeline::produce() {
  using std::chrono::microseconds;
  using std::chrono::steady_clock;
  std::this_thread::sleep_for(kSettle);
  is_producing_.store(true);
  const std::uint64_t n_tokens = std::uint64_t{pace_.n_tokens_each} * pace_.n_streams;
  const std::uint64_t begin_us = now_us();
  std::uint64_t n_given = 0;
  for (std::uint64_t step = 1; n_given < n_tokens; ++step) {
    const std::uint64_t since_us = step * pace_.step_us;
    std::uint64_t n_due = n_given + pace_.n_streams;
    std::uint64_t due_us = now_us();
    if (pace_.tokens_per_s > 0) {
      due_us = begin_us + since_us;
      n_due = since_us * pace_.tokens_per_s / 1'000'000;
      std::this_thread::sleep_until(steady_clock::time_point(microseconds(due_us)));
    }
    for (; n_given < std::min(n_due, n_tokens); ++n_given)
      give(n_given % pace_.n_streams, due_us);
  }
}

}  // namespace luna::bench
