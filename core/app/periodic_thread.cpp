#include "core/app/periodic_thread.hpp"

#include <utility>

namespace luna::app {

PeriodicThread::PeriodicThread(std::chrono::milliseconds period, std::function<void()> turn)
    : period_(period), turn_(std::move(turn)) {
  thread_ = std::thread([this] { run(); });
}

void PeriodicThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool PeriodicThread::is_stopping() {
  const std::lock_guard lock(mutex_);
  return is_stopping_;
}

void PeriodicThread::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (wake_.wait_for(lock, period_, [this] { return is_stopping_; })) return;
    }
    turn_();
  }
}

}  // namespace luna::app
