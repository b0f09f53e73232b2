// One endpoint: its thread, its connections, its communicators.
#pragma once

#include "dialer.hpp"
#include "groups.hpp"
#include "inlet.hpp"
#include "listener.hpp"
#include "registry.hpp"
#include "site.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

#include <atomic>
#include <future>
#include <memory>
#include <thread>

namespace luna::tcp {

/// Everything but the queues between threads belongs to its I/O thread. A resource, the
/// transport's. [main] to make and destroy
class Endpoint {
 public:
  /// Listens, and runs its thread.
  /// Errors   invalid_argument, not_found: token or TLS files; io: the address
  static Result<std::unique_ptr<Endpoint>> open(Options options, Host host);
  /// Says good-bye to its peers, for at most kGoodbyeMax, and joins the thread.
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  [[nodiscard]] const Options& options() const { return options_; }
  /// How others reach it.
  [[nodiscard]] const Address& address() const { return self_; }
  /// How it reaches itself.
  [[nodiscard]] const Address& local_address() const { return local_; }
  [[nodiscard]] Completions& completions() { return completions_; }
  [[nodiscard]] Inlet& inlet() { return *inlet_; }
  [[nodiscard]] Registry& registry() { return registry_; }
  [[nodiscard]] Groups& groups() { return groups_; }
  /// A number for memory or for a rank's opening, unlike any other here and, in all likelihood,
  /// unlike those of other endpoints. [any]
  std::uint64_t next_number() { return next_number_.fetch_add(1, std::memory_order_relaxed); }

  /// Runs `body` on the I/O thread, later. [any]
  template <typename Body>
  void post(Body body) {
    asio::post(context_, std::move(body));
  }
  /// Runs `body` on the I/O thread and waits for it. Not from that thread. [any]
  template <typename Body>
  void call(const Body& body) {
    std::promise<void> done;
    asio::post(context_, [&] {
      body();
      done.set_value();
    });
    done.get_future().wait();
  }

 private:
  static constexpr std::chrono::milliseconds kGoodbyeMax{1000};

  Endpoint(Options options, Token token, Host host);
  Result<void> listen();
  void start();
  asio::awaitable<void> beat();
  asio::awaitable<void> say_goodbye();

  const Options options_;
  const Token token_;
  const Host host_;
  SslContext ssl_;
  Address self_;
  Address local_;
  asio::io_context context_{1};  // before all that waits in it
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  std::atomic<std::uint64_t> next_number_{1};
  Completions completions_;
  Groups groups_;
  Event closing_{context_};  // set when a peer is over, and when the heart shall stop
  Event heart_{context_};
  bool is_closing_ = false;
  PeerServices services_;
  Site site_;
  Dialer dialer_;
  Registry registry_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Inlet> inlet_;
  std::thread thread_;
};

}  // namespace luna::tcp
