#include "handshake.hpp"

#include "bytes.hpp"
#include "frame.hpp"

#include <luna/token_file.hpp>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace luna::tcp {
namespace {

constexpr std::size_t kNonceOffset = 8 + 8 + 1;
constexpr std::size_t kHelloBytesMin = kNonceOffset + kNonceBytes + kAddressBytesMin;

unsigned char* raw(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}
const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

Result<Token> Token::read(const std::filesystem::path& path) {
  LUNA_TRY(auto token, read_token_file(path));
  return Token(std::move(token));
}

Result<Token> Token::of_process() {
  static const Result<Nonce> secret = make_nonce();
  if (!secret) return secret.error();
  return Token({secret->begin(), secret->end()});
}

std::vector<std::byte> encode_hello(const Hello& hello) {
  std::vector<std::byte> bytes;
  append(bytes, hello.target);
  append(bytes, hello.received);
  append(bytes, static_cast<std::uint8_t>(hello.is_resuming ? 1 : 0));
  append(bytes, std::span<const std::byte>(hello.nonce));
  append(bytes, std::span<const std::byte>(encode_address(hello.from)));
  return bytes;
}

Result<Hello> parse_hello(std::span<const std::byte> bytes) {
  if (bytes.size() < kHelloBytesMin) {
    return Error{Code::corrupt,
                 "a hello of " + std::to_string(bytes.size()) + " bytes: at least " +
                     std::to_string(kHelloBytesMin)};
  }
  Hello hello;
  hello.target = load<std::uint64_t>(bytes, 0);
  hello.received = load<std::uint64_t>(bytes, 8);
  const auto resuming = load<std::uint8_t>(bytes, 16);
  if (resuming > 1) return Error{Code::corrupt, "a hello that neither begins nor resumes"};
  hello.is_resuming = resuming == 1;
  const auto nonce = bytes.subspan(kNonceOffset, kNonceBytes);
  std::copy(nonce.begin(), nonce.end(), hello.nonce.begin());
  auto from = parse_address(bytes.subspan(kNonceOffset + kNonceBytes));
  if (!from) return Error{Code::corrupt, "a hello with " + from.error().message()};
  hello.from = std::move(*from);
  return hello;
}

Result<Proof> prove(const Token& token, Side side, const Transcript& transcript) {
  std::vector<std::byte> text;
  const std::string_view label =
      side == Side::dialer ? "luna tcp proof of dialer  " : "luna tcp proof of acceptor";
  append(text, std::as_bytes(std::span(label)));
  append(text, kProtocolVersion);
  append(text, transcript.epoch);
  append(text, transcript.accepted);
  append(text, static_cast<std::uint64_t>(transcript.hello.size()));
  append(text, transcript.hello);
  append(text, transcript.challenge);
  Proof proof{};
  unsigned int n_bytes = 0;
  // An empty key is a key too, but not a null pointer.
  static constexpr std::byte kNone{};
  const auto key = token.bytes();
  const void* const key_begin = key.empty() ? &kNone : key.data();
  if (HMAC(EVP_sha256(),
           key_begin,
           static_cast<int>(key.size()),
           raw(std::span<const std::byte>(text)),
           text.size(),
           raw(std::span<std::byte>(proof)),
           &n_bytes) == nullptr ||
      n_bytes != proof.size()) {
    return Error{Code::internal, "OpenSSL made no HMAC"};
  }
  return proof;
}

bool is_equal(const Proof& proof, std::span<const std::byte> given) {
  return given.size() == proof.size() &&
         CRYPTO_memcmp(proof.data(), given.data(), proof.size()) == 0;
}

Result<Nonce> make_nonce() {
  Nonce nonce{};
  if (RAND_bytes(raw(std::span<std::byte>(nonce)), static_cast<int>(nonce.size())) != 1)
    return Error{Code::internal, "OpenSSL has no random numbers"};
  return nonce;
}

Result<std::uint64_t> random_number() {
  LUNA_TRY(const Nonce nonce, make_nonce());
  const auto number = load<std::uint64_t>(std::span<const std::byte>(nonce), 0);
  return number == 0 ? std::uint64_t{1} : number;
}

}  // namespace luna::tcp
