#include "core/http/output_lane.hpp"

#include "core/http/output_channel.hpp"

#include <boost/asio/post.hpp>

#include <utility>

namespace luna::http {

void OutputLane::list(std::shared_ptr<OutputChannel> channel) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    is_first = listed_.empty();
    listed_.push_back(std::move(channel));
  }
  if (is_first) boost::asio::post(executor_, [lane = shared_from_this()] { lane->wake_listed(); });
}

void OutputLane::wake_listed() {
  {
    const std::lock_guard lock(mutex_);
    std::swap(waking_, listed_);
  }
  for (const auto& channel : waking_)
    channel->wake();
  waking_.clear();
}

}  // namespace luna::http
