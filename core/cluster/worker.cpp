#include "core/cluster/worker.hpp"

#include "core/base/log.hpp"
#include "core/base/process_memory.hpp"
#include "core/cluster/worker_session.hpp"

#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <utility>

namespace luna::cluster {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::chrono::milliseconds kPauseMin{200};
constexpr std::chrono::milliseconds kPauseMax{5000};
constexpr std::chrono::seconds kConnectLimit{5};
constexpr std::chrono::milliseconds kLook{50};

}  // namespace

struct Worker::Impl {
  Impl(WorkerOptions o, WorkerParts p, Token t)
      : options(std::move(o)), parts(std::move(p)), token(std::move(t)) {}

  Result<std::shared_ptr<Link>> connect();
  Result<std::optional<Farewell>> serve_once(const std::function<bool()>& keep_going);

  const WorkerOptions options;
  const WorkerParts parts;
  const Token token;
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::thread thread;
};

/// The connection, within kConnectLimit.
Result<std::shared_ptr<Link>> Worker::Impl::connect() {
  const std::string where = options.host + ":" + std::to_string(options.port);
  // Library calls that throw: this is their fence.
  try {
    tcp::resolver resolver(context);
    auto resolved =
        resolver.async_resolve(options.host, std::to_string(options.port), asio::use_future);
    if (resolved.wait_for(kConnectLimit) != std::future_status::ready) {
      resolver.cancel();
      return Error{Code::timeout, where + ": its name was not resolved in time"};
    }
    const auto endpoints = resolved.get();
    auto socket = std::make_shared<tcp::socket>(context);
    // The error as a value: refusals are usual, as workers may be started first.
    auto ended = std::make_shared<std::promise<boost::system::error_code>>();
    auto connected = ended->get_future();
    asio::async_connect(*socket,
                        endpoints,
                        [ended, socket](const boost::system::error_code& error,
                                        const tcp::endpoint&) { ended->set_value(error); });
    if (connected.wait_for(kConnectLimit) != std::future_status::ready) {
      asio::post(context, [socket] {
        boost::system::error_code ignored;
        socket->close(ignored);
      });
      return Error{Code::timeout, where + ": nobody answers"};
    }
    if (const auto error = connected.get())
      return Error{Code::unavailable, where + ": " + error.message()};
    return std::make_shared<Link>(std::move(*socket));
  } catch (const boost::system::system_error& e) {
    return Error{Code::unavailable, where + ": " + e.code().message()};
  }
}

/// One connection from beginning to end.
/// Errors  why it did not join
Result<std::optional<Farewell>> Worker::Impl::serve_once(const std::function<bool()>& keep_going) {
  LUNA_TRY(const auto link, connect());
  const auto session = std::make_shared<WorkerSession>(options, parts, token, link);
  asio::post(context, [link, session] {
    if (const auto begun = session->begin(); !begun) link->close(begun.error());
    link->start(session);
  });
  const Error ended = session->serve(keep_going);
  link->close(ended);
  if (!session->has_joined()) return ended;
  if (ended.code() != Code::cancelled)
    logger("cluster")->warn("controller lost reason=\"{}\"", ended.message());
  return session->farewell();
}

Worker::Worker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Worker::~Worker() {
  // What was posted before, the end of the last connection among it, runs first.
  asio::post(impl_->context, [impl = impl_.get()] { impl->work.reset(); });
  if (impl_->thread.joinable()) impl_->thread.join();
}

Result<std::unique_ptr<Worker>> Worker::create(WorkerOptions options, WorkerParts parts) {
  Token token = Token::none();
  if (options.token_file) {
    LUNA_TRY(token, Token::read(*options.token_file));
  }
  options.resident_before = resident_bytes();
  auto impl = std::make_unique<Impl>(std::move(options), std::move(parts), std::move(token));
  impl->thread = std::thread([&context = impl->context] { context.run(); });
  return std::unique_ptr<Worker>(new Worker(std::move(impl)));
}

std::optional<Farewell> Worker::run(const std::function<bool()>& keep_going) {
  auto pause = kPauseMin;
  std::string last_reason;
  while (keep_going()) {
    const auto served = impl_->serve_once(keep_going);
    if (served) {
      if (*served) return *served;
      pause = kPauseMin;
      last_reason.clear();
      continue;
    }
    // Once for each new reason: it may go on for hours.
    if (served.error().message() != last_reason && keep_going()) {
      last_reason = served.error().message();
      logger("cluster")->warn("not joined, trying again reason=\"{}\"", last_reason);
    }
    const auto end = std::chrono::steady_clock::now() + pause;
    while (keep_going() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(kLook);
    pause = std::min(2 * pause, kPauseMax);
  }
  return std::nullopt;
}

}  // namespace luna::cluster
