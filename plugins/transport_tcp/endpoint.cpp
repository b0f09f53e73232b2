#include "endpoint.hpp"

#include <boost/asio/co_spawn.hpp>

#include <algorithm>
#include <csignal>
#include <string>
#include <utility>

namespace luna::tcp {
namespace {

Result<Token> token_of(const Options& options) {
  if (!options.token_file.empty()) return Token::read(options.token_file);
  if (options.has_tls()) return Token::none();
  return Token::of_process();
}

/// OpenSSL writes with a call that raises SIGPIPE when the other side is gone; blocked, it is an
/// error like any other. For the calling thread only.
void block_sigpipe() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

}  // namespace

Result<std::unique_ptr<Endpoint>> Endpoint::open(Options options, Host host) {
  LUNA_TRY(Token token, token_of(options));
  // Not make_unique: the constructor is private, since it leaves half an endpoint.
  std::unique_ptr<Endpoint> endpoint(new Endpoint(std::move(options), std::move(token), host));
  LUNA_TRY(endpoint->self_.endpoint, random_number());
  endpoint->next_number_.store(endpoint->self_.endpoint | 1U);
  if (endpoint->options_.has_tls()) {
    LUNA_TRY(endpoint->ssl_, make_ssl_context(endpoint->options_.tls));
    endpoint->site_.ssl = endpoint->ssl_.get();
  }
  LUNA_TRY(endpoint->listen());
  endpoint->start();
  return endpoint;
}

Endpoint::Endpoint(Options options, Token token, Host host)
    : options_(std::move(options)),
      token_(std::move(token)),
      host_(host),
      groups_(host),
      services_{context_, groups_, completions_, options_, host_, [this] { closing_.set(); }},
      site_{context_, options_, token_, nullptr, self_, host_},
      dialer_(site_),
      registry_(services_, self_, [this](std::shared_ptr<Peer> peer) {
        asio::co_spawn(
            context_, dialer_.keep_connected(std::move(peer)), log_thrown(host_, "a dialer"));
      }) {}

Result<void> Endpoint::listen() {
  LUNA_TRY(listener_, Listener::open(context_, options_));
  LUNA_TRY(inlet_, Inlet::open(context_));
  local_ = {self_.endpoint, listener_->port(), options_.host};
  self_.host = options_.advertised_host;
  self_.port = options_.advertised_port != 0 ? options_.advertised_port : listener_->port();
  return {};
}

void Endpoint::start() {
  asio::co_spawn(context_, listener_->run(site_, registry_), log_thrown(host_, "the listener"));
  asio::co_spawn(context_, inlet_->run(), log_thrown(host_, "the inlet"));
  asio::co_spawn(context_, beat(), log_thrown(host_, "the heartbeat"));
  thread_ = std::thread([this] {
    block_sigpipe();
    context_.run();
  });
}

asio::awaitable<void> Endpoint::beat() {
  auto last = std::chrono::steady_clock::now();
  while (!is_closing_) {
    co_await heart_.wait_for(options_.heartbeat_interval);
    const auto now = std::chrono::steady_clock::now();
    registry_.tick(std::chrono::duration_cast<std::chrono::milliseconds>(now - last));
    last = now;
  }
}

asio::awaitable<void> Endpoint::say_goodbye() {
  inlet_->drain();
  const auto end = std::chrono::steady_clock::now() + kGoodbyeMax;
  const auto peers = registry_.peers();  // shared: leaving changes the registry
  for (const auto& peer : peers)
    peer->leave();
  const auto is_over = [](const auto& peer) { return peer->is_over(); };
  while (!std::all_of(peers.begin(), peers.end(), is_over)) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    if (left.count() <= 0) break;
    co_await closing_.wait_for(left);
  }
  for (const auto& peer : registry_.peers())
    peer->give_up("the endpoint closes");
  is_closing_ = true;
  heart_.set();
  listener_->stop();
  inlet_->stop();
  work_.reset();  // run() returns once every coroutine has ended
}

Endpoint::~Endpoint() {
  if (!thread_.joinable()) return;
  asio::co_spawn(context_, say_goodbye(), log_thrown(host_, "the good-bye"));
  thread_.join();
}

}  // namespace luna::tcp
