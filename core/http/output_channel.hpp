// From the pipeline thread to a connection's coroutine: events are posted, the coroutine is woken.
#pragma once

#include "core/pipeline/pipeline.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/tcp_stream.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace luna::http {

/// One request body's output, all its prompts together. Members are used on the connection's I/O
/// thread; sink() objects may be called from the pipeline thread.
class OutputChannel : public std::enable_shared_from_this<OutputChannel> {
 public:
  OutputChannel(boost::asio::any_io_executor executor, std::uint32_t n_prompts);

  /// A sink for one prompt; its choices are numbered from `first_choice`.
  std::shared_ptr<pipeline::OutputSink> sink(std::uint32_t first_choice);

  /// Watches the socket for the client's end while the coroutine waits for output.
  void watch(const std::shared_ptr<boost::beast::tcp_stream>& stream);

  /// Returns when there is output, the client has gone, or `timeout` has passed.
  boost::asio::awaitable<void> wait(std::chrono::steady_clock::duration timeout);

  /// Waits for the first output; empty when the end, the client's or `timeout` came before it.
  boost::asio::awaitable<std::vector<pipeline::OutputEvent>> first_events(
      std::chrono::steady_clock::duration timeout);

  [[nodiscard]] std::vector<pipeline::OutputEvent> take_events();
  [[nodiscard]] bool has_ended() const { return n_open_ == 0; }
  [[nodiscard]] bool is_client_gone() const { return client_gone_; }
  [[nodiscard]] const pipeline::Usage& usage() const { return usage_; }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  class PromptSink;
  void receive(std::uint32_t first_choice,
               std::vector<pipeline::OutputEvent> events,
               std::optional<pipeline::OutputEnd> end);
  void watch_later(const std::shared_ptr<boost::beast::tcp_stream>& stream);
  void wake();

  boost::asio::any_io_executor executor_;
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer probe_timer_;
  bool woken_ = false;
  bool client_gone_ = false;
  std::uint32_t n_open_;
  std::vector<pipeline::OutputEvent> events_;
  pipeline::Usage usage_;
  std::optional<Error> error_;
};

}  // namespace luna::http
