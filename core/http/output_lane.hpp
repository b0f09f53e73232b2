// What the connections of one I/O thread share on their way from the pipeline to the sockets.
#pragma once

#include "core/http/sse_writer.hpp"

#include <boost/asio/any_io_executor.hpp>

#include <memory>
#include <mutex>
#include <vector>

namespace luna::http {

class OutputChannel;

/// Channels with news are listed, and the I/O thread is told of all of them by one post: a step
/// costs it one wake-up, however many requests it served. Owned by the I/O thread, shared with the
/// channels, because the pipeline may speak after a connection has gone.
class OutputLane : public std::enable_shared_from_this<OutputLane> {
 public:
  explicit OutputLane(boost::asio::any_io_executor executor) : executor_(std::move(executor)) {}

  [[nodiscard]] const boost::asio::any_io_executor& executor() const { return executor_; }
  /// Has the I/O thread wake the channel. A channel is listed once until it is woken. [any]
  void list(std::shared_ptr<OutputChannel> channel);
  /// For whoever writes events on this thread, until it suspends. [io]
  [[nodiscard]] SseWriter& writer() { return writer_; }

 private:
  void wake_listed();

  boost::asio::any_io_executor executor_;
  SseWriter writer_;
  std::vector<std::shared_ptr<OutputChannel>> waking_;  // wake_listed's, used again
  std::mutex mutex_;
  // Guarded by the mutex. At most one entry a request that is being answered.
  std::vector<std::shared_ptr<OutputChannel>> listed_;
};

}  // namespace luna::http
