#include "core/bench/load_run.hpp"

#include "core/bench/arrivals.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <deque>
#include <exception>
#include <memory>
#include <utility>

namespace luna::bench {
namespace {

namespace asio = boost::asio;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

// How soon Ctrl-C is noticed.
constexpr std::chrono::milliseconds kPoll{50};

/// One run; everything happens on the thread that calls run().
class LoadRun {
 public:
  LoadRun(const LoadOptions& options,
          const PromptSource& prompts,
          const TargetFactory& make_target,
          const std::function<bool()>& keep_going)
      : options_(options),
        prompts_(prompts),
        keep_going_(keep_going),
        target_(make_target(context_.get_executor(), clock_)),
        due_timer_(context_),
        poll_timer_(context_) {}

  std::vector<RequestRecord> run() {
    start_ = clock_.now();
    spawn(watch());
    if (options_.rate_per_s) {
      spawn(send_when_due());
    } else {
      const std::size_t n = std::min<std::size_t>(options_.n_clients, n_all());
      for (std::size_t i = 0; i < n; ++i)
        spawn(closed_loop_client());
    }
    context_.run();
    return {std::make_move_iterator(records_.begin()), std::make_move_iterator(records_.end())};
  }

 private:
  std::size_t n_all() const { return options_.n_warm_up + options_.n_requests; }

  /// The run ends with the last of the tasks, but for the watch.
  void spawn(asio::awaitable<void> task) {
    ++n_tasks_;
    asio::co_spawn(context_, std::move(task), [this](const std::exception_ptr& thrown) {
      if (--n_tasks_ == 1) poll_timer_.cancel();  // the watch is left
      if (thrown) std::rethrow_exception(thrown);
    });
  }

  asio::awaitable<void> watch() {
    while (n_tasks_ > 1) {
      if (!is_stopped_ && !keep_going_()) {
        is_stopped_ = true;
        due_timer_.cancel();
        target_->cancel_all();
      }
      poll_timer_.expires_after(kPoll);
      co_await poll_timer_.async_wait(kAwait);
    }
  }

  bool is_over() const {
    const bool is_late = options_.duration && clock_.now() - start_ >= *options_.duration;
    return is_stopped_ || is_late;
  }

  asio::awaitable<void> perform(Nanoseconds intended) {
    // A deque: records stay where they are while others are added.
    RequestRecord& record = records_.emplace_back();
    record.request_idx = records_.size() - 1;
    record.is_warm_up = record.request_idx < options_.n_warm_up;
    const Prompt prompt = prompts_.prompt(record.request_idx);
    record.intended = intended;
    record.sent = clock_.now() - start_;
    co_await target_->answer(prompt, record);
    record.end -= start_;
    for (Nanoseconds& time : record.token_times)
      time -= start_;
  }

  asio::awaitable<void> closed_loop_client() {
    while (records_.size() < n_all() && !is_over()) {
      const Nanoseconds intended = clock_.now() - start_;
      co_await perform(intended);
    }
  }

  asio::awaitable<void> send_when_due() {
    const auto arrivals = poisson_arrivals(*options_.rate_per_s, n_all(), options_.seed);
    const auto begin = std::chrono::steady_clock::now();
    for (const Nanoseconds due : arrivals) {
      if (options_.duration && due >= *options_.duration) break;
      due_timer_.expires_at(begin + due);
      co_await due_timer_.async_wait(kAwait);
      if (is_stopped_) break;
      due_.push_back(due);
      if (n_senders_ >= options_.n_connections_max) continue;
      ++n_senders_;
      spawn(send_due_requests());
    }
  }

  asio::awaitable<void> send_due_requests() {
    while (!due_.empty() && !is_stopped_) {
      const Nanoseconds intended = due_.front();
      due_.pop_front();
      co_await perform(intended);
    }
    --n_senders_;
  }

  const LoadOptions& options_;
  const PromptSource& prompts_;
  const std::function<bool()>& keep_going_;
  const RealClock clock_;
  asio::io_context context_{1};
  const std::unique_ptr<Target> target_;
  asio::steady_timer due_timer_;
  asio::steady_timer poll_timer_;
  Nanoseconds start_{0};
  std::deque<RequestRecord> records_;
  std::deque<Nanoseconds> due_;  // open loop: due, not sent
  std::uint32_t n_senders_ = 0;
  std::size_t n_tasks_ = 0;
  bool is_stopped_ = false;
};

}  // namespace

std::vector<RequestRecord> run_load(const LoadOptions& options,
                                    const PromptSource& prompts,
                                    const TargetFactory& make_target,
                                    const std::function<bool()>& keep_going) {
  LoadRun run(options, prompts, make_target, keep_going);
  return run.run();
}

}  // namespace luna::bench
