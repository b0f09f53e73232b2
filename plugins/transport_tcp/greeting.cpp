#include "greeting.hpp"

#include <string>
#include <utility>

namespace luna::tcp {
namespace {

struct Frame {
  Header header;
  std::vector<std::byte> payload;
};

asio::awaitable<bool> send_frame(std::shared_ptr<Stream> stream,
                                 Header header,
                                 std::vector<std::byte> payload) {
  header.n_bytes = payload.size();
  const HeaderBytes head = encode_header(header);
  std::vector<std::byte> bytes(head.begin(), head.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  const bool is_sent = co_await stream->write_all(bytes);
  co_return is_sent;
}

Error ended(const Stream& stream) {
  // Certificates do not come to fit by trying again; everything else may.
  const bool is_tls = stream.reason().starts_with("TLS: ");
  return {is_tls ? Code::invalid_argument : Code::unavailable,
          "the connection to " + stream.remote() + " ended in the handshake: " + stream.reason()};
}

/// The next frame, of the wanted type or a refusal.
asio::awaitable<Result<Frame>> receive_frame(std::shared_ptr<Stream> stream, FrameType wanted) {
  HeaderBytes bytes{};
  const bool has_head = co_await stream->read_all(bytes);
  if (!has_head) co_return ended(*stream);
  auto header = parse_header(bytes, 0);
  if (!header) co_return std::move(header).error();
  if (header->type != wanted && header->type != FrameType::refuse) {
    co_return Error{Code::corrupt,
                    "a frame '" + std::string(name_of(header->type)) + "' where '" +
                        std::string(name_of(wanted)) + "' was due"};
  }
  Frame frame{*header, std::vector<std::byte>(header->n_bytes)};
  const bool has_payload = co_await stream->read_all(frame.payload);
  if (!has_payload) co_return ended(*stream);
  co_return std::move(frame);
}

std::vector<std::byte> to_bytes(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace

asio::awaitable<Result<Answer>> greet(std::shared_ptr<Stream> stream,
                                      Greeter greeter,
                                      Greeting greeting) {
  auto nonce = make_nonce();
  if (!nonce) co_return std::move(nonce).error();
  const std::uint64_t epoch = greeting.epoch;
  const Hello hello{greeting.target, greeting.received, greeting.is_resuming, *nonce, greeter.self};
  const std::vector<std::byte> hello_bytes = encode_hello(hello);
  Header header;
  header.epoch = epoch;
  header.type = FrameType::hello;
  bool is_sent = co_await send_frame(stream, header, hello_bytes);
  if (!is_sent) co_return ended(*stream);

  auto challenge = co_await receive_frame(stream, FrameType::challenge);
  if (!challenge) co_return std::move(challenge).error();
  if (challenge->header.type == FrameType::refuse)
    co_return Answer{static_cast<Refusal>(challenge->header.argument), 0};
  Transcript transcript{epoch, hello_bytes, challenge->payload, 0};
  const auto own_proof = prove(greeter.token, Side::dialer, transcript);
  if (!own_proof) co_return own_proof.error();
  header.type = FrameType::proof;
  is_sent = co_await send_frame(stream, header, to_bytes(*own_proof));
  if (!is_sent) co_return ended(*stream);

  auto answer = co_await receive_frame(stream, FrameType::accept);
  if (!answer) co_return std::move(answer).error();
  if (answer->header.type == FrameType::refuse)
    co_return Answer{static_cast<Refusal>(answer->header.argument), 0};
  transcript.accepted = answer->header.argument;
  const auto its_proof = prove(greeter.token, Side::acceptor, transcript);
  if (!its_proof) co_return its_proof.error();
  if (answer->header.epoch != epoch || !is_equal(*its_proof, answer->payload)) {
    co_return Error{Code::invalid_argument,
                    "the endpoint at " + stream->remote() + " does not know the token"};
  }
  co_return Answer{std::nullopt, answer->header.argument};
}

asio::awaitable<Result<Caller>> listen_to_caller(std::shared_ptr<Stream> stream, Greeter greeter) {
  auto first = co_await receive_frame(stream, FrameType::hello);
  if (!first) {
    if (first.error().code() == Code::unsupported)
      co_await refuse_caller(stream, 0, Refusal::version);
    co_return std::move(first).error();
  }
  if (first->header.type != FrameType::hello)
    co_return Error{Code::corrupt, "a refusal where a hello was due"};
  auto hello = parse_hello(first->payload);
  if (!hello) co_return std::move(hello).error();
  auto nonce = make_nonce();
  if (!nonce) co_return std::move(nonce).error();

  Caller caller;
  caller.epoch = first->header.epoch;
  caller.hello = std::move(*hello);
  caller.hello_bytes = std::move(first->payload);
  caller.challenge_bytes = to_bytes(*nonce);
  if (caller.hello.target != greeter.self.endpoint) {
    co_await refuse_caller(stream, caller.epoch, Refusal::endpoint);
    co_return Error{Code::not_found, "it wants an endpoint that is not here"};
  }
  Header header;
  header.epoch = caller.epoch;
  header.type = FrameType::challenge;
  const bool is_sent = co_await send_frame(stream, header, caller.challenge_bytes);
  if (!is_sent) co_return ended(*stream);
  auto second = co_await receive_frame(stream, FrameType::proof);
  if (!second) co_return std::move(second).error();
  const auto proof = prove(greeter.token, Side::dialer, caller.transcript());
  if (!proof) co_return proof.error();
  if (second->header.type != FrameType::proof || second->header.epoch != caller.epoch ||
      !is_equal(*proof, second->payload)) {
    co_await refuse_caller(stream, caller.epoch, Refusal::token);
    co_return Error{Code::invalid_argument, "it does not know the token"};
  }
  co_return std::move(caller);
}

asio::awaitable<bool> accept_caller(std::shared_ptr<Stream> stream,
                                    Greeter greeter,
                                    Transcript transcript,
                                    std::uint64_t received) {
  transcript.accepted = received;
  const auto proof = prove(greeter.token, Side::acceptor, transcript);
  if (!proof) co_return false;
  Header header;
  header.type = FrameType::accept;
  header.epoch = transcript.epoch;
  header.argument = received;
  const bool is_sent = co_await send_frame(stream, header, to_bytes(*proof));
  co_return is_sent;
}

asio::awaitable<void> refuse_caller(std::shared_ptr<Stream> stream,
                                    std::uint64_t epoch,
                                    Refusal refusal) {
  Header header;
  header.type = FrameType::refuse;
  header.epoch = epoch;
  header.argument = static_cast<std::uint64_t>(refusal);
  std::vector<std::byte> nothing;
  co_await send_frame(stream, header, std::move(nothing));
}

}  // namespace luna::tcp
