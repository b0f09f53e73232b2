#include "core/cluster/greeting.hpp"

#include <luna/token_file.hpp>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <string_view>
#include <type_traits>
#include <utility>

namespace luna::cluster {
namespace {

constexpr std::size_t kNonceBytes = 32;
constexpr std::size_t kProofBytes = 32;
constexpr std::size_t kNameBytesMax = 128;
constexpr std::size_t kRunBytesMax = 128;
constexpr std::size_t kReasonBytesMax = 2048;
constexpr std::uint32_t kTermMsMax = 3'600'000;

using Nonce = std::array<std::byte, kNonceBytes>;
using Proof = std::array<std::byte, kProofBytes>;

Result<Nonce> make_nonce() {
  Nonce nonce{};
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), kNonceBytes) != 1)
    return Error{Code::internal, "OpenSSL has no random numbers"};
  return nonce;
}

/// Over everything that was said; each part with its length, so that none can pass for another.
Result<Proof> prove(const Token& token,
                    std::string_view side,
                    std::initializer_list<std::span<const std::byte>> said) {
  Bytes text;
  WireWriter writer(text);
  writer.text("luna cluster");
  writer.number(kProtocolVersion);
  writer.text(side);
  for (const auto part : said) {
    writer.number(static_cast<std::uint64_t>(part.size()));
    writer.raw(part);
  }
  Proof proof{};
  unsigned int n_bytes = 0;
  // An empty key is a key too, but not a null pointer.
  static constexpr std::byte kNone{};
  const auto key = token.bytes();
  const void* const key_begin = key.empty() ? &kNone : key.data();
  if (HMAC(EVP_sha256(),
           key_begin,
           static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()),
           text.size(),
           reinterpret_cast<unsigned char*>(proof.data()),
           &n_bytes) == nullptr ||
      n_bytes != proof.size()) {
    return Error{Code::internal, "OpenSSL made no HMAC"};
  }
  return proof;
}

/// What one side seals its frames with.
Result<FrameSeal> seal_of(const Token& token,
                          std::string_view side,
                          std::span<const std::byte> hello,
                          std::span<const std::byte> challenge) {
  LUNA_TRY(const Proof key, prove(token, std::string(side) + "'s frames", {hello, challenge}));
  static_assert(std::is_same_v<Proof, FrameSeal::Key>);
  return FrameSeal::create(key);
}

/// Takes the same time wherever they differ.
bool is_equal(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Error unexpected(const Frame& frame) {
  return {Code::corrupt, "a frame '" + std::string(name_of(frame.type)) + "' out of turn"};
}

Bytes encode_terms(const Terms& terms) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.text(terms.run);
  writer.number(static_cast<std::uint32_t>(terms.heartbeat.count()));
  writer.number(static_cast<std::uint32_t>(terms.timeout.count()));
  return bytes;
}

Terms parse_terms(WireReader& reader) {
  Terms terms;
  terms.run = reader.text(kRunBytesMax);
  const auto heartbeat_ms = reader.number<std::uint32_t>();
  const auto timeout_ms = reader.number<std::uint32_t>();
  if (heartbeat_ms == 0 || heartbeat_ms > kTermMsMax || timeout_ms > kTermMsMax)
    reader.fail("heartbeats every " + std::to_string(heartbeat_ms) + " ms");
  terms.heartbeat = std::chrono::milliseconds(heartbeat_ms);
  terms.timeout = std::chrono::milliseconds(timeout_ms);
  return terms;
}

Bytes copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace

Result<Token> Token::read(const std::filesystem::path& path) {
  LUNA_TRY(Bytes token, read_token_file(path));
  return Token(std::move(token));
}

Result<Reply> GreetingAcceptor::take(const Frame& frame) {
  if (frame.type == FrameType::hello && hello_.empty()) return take_hello(frame);
  if (frame.type == FrameType::proof && !hello_.empty() && !is_over_) return take_proof(frame);
  return unexpected(frame);
}

