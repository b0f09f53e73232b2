#include "listener.hpp"

#include <boost/asio/co_spawn.hpp>

#include <string>
#include <utility>

namespace luna::tcp {
namespace {

// Out of descriptors or memory: accepting again at once would only spin.
constexpr std::chrono::milliseconds kAcceptPause{50};
// A flood of strangers is one line a second in the log.
constexpr std::chrono::seconds kNotePause{1};

}  // namespace

Result<std::unique_ptr<Listener>> Listener::open(asio::io_context& context,
                                                 const Options& options) {
  boost::system::error_code error;
  const asio::ip::tcp::endpoint at(asio::ip::make_address(options.host, error), options.port);
  asio::ip::tcp::acceptor acceptor(context);
  if (!error) acceptor.open(at.protocol(), error);
  if (!error) acceptor.set_option(asio::ip::tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(at, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return Error{Code::io,
                 "cannot listen on " + options.host + ":" + std::to_string(options.port) + ": " +
                     error.message()};
  }
  return std::make_unique<Listener>(std::move(acceptor));
}

asio::awaitable<void> Listener::run(const Site& site, Registry& registry) {
  asio::steady_timer pause(site.context);
  for (;;) {
    auto [error, socket] = co_await acceptor_.async_accept(kAwait);
    if (!acceptor_.is_open()) co_return;
    if (error) {
      site.host.log(LUNA_LOG_WARN, "accept failed reason=\"" + error.message() + "\"");
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(kAwait);
      continue;
    }
    auto stream = std::make_shared<Stream>(std::move(socket));
    if (strangers_.size() >= kStrangersMax) {
      note(site, *stream, "too many connections that have not proved themselves");
      stream->close("too many");
      continue;
    }
    strangers_.insert(stream);
    asio::co_spawn(site.context,
                   welcome(site, registry, std::move(stream)),
                   log_thrown(site.host, "a handshake"));
  }
}

asio::awaitable<void> Listener::welcome(const Site& site,
                                        Registry& registry,
                                        std::shared_ptr<Stream> stream) {
  const Deadline deadline(site.context, stream, site.options.heartbeat_timeout);
  const auto prepared = stream->prepare(site.ssl, Side::acceptor, site.options.heartbeat_timeout);
  if (!prepared) {
    note(site, *stream, prepared.error().message());
    strangers_.erase(stream);
    co_return;
  }
  auto caller = co_await listen_to_caller(stream, site.greeter());
  strangers_.erase(stream);
  if (!caller) {
    // Who says nothing wrong but goes away may only have asked whether anybody listens.
    if (caller.error().code() != Code::unavailable) note(site, *stream, caller.error().message());
    stream->close("the handshake failed");
    co_return;
  }
  const auto admitted = registry.admit(*caller);
  if (const auto* const refusal = std::get_if<Refusal>(&admitted)) {
    co_await refuse_caller(stream, caller->epoch, *refusal);
    stream->close("refused");
    co_return;
  }
  const std::shared_ptr<Peer> peer = std::get<std::shared_ptr<Peer>>(admitted);
  const Transcript transcript = caller->transcript();
  const bool is_told = co_await accept_caller(stream, site.greeter(), transcript, peer->received());
  if (!is_told || peer->is_over() || peer->epoch() != caller->epoch) {
    stream->close("the handshake came too late");
    co_return;
  }
  if (!peer->resume(stream, caller->hello.received)) {
    stream->close("it claims to have taken what was never sent");
    peer->give_up("it claims to have taken what was never sent");
  }
}

void Listener::note(const Site& site, const Stream& stream, std::string_view reason) {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_note_) {
    ++n_not_noted_;
    return;
  }
  next_note_ = now + kNotePause;
  site.host.log(LUNA_LOG_WARN,
                "connection refused peer=" + stream.remote() + " reason=\"" + std::string(reason) +
                    "\" n_others=" + std::to_string(std::exchange(n_not_noted_, 0)));
}

void Listener::stop() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  const auto strangers = strangers_;
  for (const auto& stream : strangers)
    stream->close("the endpoint closes");
}

}  // namespace luna::tcp
