// Any bytes on a connection: a real session over a pair of sockets answers or hangs up, and ends
// when its client has.
#include "core/base/assert.hpp"
#include "core/http/session.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

/// Takes no request: what is fuzzed is the way to it.
class ClosedPipeline final : public luna::pipeline::Pipeline {
 public:
  [[nodiscard]] std::vector<std::string> model_names() const override { return {"main"}; }
  [[nodiscard]] std::uint32_t context_length(const std::string&) const override { return 64; }
  [[nodiscard]] std::uint32_t vocab_size(const std::string&) const override { return 260; }
  [[nodiscard]] luna::Result<std::vector<luna::pipeline::TokenId>> tokenize(
      const luna::pipeline::Request&) const override {
    return std::vector<luna::pipeline::TokenId>{};
  }
  [[nodiscard]] std::string token_bytes(const std::string&,
                                        luna::pipeline::TokenId) const override {
    return "a";
  }
  luna::Result<std::unique_ptr<luna::pipeline::RunningRequest>> start(
      luna::pipeline::Request, std::shared_ptr<luna::pipeline::OutputSink>) override {
    return luna::Error{luna::Code::unavailable, "closed"};
  }
};

// Holds the session while it runs, as the server does.
boost::asio::awaitable<void> serve(std::shared_ptr<luna::http::Session> session) {
  co_await session->run();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static ClosedPipeline pipeline;
  static luna::telemetry::HttpStats stats;
  static const luna::telemetry::MetricsPage metrics("fuzz", stats);
  static luna::telemetry::Health health;
  static const luna::http::ModelService models{pipeline, metrics};
  static luna::http::Service service{stats,
                                     health,
                                     {},
                                     {},
                                     std::make_unique<luna::http::Places>(stats.n_requests, 256, 0),
                                     &models};
  asio::io_context io;
  // A pair, not a connection: no ports are used up, and the fuzzer's timer cannot interrupt it.
  std::array<int, 2> ends{};
  LUNA_VERIFY(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
  tcp::socket client(io);
  client.assign(tcp::v4(), ends[0]);
  tcp::socket server(io);
  server.assign(tcp::v4(), ends[1]);
  auto session = std::make_shared<luna::http::Session>(
      std::move(server), service, std::make_shared<luna::http::OutputLane>(io.get_executor()));
  asio::co_spawn(io, serve(std::move(session)), asio::detached);
  boost::system::error_code ignored;
  // Less than a socket's buffer, so that nobody has to read for the write to end.
  asio::write(client, asio::buffer(data, size), ignored);
  client.shutdown(tcp::socket::shutdown_send, ignored);
  io.run();
  LUNA_VERIFY(stats.n_connections == 0);
  return 0;
}
