// A flag that one coroutine waits for.
#pragma once

#include "stream.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>

namespace luna::tcp {

/// Set by anybody on the thread, awaited and cleared by one coroutine. [io]
class Event {
 public:
  explicit Event(asio::io_context& context) : timer_(context) {}

  void set() {
    is_set_ = true;
    timer_.cancel();
  }
  asio::awaitable<void> wait() {
    if (!is_set_) {
      timer_.expires_at(asio::steady_timer::time_point::max());
      co_await timer_.async_wait(kAwait);
    }
    is_set_ = false;
  }
  /// Returns earlier when set.
  asio::awaitable<void> wait_for(std::chrono::milliseconds duration) {
    if (!is_set_) {
      timer_.expires_after(duration);
      co_await timer_.async_wait(kAwait);
    }
    is_set_ = false;
  }

 private:
  asio::steady_timer timer_;
  bool is_set_ = false;
};

}  // namespace luna::tcp
