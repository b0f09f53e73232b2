#include "core/app/prompt_runner.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace luna::app {
namespace {

// How soon Ctrl-C is noticed while the model is silent.
constexpr std::chrono::milliseconds kPoll{50};

/// From the pipeline thread to the terminal's.
class Mailbox : public pipeline::OutputSink {
 public:
  struct Item {
    std::vector<pipeline::OutputEvent> events;
    std::optional<pipeline::OutputEnd> end;
  };

  void on_output(std::span<pipeline::OutputEvent> events,
                 std::optional<pipeline::OutputEnd> end) override {
    const std::lock_guard lock(mutex_);
    items_.push_back(
        {{std::move_iterator(events.begin()), std::move_iterator(events.end())}, std::move(end)});
    arrived_.notify_one();
  }

  std::optional<Item> wait() {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, kPoll, [this] { return !items_.empty(); })) return std::nullopt;
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Item> items_;
};

}  // namespace

Result<PromptOutcome> run_prompt(pipeline::Pipeline& pipeline,
                                 pipeline::Request request,
                                 const std::function<void(std::string_view)>& on_text,
                                 const std::function<bool()>& keep_going) {
  auto mailbox = std::make_shared<Mailbox>();
  LUNA_TRY(auto running, pipeline.start(std::move(request), mailbox));
  PromptOutcome outcome;
  for (;;) {
    if (running && !keep_going()) {
      outcome.finish = pipeline::FinishReason::cancelled;
      return outcome;  // `running` cancels as it goes
    }
    auto item = mailbox->wait();
    if (!item) continue;
    for (const pipeline::OutputEvent& event : item->events) {
      if (!event.text.empty()) on_text(event.text);
      if (event.finish) outcome.finish = *event.finish;
    }
    if (!item->end) continue;
    if (item->end->error) return *item->end->error;
    outcome.usage = item->end->usage;
    return outcome;
  }
}

}  // namespace luna::app
