// The conversation of handshake.hpp on a fresh stream.
#pragma once

#include "frame.hpp"
#include "handshake.hpp"
#include "stream.hpp"

#include <memory>
#include <optional>

namespace luna::tcp {

/// Who greets. The token and the address outlive the conversation.
struct Greeter {
  const Token& token;
  const Address& self;
};

/// How a dialer was answered.
struct Answer {
  std::optional<Refusal> refusal;
  std::uint64_t received = 0;  ///< last sequence that the acceptor took
};

/// A dialer who has proved to know the token.
struct Caller {
  std::uint64_t epoch = 0;
  Hello hello;
  Transcript transcript() const { return {epoch, hello_bytes, challenge_bytes, 0}; }
  std::vector<std::byte> hello_bytes;
  std::vector<std::byte> challenge_bytes;
};

/// What a dialer says.
struct Greeting {
  std::uint64_t target = 0;
  std::uint64_t epoch = 0;
  std::uint64_t received = 0;
  bool is_resuming = false;
};

/// Greets the acceptor; checks its proof. [io]
/// Errors   unsupported: it speaks another version; corrupt; unavailable: the stream ended;
///          invalid_argument: it does not know the token
asio::awaitable<Result<Answer>> greet(std::shared_ptr<Stream> stream,
                                      Greeter greeter,
                                      Greeting greeting);

/// Listens to a dialer until it has proved itself; refuses it otherwise. [io]
/// Errors   as above
asio::awaitable<Result<Caller>> listen_to_caller(std::shared_ptr<Stream> stream, Greeter greeter);

/// The last word to a caller. False: the stream ended. [io]
asio::awaitable<bool> accept_caller(std::shared_ptr<Stream> stream,
                                    Greeter greeter,
                                    Transcript transcript,
                                    std::uint64_t received);
asio::awaitable<void> refuse_caller(std::shared_ptr<Stream> stream,
                                    std::uint64_t epoch,
                                    Refusal refusal);

}  // namespace luna::tcp