Result<Reply> GreetingAcceptor::take_hello(const Frame& frame) {
  WireReader reader(frame.payload);
  reader.text(kNameBytesMax);
  Nonce nonce{};
  reader.raw(std::span(nonce));
  if (const auto whole = reader.finish(); !whole) return whole.error().in("hello");
  LUNA_TRY(const Nonce own, make_nonce());
  hello_ = copy_of(frame.payload);
  challenge_.assign(own.begin(), own.end());
  return Reply{FrameType::challenge, challenge_};
}

Result<Reply> GreetingAcceptor::take_proof(const Frame& frame) {
  WireReader reader(frame.payload);
  Proof given{};
  reader.raw(std::span(given));
  if (const auto whole = reader.finish(); !whole) return whole.error().in("proof");
  LUNA_TRY(const Proof expected, prove(token_, "worker", {hello_, challenge_}));
  if (!is_equal(expected, given)) return Error{Code::unavailable, "the token is another one"};
  is_over_ = true;
  const Bytes terms = encode_terms(terms_);
  LUNA_TRY(const Proof own, prove(token_, "controller", {hello_, challenge_, terms}));
  Reply reply{FrameType::accept, {}};
  WireWriter writer(reply.payload);
  writer.raw(own);
  writer.raw(terms);
  return reply;
}

Result<std::optional<FrameSeals>> GreetingAcceptor::seals() const {
  if (token_.bytes().empty()) return std::optional<FrameSeals>();
  LUNA_TRY(FrameSeal outgoing, seal_of(token_, "controller", hello_, challenge_));
  LUNA_TRY(FrameSeal incoming, seal_of(token_, "worker", hello_, challenge_));
  return std::optional(FrameSeals{std::move(outgoing), std::move(incoming)});
}

Result<std::optional<FrameSeals>> GreetingDialer::seals() const {
  if (token_.bytes().empty()) return std::optional<FrameSeals>();
  LUNA_TRY(FrameSeal outgoing, seal_of(token_, "worker", hello_, challenge_));
  LUNA_TRY(FrameSeal incoming, seal_of(token_, "controller", hello_, challenge_));
  return std::optional(FrameSeals{std::move(outgoing), std::move(incoming)});
}

Result<Reply> GreetingDialer::begin() {
  LUNA_TRY(const Nonce nonce, make_nonce());
  WireWriter writer(hello_);
  writer.text(name_);
  writer.raw(nonce);
  return Reply{FrameType::hello, hello_};
}

Result<std::optional<Reply>> GreetingDialer::take(const Frame& frame) {
  if (frame.type == FrameType::refuse)
    return Error{Code::unavailable, "refused: " + parse_refusal(frame.payload)};
  if (frame.type == FrameType::challenge && challenge_.empty()) {
    if (frame.payload.size() != kNonceBytes) return Error{Code::corrupt, "a challenge cut off"};
    challenge_ = copy_of(frame.payload);
    LUNA_TRY(const Proof proof, prove(token_, "worker", {hello_, challenge_}));
    return std::optional(Reply{FrameType::proof, copy_of(proof)});
  }
  if (frame.type != FrameType::accept || challenge_.empty() || terms_) return unexpected(frame);
  WireReader reader(frame.payload);
  Proof given{};
  reader.raw(std::span(given));
  Terms terms = parse_terms(reader);
  if (const auto whole = reader.finish(); !whole) return whole.error().in("accept");
  LUNA_TRY(const Proof expected,
           prove(token_, "controller", {hello_, challenge_, frame.payload.subspan(kProofBytes)}));
  if (!is_equal(expected, given)) {
    return Error{Code::unavailable, "the controller does not know the token"};
  }
  terms_ = std::move(terms);
  return std::optional<Reply>();
}

Bytes encode_refusal(std::string_view reason) {
  Bytes bytes;
  WireWriter(bytes).text(reason.substr(0, kReasonBytesMax));
  return bytes;
}

std::string parse_refusal(std::span<const std::byte> payload) {
  WireReader reader(payload);
  std::string reason = reader.text(kReasonBytesMax);
  if (!reader.finish()) return "for a reason that cannot be read";
  // It comes from outside and goes into a log line.
  for (char& c : reason)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  return reason;
}

}  // namespace luna::cluster
