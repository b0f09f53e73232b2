#include "core/bench/pipeline_target.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>

namespace luna::bench {
namespace {

namespace asio = boost::asio;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

/// Takes times on the pipeline thread; wakes the load run's thread once, at the end. A request that
/// is cancelled may have output after the run has gone: then the sink has been told.
class TimingSink final : public pipeline::OutputSink,
                         public std::enable_shared_from_this<TimingSink> {
 public:
  TimingSink(asio::any_io_executor executor, const Clock& clock)
      : executor_(std::move(executor)), clock_(clock), ended_(std::in_place, executor_) {
    ended_->expires_at(asio::steady_timer::time_point::max());
  }

  void on_output(std::span<pipeline::OutputEvent> events,
                 std::optional<pipeline::OutputEnd> end) override {
    const std::lock_guard lock(mutex_);
    if (!ended_) return;
    const Nanoseconds now = clock_.now();
    for (const pipeline::OutputEvent& event : events)
      if (!event.text.empty() || !event.finish) times_.push_back(now);
    if (!end) return;
    end_ = std::move(end);
    end_time_ = now;
    asio::post(executor_, [self = shared_from_this()] { self->wake(); });
  }

  /// Returns at the end, or after cancel(). [load]
  asio::awaitable<void> wait() {
    while (!is_cancelled_ && !has_ended())
      co_await ended_->async_wait(kAwait);
  }

  void cancel() {
    is_cancelled_ = true;
    wake();
  }

  void fill(RequestRecord& record) {
    const std::lock_guard lock(mutex_);
    record.token_times = std::move(times_);
    record.end = end_ ? end_time_ : clock_.now();
    record.outcome = Outcome::cut;
    if (!end_) return;
    const pipeline::Usage& usage = end_->usage;
    record.usage = ServerUsage{usage.n_prompt, usage.n_cached, usage.n_generated};
    record.outcome = end_->error ? Outcome::failed : Outcome::done;
    if (end_->error) record.error = end_->error->message();
  }

  /// From now on nothing of the run is touched: its clock and its executor may go. [load]
  void let_go() {
    const std::lock_guard lock(mutex_);
    ended_.reset();
  }

 private:
  /// [load]
  void wake() {
    if (ended_) ended_->cancel();
  }
  bool has_ended() {
    const std::lock_guard lock(mutex_);
    return end_.has_value();
  }

  asio::any_io_executor executor_;
  const Clock& clock_;
  bool is_cancelled_ = false;  // the load run's thread's
  std::mutex mutex_;
  /// Runs out when the request has ended. None: the run has let go. Waited for and cancelled by its
  /// thread alone, which alone takes it away.
  std::optional<asio::steady_timer> ended_;
  std::vector<Nanoseconds> times_;
  std::optional<pipeline::OutputEnd> end_;
  Nanoseconds end_time_{0};
};

pipeline::Request make_request(const Prompt& prompt, const std::string& model) {
  pipeline::Request request;
  request.id = "bench";
  request.model = model;
  request.streaming = true;
  request.sampling.temperature = 0;
  request.stop.ignore_eos = true;
  request.n_generated_max = prompt.n_generated_max;
  request.endpoint = pipeline::Endpoint::completion;
  if (const auto* text = std::get_if<std::string>(&prompt.input)) {
    request.prompt_text = *text;
  } else if (const auto* ids = std::get_if<TokenIds>(&prompt.input)) {
    request.prompt_ids = *ids;
    request.add_special_tokens = false;
  } else {
    request.endpoint = pipeline::Endpoint::chat;
    request.template_variables["messages"] = std::get<boost::json::array>(prompt.input);
    request.template_variables["add_generation_prompt"] = true;
  }
  return request;
}

class PipelineTarget final : public Target {
 public:
  PipelineTarget(asio::any_io_executor executor, const Clock& clock, pipeline::Pipeline& pipeline)
      : executor_(std::move(executor)),
        clock_(clock),
        pipeline_(pipeline),
        model_(pipeline.model_names().front()) {}

  asio::awaitable<void> answer(const Prompt& prompt, RequestRecord& record) override {
    auto sink = std::make_shared<TimingSink>(executor_, clock_);
    auto running = pipeline_.start(make_request(prompt, model_), sink);
    if (!running) {
      record.end = clock_.now();
      record.outcome = Outcome::failed;
      record.error = running.error().message();
      co_return;
    }
    running_.insert(sink.get());
    if (is_cancelled_) sink->cancel();
    co_await sink->wait();
    running_.erase(sink.get());
    sink->fill(record);
    sink->let_go();
  }

  void cancel_all() override {
    is_cancelled_ = true;
    for (TimingSink* sink : running_)
      sink->cancel();
  }

 private:
  asio::any_io_executor executor_;
  const Clock& clock_;
  pipeline::Pipeline& pipeline_;
  const std::string model_;
  std::set<TimingSink*> running_;  // each is held by its answer()
  bool is_cancelled_ = false;
};

}  // namespace

TargetFactory pipeline_target(pipeline::Pipeline& pipeline) {
  return [&pipeline](asio::any_io_executor executor, const Clock& clock) {
    return std::make_unique<PipelineTarget>(std::move(executor), clock, pipeline);
  };
}

}  // namespace luna::bench
