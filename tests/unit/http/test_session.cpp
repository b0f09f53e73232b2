// A real session over a pair of sockets; the test plays client and pipeline.
#include "core/http/session.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/json/parse.hpp>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

namespace luna::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using pipeline::FinishReason;

/// Keeps the sinks of what is asked; the test speaks to them.
class HeldPipeline final : public pipeline::Pipeline {
 public:
  [[nodiscard]] std::vector<std::string> model_names() const override { return {"main"}; }
  [[nodiscard]] std::uint32_t context_length(const std::string&) const override { return 4096; }
  [[nodiscard]] std::uint32_t vocab_size(const std::string&) const override { return 260; }
  [[nodiscard]] Result<std::vector<pipeline::TokenId>> tokenize(
      const pipeline::Request& request) const override {
    return std::vector<pipeline::TokenId>(request.prompt_text.size());
  }
  [[nodiscard]] std::string token_bytes(const std::string&, pipeline::TokenId) const override {
    return "t";
  }
  Result<std::unique_ptr<pipeline::RunningRequest>> start(
      pipeline::Request, std::shared_ptr<pipeline::OutputSink> sink) override {
    sinks.push_back(std::move(sink));
    return std::make_unique<pipeline::RunningRequest>();
  }

  void say(std::string_view text, std::uint32_t choice = 0) {
    pipeline::OutputEvent event{choice, std::string(text), {}, {}};
    sinks.back()->on_output({&event, 1}, std::nullopt);
  }
  void end(std::optional<Error> error = std::nullopt) {
    pipeline::OutputEvent event{0, {}, {}, FinishReason::stop};
    sinks.back()->on_output({&event, 1}, pipeline::OutputEnd{{3, 0, 2}, std::move(error)});
  }

  std::vector<std::shared_ptr<pipeline::OutputSink>> sinks;
};

asio::awaitable<void> serve(std::shared_ptr<Session> session) {
  co_await session->run();
}

/// One connection and the client's end of it.
class HttpSession : public ::testing::Test {
 protected:
  HttpSession() {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    client_ = ends[0];
    tcp::socket server(io_);
    server.assign(tcp::v4(), ends[1]);
    auto session = std::make_shared<Session>(std::move(server), service_, lane_);
    asio::co_spawn(io_, serve(std::move(session)), [](std::exception_ptr) {});
    health_.set(telemetry::State::ready);
  }
  ~HttpSession() override {
    hang_up();
    io_.run();
  }

