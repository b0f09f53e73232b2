#include "core/http/server.hpp"

#include "core/base/log.hpp"
#include "core/http/error_response.hpp"
#include "core/http/session.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace luna::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

// Out of descriptors or memory: accepting again at once would only spin.
constexpr std::chrono::milliseconds kAcceptPause{50};

}  // namespace

/// Tells a client beyond the limit so, as far as its socket takes it at once.
template <typename Socket>
void turn_away(Socket& socket) {
  const std::string body =
      error_body({503, "overloaded_error", "overloaded", "", "too many connections", {}});
  const std::string answer =
      "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
      "content-type: application/json\r\ncontent-length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  boost::system::error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(answer), ignored);
  socket.shutdown(tcp::socket::shutdown_both, ignored);
}

/// One I/O thread: its own context; a connection stays on it.
struct IoThread {
  using Sessions = std::list<std::weak_ptr<Session>>;

  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  const std::shared_ptr<OutputLane> lane = std::make_shared<OutputLane>(context.get_executor());
  Sessions sessions;  // of this thread; touched on it alone
  std::thread thread;
};

struct Server::Impl {
  asio::awaitable<void> accept_loop();
  void adopt(IoThread& io, tcp::socket socket);
  asio::awaitable<void> serve(std::shared_ptr<Session> session,
                              IoThread& io,
                              IoThread::Sessions::iterator place);
  void for_each_session(void (Session::*action)());
  void session_ended();

  ServerOptions options;
  KeyRing keys;                        // until start()
  std::unique_ptr<Service> service;    // from start() on
  std::optional<ModelService> models;  // from serve() on
  std::vector<std::unique_ptr<IoThread>> threads;
  std::unique_ptr<tcp::acceptor> acceptor;
  std::size_t next_thread = 0;
  std::atomic<std::uint32_t> n_sessions{0};
  std::atomic<bool> draining{false};
  std::mutex mutex;  // guards nothing but the wait for the last session
  std::condition_variable all_ended;
};

void Server::Impl::session_ended() {
  const std::lock_guard lock(mutex);
  n_sessions.fetch_sub(1);
  all_ended.notify_all();
}

asio::awaitable<void> Server::Impl::serve(std::shared_ptr<Session> session,
                                          IoThread& io,
                                          IoThread::Sessions::iterator place) {
  // The fence of this coroutine: what a library throws ends one connection, not the server.
  try {
    co_await session->run();
  } catch (const std::exception& e) {
    logger("http")->error("connection ended by an exception what={}", e.what());
  }
  session.reset();
  io.sessions.erase(place);
  session_ended();
}

void Server::Impl::adopt(IoThread& io, tcp::socket socket) {
  auto session = std::make_shared<Session>(std::move(socket), *service, io.lane);
  const auto place = io.sessions.insert(io.sessions.end(), session);
  if (draining.load()) session->drain();  // accepted a moment before the drain began
  asio::co_spawn(
      io.context, serve(std::move(session), io, place), [](const std::exception_ptr&) {});
}

asio::awaitable<void> Server::Impl::accept_loop() {
  asio::steady_timer pause(acceptor->get_executor());
  for (;;) {
    IoThread& io = *threads[next_thread++ % threads.size()];
    auto [error, socket] = co_await acceptor->async_accept(io.context, kAwait);
    if (error == asio::error::operation_aborted || !acceptor->is_open()) co_return;
    if (error) {
      logger("http")->warn("accept failed reason=\"{}\"", error.message());
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(kAwait);
      continue;
    }
    if (n_sessions.load() >= options.n_connections_max) {
      turn_away(socket);
      continue;
    }
    n_sessions.fetch_add(1);
    asio::post(io.context,
               [this, &io, s = std::move(socket)]() mutable { adopt(io, std::move(s)); });
  }
}

void Server::Impl::for_each_session(void (Session::*action)()) {
  for (auto& io : threads) {
    asio::post(io->context, [&io = *io, action] {
      for (const auto& weak : io.sessions)
        if (const auto session = weak.lock()) ((*session).*action)();
    });
  }
}

Server::Server(std::unique_ptr<Impl> impl, std::uint16_t port)
    : impl_(std::move(impl)), port_(port) {}

Server::~Server() {
  for (auto& io : impl_->threads)
    io->context.stop();
  for (auto& io : impl_->threads)
    if (io->thread.joinable()) io->thread.join();
}

Result<std::unique_ptr<Server>> Server::open(ServerOptions options, KeyRing keys) {
  const std::string where = "server.host = \"" + options.host + "\": ";
  boost::system::error_code error;
  const auto address =
      asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
  if (error)
    return Error{Code::invalid_argument,
                 where + "must be an IP address, for example 127.0.0.1 or 0.0.0.0"};
  if (!address.is_loopback() && keys.empty())
    return Error{
        Code::invalid_argument,
        where + "without API keys only a loopback address is served; set server.api_keys_file"};
  auto impl = std::make_unique<Impl>();
  for (std::uint32_t i = 0; i < std::max(1U, options.n_io_threads); ++i)
    impl->threads.push_back(std::make_unique<IoThread>());
  impl->acceptor = std::make_unique<tcp::acceptor>(impl->threads.front()->context);
  tcp::acceptor& acceptor = *impl->acceptor;
  const tcp::endpoint endpoint(address, options.port);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error)
    return Error{Code::io,
                 "cannot listen on " + options.host + ":" + std::to_string(options.port) + ": " +
                     error.message()};
  impl->options = std::move(options);
  impl->keys = std::move(keys);
  const std::uint16_t port = acceptor.local_endpoint().port();
  return std::unique_ptr<Server>(new Server(std::move(impl), port));
}

void Server::start(telemetry::HttpStats& stats,
                   const telemetry::Health& health,
                   const ClusterPage& cluster) {
  const ServerOptions& options = impl_->options;
  auto places =
      std::make_unique<Places>(stats.n_requests, options.n_requests_max, impl_->keys.n_tenants());
  impl_->service.reset(
      new Service{stats, health, std::move(impl_->keys), options, std::move(places)});
  impl_->service->cluster = cluster;
  asio::co_spawn(
      impl_->threads.front()->context, impl_->accept_loop(), [](const std::exception_ptr&) {});
  for (auto& io : impl_->threads)
    io->thread = std::thread([&context = io->context] { context.run(); });
}

void Server::serve(const ModelService& models) {
  impl_->models.emplace(models);
  impl_->service->models.store(&*impl_->models, std::memory_order_release);
}

void Server::drain(std::chrono::milliseconds timeout) {
  impl_->draining.store(true);
  asio::post(impl_->threads.front()->context, [this] {
    boost::system::error_code ignored;
    impl_->acceptor->close(ignored);
  });
  impl_->for_each_session(&Session::drain);
  const auto is_empty = [this] { return impl_->n_sessions.load() == 0; };
  std::unique_lock lock(impl_->mutex);
  if (impl_->all_ended.wait_for(lock, timeout, is_empty)) return;
  logger("http")->warn("drain timed out connections={}", impl_->n_sessions.load());
  impl_->for_each_session(&Session::close);
  impl_->all_ended.wait_for(lock, std::chrono::seconds(2), is_empty);
}

}  // namespace luna::http
