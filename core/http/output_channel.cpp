#include "core/http/output_channel.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <utility>

namespace luna::http {
namespace {

namespace asio = boost::asio;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::milliseconds kProbeInterval{200};

/// Whether the client has ended its side, unread bytes or not.
bool has_peer_closed(boost::beast::tcp_stream& stream) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(stream.socket().native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
    return true;
  return info.tcpi_state != TCP_ESTABLISHED;
}

}  // namespace

/// Holds the channel: the pipeline may speak after the connection has gone.
class OutputChannel::PromptSink : public pipeline::OutputSink {
 public:
  PromptSink(std::shared_ptr<OutputChannel> channel, std::uint32_t first_choice)
      : channel_(std::move(channel)), first_choice_(first_choice) {}

  void on_output(std::vector<pipeline::OutputEvent> events,
                 std::optional<pipeline::OutputEnd> end) override {
    asio::post(channel_->executor_,
               [channel = channel_,
                first = first_choice_,
                events = std::move(events),
                end = std::move(end)]() mutable {
                 channel->receive(first, std::move(events), std::move(end));
               });
  }

 private:
  std::shared_ptr<OutputChannel> channel_;
  std::uint32_t first_choice_;
};

OutputChannel::OutputChannel(asio::any_io_executor executor, std::uint32_t n_prompts)
    : executor_(executor),
      timer_(executor),
      probe_timer_(std::move(executor)),
      n_open_(n_prompts) {}

std::shared_ptr<pipeline::OutputSink> OutputChannel::sink(std::uint32_t first_choice) {
  return std::make_shared<PromptSink>(shared_from_this(), first_choice);
}

void OutputChannel::receive(std::uint32_t first_choice,
                            std::vector<pipeline::OutputEvent> events,
                            std::optional<pipeline::OutputEnd> end) {
  for (pipeline::OutputEvent& event : events) {
    event.choice += first_choice;
    events_.push_back(std::move(event));
  }
  if (end) {
    --n_open_;
    usage_.n_prompt += end->usage.n_prompt;
    usage_.n_cached += end->usage.n_cached;
    usage_.n_generated += end->usage.n_generated;
    if (end->error && !error_) error_ = std::move(end->error);
  }
  wake();
}

void OutputChannel::wake() {
  woken_ = true;
  timer_.cancel();
}

void OutputChannel::watch(const std::shared_ptr<boost::beast::tcp_stream>& stream) {
  // The handler may run after session and channel have gone: it holds neither.
  auto on_readable = [weak_channel = weak_from_this(),
                      weak_stream = std::weak_ptr(stream)](boost::system::error_code error) {
    const auto channel = weak_channel.lock();
    const auto alive = weak_stream.lock();
    if (!channel || !alive || error == asio::error::operation_aborted) return;
    boost::system::error_code probe;
    const bool has_bytes = !error && alive->socket().available(probe) > 0 && !probe;
    if (has_bytes && !has_peer_closed(*alive)) {
      // A pipelined request: the socket stays readable, so from here on it is asked now and then.
      channel->watch_later(alive);
      return;
    }
    channel->client_gone_ = true;
    channel->wake();
  };
  stream->socket().async_wait(asio::ip::tcp::socket::wait_read, std::move(on_readable));
}

void OutputChannel::watch_later(const std::shared_ptr<boost::beast::tcp_stream>& stream) {
  probe_timer_.expires_after(kProbeInterval);
  probe_timer_.async_wait([weak_channel = weak_from_this(),
                           weak_stream = std::weak_ptr(stream)](boost::system::error_code error) {
    const auto channel = weak_channel.lock();
    const auto alive = weak_stream.lock();
    if (error || !channel || !alive || channel->has_ended()) return;
    if (!has_peer_closed(*alive)) return channel->watch_later(alive);
    channel->client_gone_ = true;
    channel->wake();
  });
}

asio::awaitable<void> OutputChannel::wait(std::chrono::steady_clock::duration timeout) {
  if (!woken_) {
    timer_.expires_after(timeout);
    co_await timer_.async_wait(kAwait);
  }
  woken_ = false;
}

asio::awaitable<std::vector<pipeline::OutputEvent>> OutputChannel::first_events(
    std::chrono::steady_clock::duration timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (events_.empty() && !has_ended() && !client_gone_) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero()) break;
    co_await wait(left);
  }
  co_return take_events();
}

std::vector<pipeline::OutputEvent> OutputChannel::take_events() {
  return std::exchange(events_, {});
}

}  // namespace luna::http