  void hang_up() {
    if (client_ >= 0) close(std::exchange(client_, -1));
    io_.poll();
  }
  void ask(std::string_view head, const std::string& body = {}) {
    std::string request = std::string(head) + version_ + "\r\nhost: h\r\n";
    if (!body.empty()) request += "content-length: " + std::to_string(body.size()) + "\r\n";
    request += "\r\n" + body;
    ASSERT_EQ(send(client_, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    io_.poll();
  }
  /// What has come by now.
  std::string receive() {
    std::string all;
    std::array<char, 65536> bytes;
    for (;;) {
      io_.poll();
      const ssize_t n = recv(client_, bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (n <= 0) return all;
      all.append(bytes.data(), static_cast<std::size_t>(n));
    }
  }

  std::string version_ = " HTTP/1.1";
  asio::io_context io_;
  HeldPipeline pipeline_;
  telemetry::HttpStats stats_;
  telemetry::Health health_;
  telemetry::MetricsPage metrics_{"test", stats_};
  ModelService models_{pipeline_, metrics_};
  Service service_{
      stats_, health_, {}, {}, std::make_unique<Places>(stats_.n_requests, 256, 0), &models_};
  std::shared_ptr<OutputLane> lane_ = std::make_shared<OutputLane>(io_.get_executor());
  int client_ = -1;
};

constexpr std::string_view kChat = "POST /v1/chat/completions";
const std::string kStream =
    R"({"messages":[{"role":"user","content":"Hi"}],"stream":true,"max_tokens":9})";

/// The texts of all events, joined; the number of events with text.
std::pair<std::string, int> read_events(std::string_view bytes) {
  constexpr std::string_view kData = "data: {";
  std::pair<std::string, int> read;
  for (auto at = bytes.find(kData); at != std::string_view::npos; at = bytes.find(kData, at + 1)) {
    const auto json = bytes.substr(at + 6, bytes.find('\n', at) - at - 6);
    const auto event = boost::json::parse(json);
    const auto& choices = event.at("choices").as_array();
    if (choices.empty() || !choices[0].as_object().contains("delta")) continue;
    const auto* content = choices[0].at("delta").as_object().if_contains("content");
    if (content == nullptr || content->as_string().empty()) continue;
    read.first += content->as_string();
    ++read.second;
  }
  return read;
}

int count(std::string_view bytes, std::string_view what) {
  int n = 0;
  for (auto at = bytes.find(what); at != std::string_view::npos; at = bytes.find(what, at + 1))
    ++n;
  return n;
}

TEST_F(HttpSession, EachTokenLeavesAsSoonAsItComes) {
  ask(kChat, kStream);
  pipeline_.say("one");
  const std::string first = receive();
  EXPECT_TRUE(first.starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_NE(first.find("text/event-stream"), std::string::npos);
  EXPECT_EQ(read_events(first), std::pair(std::string("one"), 1));
  pipeline_.say(" two");
  EXPECT_EQ(read_events(receive()), std::pair(std::string(" two"), 1));
  pipeline_.end();
  const std::string last = receive();
  EXPECT_TRUE(last.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"));
  EXPECT_EQ(count(last, "\r\n"), 4) << "the end came in more than one chunk";
}

TEST_F(HttpSession, WhatComesBeforeTheLastWasTakenIsOneEvent) {
  ask(kChat, kStream);
  pipeline_.say("a");
  receive();
  for (const char* text : {"b", "c", "d"})
    pipeline_.say(text);
  const std::string bytes = receive();
  EXPECT_EQ(read_events(bytes), std::pair(std::string("bcd"), 1));
}

TEST_F(HttpSession, AConnectionServesTheNextRequestAfterAStream) {
  for (int i = 0; i < 3; ++i) {
    ask(kChat, kStream);
    pipeline_.say("x");
    pipeline_.end();
    EXPECT_EQ(read_events(receive()).first, "x");
  }
  EXPECT_EQ(pipeline_.sinks.size(), 3U);
}

TEST_F(HttpSession, ASlowReaderGetsEveryByteInOrder) {
  ask(kChat, kStream);
  std::string all;
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = std::to_string(i) + " " + std::string(100, 'x');
    pipeline_.say(text);
    all += text;
    io_.poll();
  }
  pipeline_.end();
  const std::string bytes = receive();
  const auto [text, n_events] = read_events(bytes);
  EXPECT_EQ(text, all);
  EXPECT_LT(n_events, 10'000) << "what waited was not joined";
  EXPECT_TRUE(bytes.ends_with("0\r\n\r\n"));
}

TEST_F(HttpSession, AFailureBeforeTheFirstTokenIsAStatus) {
  ask(kChat, kStream);
  pipeline::OutputEnd end{{}, Error{Code::exhausted, "no room"}};
  pipeline_.sinks.back()->on_output({}, end);
  EXPECT_TRUE(receive().starts_with("HTTP/1.1 429 "));
}

TEST_F(HttpSession, AFailureAfterTheFirstTokenIsAnEventAndTheEnd) {
  ask(kChat, kStream);
  pipeline_.say("a");
  receive();
  pipeline_.end(Error{Code::internal, "broke"});
  const std::string bytes = receive();
  EXPECT_NE(bytes.find(R"(data: {"error":{"message":"broke")"), std::string::npos);
  EXPECT_EQ(bytes.find("[DONE]"), std::string::npos);
  char none = 0;
  EXPECT_EQ(recv(client_, &none, 1, MSG_DONTWAIT), 0) << "the connection stayed open";
}

TEST_F(HttpSession, AClientThatLeavesEndsItsRequest) {
  ask(kChat, kStream);
  pipeline_.say("a");
  receive();
  EXPECT_EQ(stats_.n_requests, 1U);
  hang_up();
  EXPECT_EQ(stats_.n_requests, 0U);
  pipeline_.say("nobody hears this");
  pipeline_.end();
}

TEST_F(HttpSession, StreamsOfHttp10HaveNoChunks) {
  version_ = " HTTP/1.0";
  ask(kChat, kStream);
  pipeline_.say("a");
  pipeline_.end();
  const std::string bytes = receive();
  EXPECT_EQ(bytes.find("chunked"), std::string::npos);
  EXPECT_EQ(read_events(bytes).first, "a");
  EXPECT_TRUE(bytes.ends_with("data: [DONE]\n\n"));
}

TEST_F(HttpSession, ChoicesHaveTheirOwnNews) {
  ask(kChat, R"({"messages":[{"role":"user","content":"Hi"}],"stream":true,"n":2,"max_tokens":9})");
  pipeline_.say("b", 1);
  pipeline_.say("a", 0);
  pipeline_.say("c", 1);
  const std::string bytes = receive();
  EXPECT_NE(bytes.find(R"("index":1,"delta":{"content":"bc"})"), std::string::npos);
  EXPECT_NE(bytes.find(R"("index":0,"delta":{"content":"a"})"), std::string::npos);
  EXPECT_EQ(count(bytes, R"("role":"assistant")"), 2);
  pipeline_.end();
}

TEST_F(HttpSession, EchoedPromptsStreamWhereAStreamIsAsked) {
  ask("POST /v1/completions",
      R"({"prompt":["ab","c"],"echo":true,"max_tokens":0,"stream":true,)"
      R"("stream_options":{"include_usage":true}})");
  const std::string bytes = receive();
  EXPECT_NE(bytes.find("text/event-stream"), std::string::npos);
  EXPECT_NE(bytes.find(R"("index":0,"text":"ab")"), std::string::npos);
  EXPECT_NE(bytes.find(R"("index":1,"text":"c")"), std::string::npos);
  EXPECT_EQ(count(bytes, R"("finish_reason":"length")"), 2);
  EXPECT_NE(bytes.find(R"("prompt_tokens":3)"), std::string::npos);
  EXPECT_TRUE(bytes.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"));
}

TEST_F(HttpSession, WholeAnswersGatherAllNews) {
  ask(kChat, R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":9})");
  pipeline_.say("one");
  receive();
  pipeline_.say(" two");
  pipeline_.end();
  const std::string bytes = receive();
  EXPECT_NE(bytes.find(R"("content":"one two")"), std::string::npos);
  EXPECT_NE(bytes.find(R"("completion_tokens":2)"), std::string::npos);
}

TEST_F(HttpSession, WhileModelsAreLoadedOnlyProbesAreAnswered) {
  service_.models.store(nullptr);
  health_.set(telemetry::State::loading);
  ask("GET /health/live");
  EXPECT_TRUE(receive().starts_with("HTTP/1.1 200 "));
  ask("GET /health/ready");
  const std::string ready = receive();
  EXPECT_TRUE(ready.starts_with("HTTP/1.1 503 "));
  EXPECT_NE(ready.find(R"({"status":"loading"})"), std::string::npos);
  for (const char* path : {"GET /v1/models", "GET /v1/models/main", "GET /metrics"}) {
    ask(path);
    const std::string refusal = receive();
    EXPECT_TRUE(refusal.starts_with("HTTP/1.1 503 ")) << path;
    EXPECT_NE(refusal.find("retry-after: 1"), std::string::npos) << refusal;
  }
  ask(kChat, kStream);
  EXPECT_TRUE(receive().starts_with("HTTP/1.1 503 "));
  service_.models.store(&models_);
  ask(kChat, kStream);
  pipeline_.end();
  EXPECT_TRUE(receive().starts_with("HTTP/1.1 200 "));
}

}  // namespace
}  // namespace luna::http
