// How two endpoints that know the same token convince each other, without sending it: what the
// messages hold, and the proofs. Pure; the conversation itself is greeting.hpp.
//
//   dialer    hello      who I am, whom I want, what I have taken, nonce
//   acceptor  challenge  nonce
//   dialer    proof      HMAC-SHA256(token, "dialer", hello, challenge)
//   acceptor  accept     HMAC-SHA256(token, "acceptor", hello, challenge, what it has taken)
//
// Both sides are named in the proofs, so none can be sent back; both nonces are in them, so none
// can be used again. Without TLS this says who connects, not that nobody between changes bytes.
#pragma once

#include "address.hpp"

#include <luna/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace luna::tcp {

/// Which end of a connection.
enum class Side { dialer, acceptor };

inline constexpr std::size_t kNonceBytes = 32;
using Nonce = std::array<std::byte, kNonceBytes>;
using Proof = std::array<std::byte, 32>;

/// What all endpoints of a cluster know. A value.
class Token {
 public:
  /// What read_token_file() says. [start-up]
  static Result<Token> read(const std::filesystem::path& path);
  /// One that nobody outside of this process knows, the same for all its endpoints.
  static Result<Token> of_process();
  /// None: for connections that TLS has authenticated.
  static Token none() { return Token({}); }

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit Token(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  std::vector<std::byte> bytes_;
};

struct Hello {
  std::uint64_t target = 0;  ///< endpoint that is dialed
  std::uint64_t received = 0;
  bool is_resuming = false;  ///< the epoch is not new: whoever does not know it has given it up
  Nonce nonce{};
  Address from;
};

std::vector<std::byte> encode_hello(const Hello& hello);
/// Errors   corrupt
Result<Hello> parse_hello(std::span<const std::byte> bytes);

/// What both sides have seen; the proofs cover all of it.
struct Transcript {
  std::uint64_t epoch = 0;
  std::span<const std::byte> hello;
  std::span<const std::byte> challenge;
  std::uint64_t accepted = 0;  ///< the acceptor's last taken sequence; 0 in the dialer's proof
};

Result<Proof> prove(const Token& token, Side side, const Transcript& transcript);
/// Takes the same time wherever they differ.
bool is_equal(const Proof& proof, std::span<const std::byte> given);

/// Errors   internal: the library has no random numbers
Result<Nonce> make_nonce();
Result<std::uint64_t> random_number();

}  // namespace luna::tcp
