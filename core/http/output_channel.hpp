// From the pipeline thread to a connection's coroutine: what comes is kept, the coroutine is woken.
#pragma once

#include "core/http/output_lane.hpp"
#include "core/pipeline/pipeline.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/tcp_stream.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace luna::http {

/// One request body's output, all its prompts together. Members are used on the connection's I/O
/// thread; sink() objects may be called from the pipeline thread.
///
/// A choice's news wait in one place: what comes before the client has taken the last is added to
/// it. So a client that reads slowly costs the text it has not read, which the length of its
/// request bounds, and gets it in larger pieces.
class OutputChannel : public std::enable_shared_from_this<OutputChannel> {
 public:
  /// silence   how long nothing may come before wait() says so
  OutputChannel(std::shared_ptr<OutputLane> lane,
                std::uint32_t n_prompts,
                std::chrono::steady_clock::duration silence);

  /// A sink for one prompt; its choices are numbered from `first_choice`.
  std::shared_ptr<pipeline::OutputSink> sink(std::uint32_t first_choice);

  /// Nobody waits any more: what still comes is thrown away.
  void close();

  /// Watches the socket for the client's end while the coroutine waits for output.
  void watch(const std::shared_ptr<boost::beast::tcp_stream>& stream);

  enum class Wakening { news, silence };
  /// Returns when something has come or the client has gone, or when all has been silent for the
  /// given time (up to twice: silence is looked for once in that time).
  boost::asio::awaitable<Wakening> wait();

  /// Takes what has come since the last call. True when a choice has news.
  bool take();
  /// What the last take() brought, a place a choice, empty where it has no news.
  [[nodiscard]] std::span<const pipeline::OutputEvent> events() const { return taken_.choices; }
  static bool is_news(const pipeline::OutputEvent& event) {
    return !event.text.empty() || !event.tokens.empty() || event.finish.has_value();
  }

  // ---- as of the last take()
  [[nodiscard]] bool has_ended() const { return n_open_ == 0; }
  [[nodiscard]] const pipeline::Usage& usage() const { return usage_; }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

  [[nodiscard]] bool is_client_gone() const { return client_gone_; }

 private:
  friend class OutputLane;  // wakes
  class PromptSink;

  /// What came and has not been taken.
  struct News {
    std::vector<pipeline::OutputEvent> choices;  // by choice
    bool has_any = false;
    std::uint32_t n_ended = 0;  // prompts
    pipeline::Usage usage;      // of those
    std::optional<Error> error;

    void add(pipeline::OutputEvent& event, std::uint32_t first_choice);
    void clear();
  };

  void receive(std::uint32_t first_choice,
               std::span<pipeline::OutputEvent> events,
               std::optional<pipeline::OutputEnd> end);
  void wake();
  void resume();
  void watch_later(const std::shared_ptr<boost::beast::tcp_stream>& stream);
  void listen_for_silence();

  const std::shared_ptr<OutputLane>
      lane_;  // shared: a sink may outlive the I/O thread's connections
  const std::chrono::steady_clock::duration silence_;
  boost::asio::steady_timer parked_;  // never expires: a place for the coroutine to wait
  boost::asio::steady_timer silence_timer_;
  boost::asio::steady_timer probe_timer_;
  bool is_woken_ = false;
  bool had_news_ = false;  // since silence was last looked for
  bool is_silent_ = false;
  bool client_gone_ = false;
  std::uint32_t n_open_;
  News taken_;
  pipeline::Usage usage_;
  std::optional<Error> error_;

  std::mutex mutex_;
  News fresh_;              // guarded by the mutex
  bool is_listed_ = false;  // guarded by the mutex: the lane knows of the news
  bool is_closed_ = false;  // guarded by the mutex; written on the I/O thread
};

}  // namespace luna::http
