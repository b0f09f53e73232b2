// How a worker and a controller that know the same token convince each other, without sending it.
//
//   worker      hello      who I am, nonce
//   controller  challenge  nonce
//   worker      proof      HMAC-SHA256(token, "worker", hello, challenge)
//   controller  accept     terms, HMAC-SHA256(token, "controller", hello, challenge, terms)
//
// Both sides are named in the proofs, so none can be sent back; both nonces are in them, so none
// can be used again. From the token and both nonces come the keys of the connection's two
// directions, too, with which every frame afterwards is sealed: who stands on the way can read
// them, but can neither change nor repeat one.
#pragma once

#include "core/cluster/frame.hpp"
#include "core/cluster/frame_seal.hpp"

#include <luna/result.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace luna::cluster {

/// What all processes of a cluster know. A value.
class Token {
 public:
  /// What read_token_file() says. [start-up]
  static Result<Token> read(const std::filesystem::path& path);
  /// No secret: for connections that do not leave the machine.
  static Token none() { return Token({}); }

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit Token(Bytes bytes) : bytes_(std::move(bytes)) {}
  Bytes bytes_;
};

/// What a controller tells a worker that it trusts.
struct Terms {
  std::string run;  ///< the cluster's name for this life of the controller, for transports
  std::chrono::milliseconds heartbeat{};
  std::chrono::milliseconds timeout{};  ///< silence after which the other side is lost
};

/// What the other side shall be sent; empty payload and type where nothing.
struct Reply {
  FrameType type = FrameType::refuse;
  Bytes payload;
};

/// The controller's side of one greeting. [io]
class GreetingAcceptor {
 public:
  GreetingAcceptor(const Token& token, Terms terms) : token_(token), terms_(std::move(terms)) {}
  /// Errors  corrupt: not the frame that comes now; unavailable: a wrong token
  Result<Reply> take(const Frame& frame);
  [[nodiscard]] bool is_over() const { return is_over_; }
  /// Of all frames once it is over; none: there is no token.
  /// Errors  internal: what OpenSSL cannot do
  [[nodiscard]] Result<std::optional<FrameSeals>> seals() const;

 private:
  Result<Reply> take_hello(const Frame& frame);
  Result<Reply> take_proof(const Frame& frame);

  const Token& token_;
  const Terms terms_;
  Bytes hello_;
  Bytes challenge_;
  bool is_over_ = false;
};

/// The worker's side. [io]
class GreetingDialer {
 public:
  GreetingDialer(const Token& token, std::string name) : token_(token), name_(std::move(name)) {}
  /// Errors  internal: the system has no random numbers
  Result<Reply> begin();
  /// Nothing to send once it is over.
  /// Errors  corrupt; unavailable: what the controller says against it, or its wrong token
  Result<std::optional<Reply>> take(const Frame& frame);
  /// Once accepted.
  [[nodiscard]] const std::optional<Terms>& terms() const { return terms_; }
  /// As GreetingAcceptor::seals(), from the other end.
  [[nodiscard]] Result<std::optional<FrameSeals>> seals() const;

 private:
  const Token& token_;
  const std::string name_;
  Bytes hello_;
  Bytes challenge_;
  std::optional<Terms> terms_;
};

/// Why a worker is not wanted, or not let go, for people; and back.
Bytes encode_refusal(std::string_view reason);
std::string parse_refusal(std::span<const std::byte> payload);

}  // namespace luna::cluster
