#include "core/http/output_channel.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <iterator>
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

  void on_output(std::span<pipeline::OutputEvent> events,
                 std::optional<pipeline::OutputEnd> end) override {
    channel_->receive(first_choice_, events, std::move(end));
  }

 private:
  std::shared_ptr<OutputChannel> channel_;
  std::uint32_t first_choice_;
};

void OutputChannel::News::add(pipeline::OutputEvent& event, std::uint32_t first_choice) {
  const std::uint32_t choice = first_choice + event.choice;
  while (choices.size() <= choice) {
    choices.emplace_back();
    choices.back().choice = static_cast<std::uint32_t>(choices.size() - 1);
  }
  pipeline::OutputEvent& place = choices[choice];
  place.text += event.text;
  place.tokens.insert(place.tokens.end(),
                      std::move_iterator(event.tokens.begin()),
                      std::move_iterator(event.tokens.end()));
  if (event.finish) place.finish = event.finish;
  has_any = true;
}

/// The places and their memory stay: the next news need no allocation.
void OutputChannel::News::clear() {
  for (pipeline::OutputEvent& place : choices) {
    place.text.clear();
    place.tokens.clear();
    place.finish.reset();
  }
  has_any = false;
  n_ended = 0;
  usage = {};
  error.reset();
}

OutputChannel::OutputChannel(std::shared_ptr<OutputLane> lane,
                             std::uint32_t n_prompts,
                             std::chrono::steady_clock::duration silence)
    : lane_(std::move(lane)),
      silence_(silence),
      parked_(lane_->executor(), asio::steady_timer::time_point::max()),
      silence_timer_(lane_->executor()),
      probe_timer_(lane_->executor()),
      n_open_(n_prompts) {}

std::shared_ptr<pipeline::OutputSink> OutputChannel::sink(std::uint32_t first_choice) {
  return std::make_shared<PromptSink>(shared_from_this(), first_choice);
}

void OutputChannel::receive(std::uint32_t first_choice,
                            std::span<pipeline::OutputEvent> events,
                            std::optional<pipeline::OutputEnd> end) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return;
    for (pipeline::OutputEvent& event : events)
      fresh_.add(event, first_choice);
    if (end) {
      ++fresh_.n_ended;
      fresh_.usage.n_prompt += end->usage.n_prompt;
      fresh_.usage.n_cached += end->usage.n_cached;
      fresh_.usage.n_generated += end->usage.n_generated;
      if (end->error && !fresh_.error) fresh_.error = std::move(end->error);
    }
    is_first = !std::exchange(is_listed_, true);
  }
  if (is_first) lane_->list(shared_from_this());
}

void OutputChannel::close() {
  silence_timer_.cancel();
  probe_timer_.cancel();
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  fresh_ = {};
}

bool OutputChannel::take() {
  taken_.clear();
  {
    const std::lock_guard lock(mutex_);
    std::swap(taken_, fresh_);
    is_listed_ = false;
  }
  n_open_ -= taken_.n_ended;
  usage_.n_prompt += taken_.usage.n_prompt;
  usage_.n_cached += taken_.usage.n_cached;
  usage_.n_generated += taken_.usage.n_generated;
  if (taken_.error && !error_) error_ = std::move(taken_.error);
  return taken_.has_any;
}

void OutputChannel::wake() {
  had_news_ = true;
  resume();
}

void OutputChannel::resume() {
  is_woken_ = true;
  parked_.cancel();
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
    channel->resume();
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
    channel->resume();
  });
}

void OutputChannel::listen_for_silence() {
  silence_timer_.expires_after(silence_);
  silence_timer_.async_wait([weak_channel = weak_from_this()](boost::system::error_code error) {
    const auto channel = weak_channel.lock();
    if (error || !channel || channel->is_closed_) return;
    if (!std::exchange(channel->had_news_, false)) {
      channel->is_silent_ = true;
      channel->resume();
    }
    channel->listen_for_silence();
  });
}

asio::awaitable<OutputChannel::Wakening> OutputChannel::wait() {
  // Armed once, not once a token: timers of many streams are a heap that each change walks.
  if (silence_timer_.expiry() == asio::steady_timer::time_point{}) listen_for_silence();
  if (!is_woken_) co_await parked_.async_wait(kAwait);
  is_woken_ = false;
  const bool was_silent = std::exchange(is_silent_, false);
  co_return was_silent ? Wakening::silence : Wakening::news;
}

}  // namespace luna::http
