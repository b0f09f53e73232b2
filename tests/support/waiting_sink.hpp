// Output that a test waits for.
#pragma once

#include "support/pipeline_fixture.hpp"

#include <condition_variable>
#include <mutex>

namespace luna::test {

/// Lets a test wait for the end of a request.
class WaitingSink final : public pipeline::OutputSink {
 public:
  void on_output(std::span<pipeline::OutputEvent> events,
                 std::optional<pipeline::OutputEnd> end) override {
    const std::lock_guard lock(mutex_);
    recorded_.on_output(events, std::move(end));
    changed_.notify_all();
  }
  const RecordingSink& wait_for_end() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return recorded_.end.has_value(); });
    return recorded_;
  }
  void wait_for_text() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !recorded_.text().empty() || recorded_.end; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  RecordingSink recorded_;
};

}  // namespace luna::test
