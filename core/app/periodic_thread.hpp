// A function that is called again and again.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace luna::app {

/// Calls a function on a thread of its own, a period after its last call ended, until it is
/// stopped. What the function uses outlives it. A resource.
class PeriodicThread {
 public:
  PeriodicThread(std::chrono::milliseconds period, std::function<void()> turn);
  ~PeriodicThread() { stop(); }
  PeriodicThread(const PeriodicThread&) = delete;
  PeriodicThread& operator=(const PeriodicThread&) = delete;

  /// Waits for the turn that runs. Not from the turn itself.
  void stop();
  /// Whether stop() waits, so that a turn may end early. [any]
  [[nodiscard]] bool is_stopping();

 private:
  void run();

  const std::chrono::milliseconds period_;
  const std::function<void()> turn_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace luna::app
