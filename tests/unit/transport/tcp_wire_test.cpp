// What transport tcp puts on the wire: frames, handshakes, addresses, and what is sent again.
#include "plugins/transport_tcp/address.hpp"
#include "plugins/transport_tcp/frame.hpp"
#include "plugins/transport_tcp/handshake.hpp"
#include "plugins/transport_tcp/resend_queue.hpp"
#include "unit/transport/tcp_fixture.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace luna::tcp {
namespace {

constexpr std::uint64_t kMessageBytesMax = 1 << 20;

Header a_message() {
  Header header;
  header.type = FrameType::message;
  header.epoch = 0x1122334455667788;
  header.value = 3;
  header.sequence = 4;
  header.ack = 5;
  header.n_bytes = 6;
  header.argument = 7;
  header.lane = 8;
  header.tag = 9;
  header.flags = kFlagReduce;
  return header;
}

Result<Header> parse(const HeaderBytes& bytes) {
  return parse_header(bytes, kMessageBytesMax);
}

TEST(TcpFrame, ComesBackAsItWasWritten) {
  const HeaderBytes bytes = encode_header(a_message());
  const auto parsed = parse(bytes);
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(parsed->type, FrameType::message);
  EXPECT_EQ(parsed->argument, 7U);
  EXPECT_EQ(parsed->flags, kFlagReduce);
  EXPECT_EQ(encode_header(*parsed), bytes);
}

TEST(TcpFrame, AnyBitThatIsFlippedIsSeen) {
  const HeaderBytes good = encode_header(a_message());
  for (std::size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    HeaderBytes bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    const auto parsed = parse(bad);
    ASSERT_FALSE(parsed) << "bit " << bit;
    const bool is_version = bit >= 32 && bit < 48;
    EXPECT_EQ(parsed.error().code(), is_version ? Code::unsupported : Code::corrupt);
  }
}

TEST(TcpFrame, WhatItsTypeForbidsIsRefusedWithARightChecksumToo) {
  const auto code_of = [](const Header& header) {
    const auto parsed = parse(encode_header(header));
    return parsed ? 0 : static_cast<int>(parsed.error().code());
  };
  const int corrupt = static_cast<int>(Code::corrupt);
  Header header = a_message();
  header.n_bytes = kMessageBytesMax;
  EXPECT_EQ(code_of(header), 0);
  header.n_bytes = kMessageBytesMax + 1;
  EXPECT_EQ(code_of(header), corrupt);
  header = a_message();
  header.sequence = 0;  // a message is numbered
  EXPECT_EQ(code_of(header), corrupt);
  header = a_message();
  header.flags = 4;
  EXPECT_EQ(code_of(header), corrupt);
  header = a_message();
  header.type = static_cast<FrameType>(22);
  EXPECT_EQ(code_of(header), corrupt);
  Header hello;
  hello.type = FrameType::hello;
  hello.n_bytes = kHandshakeBytesMax;
  EXPECT_EQ(code_of(hello), 0);
  hello.n_bytes = kHandshakeBytesMax + 1;
  EXPECT_EQ(code_of(hello), corrupt);
  Header ping;
  ping.type = FrameType::ping;
  ping.n_bytes = 1;
  EXPECT_EQ(code_of(ping), corrupt);
}

TEST(TcpFrame, RandomBytesAreRefused) {
  constexpr std::uint32_t kSeed = 20261130;
  std::mt19937 random(kSeed);
  for (int i = 0; i < 10000; ++i) {
    HeaderBytes bytes;
    for (std::byte& byte : bytes)
      byte = static_cast<std::byte>(random());
    EXPECT_FALSE(parse(bytes)) << "seed " << kSeed << " round " << i;
  }
}

TEST(TcpAddress, ComesBackAndHostileOnesAreRefused) {
  const Address address{77, 4711, "node-1.example"};
  const auto bytes = encode_address(address);
  const auto parsed = parse_address(bytes);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->endpoint, 77U);
  EXPECT_EQ(parsed->port, 4711U);
  EXPECT_EQ(parsed->host, "node-1.example");
  for (std::size_t n = 0; n < kAddressBytesMin; ++n)
    EXPECT_FALSE(parse_address(std::span(bytes).first(n))) << n;
  EXPECT_FALSE(parse_address(encode_address({77, 4711, std::string(201, 'a')})));
  EXPECT_FALSE(parse_address(encode_address({77, 4711, "a b"})));
  EXPECT_FALSE(parse_address(encode_address({77, 4711, std::string(1, '\0')})));
  EXPECT_FALSE(parse_address(encode_address({77, 0, "a"})));
  EXPECT_FALSE(parse_address(encode_address({0, 4711, "a"})));
}

TEST(TcpHandshake, AHelloComesBackAndEveryShorterOneIsRefused) {
  Hello hello;
  hello.target = 5;
  hello.received = 6;
  hello.is_resuming = true;
  hello.nonce.fill(std::byte{9});
  hello.from = {7, 8, "h"};
  const auto bytes = encode_hello(hello);
  const auto parsed = parse_hello(bytes);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->target, 5U);
  EXPECT_EQ(parsed->received, 6U);
  EXPECT_TRUE(parsed->is_resuming);
  EXPECT_EQ(parsed->nonce, hello.nonce);
  EXPECT_EQ(parsed->from.endpoint, 7U);
  for (std::size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(parse_hello(std::span(bytes).first(n))) << n;
}

TEST(TcpHandshake, AProofHoldsForItsTokenSideAndTranscriptOnly) {
  const test::TestFolder folder;
  const auto token = Token::read(folder.write("a", "  a token of some length\n"));
  const auto same = Token::read(folder.write("b", "a token of some length"));
  const auto other = Token::read(folder.write("c", "a token of some lengtH"));
  ASSERT_TRUE(token && same && other);
  const std::vector<std::byte> hello(60, std::byte{1});
  const std::vector<std::byte> challenge(32, std::byte{2});
  const std::vector<std::byte> later(32, std::byte{3});
  const auto proof = *prove(*token, Side::dialer, {1, hello, challenge, 0});
  EXPECT_TRUE(is_equal(proof, *prove(*same, Side::dialer, {1, hello, challenge, 0})));
  EXPECT_FALSE(is_equal(proof, *prove(*other, Side::dialer, {1, hello, challenge, 0})));
  EXPECT_FALSE(is_equal(proof, *prove(*token, Side::acceptor, {1, hello, challenge, 0})));
  EXPECT_FALSE(is_equal(proof, *prove(*token, Side::dialer, {2, hello, challenge, 0})));
  EXPECT_FALSE(is_equal(proof, *prove(*token, Side::dialer, {1, hello, later, 0})));
  EXPECT_FALSE(is_equal(proof, *prove(*token, Side::dialer, {1, hello, challenge, 1})));
  EXPECT_FALSE(is_equal(proof, std::span(proof).first(31)));
  EXPECT_FALSE(is_equal(proof, {}));
}

TEST(TcpHandshake, ATokenIsNeitherMissingNorShortNorEndless) {
  const test::TestFolder folder;
  EXPECT_EQ(Token::read(folder.file("none")).error().code(), Code::not_found);
  EXPECT_EQ(Token::read(folder.write("short", "fifteen bytes..\n")).error().code(),
            Code::invalid_argument);
  EXPECT_TRUE(Token::read(folder.write("longest", std::string(4096, 'x'))));
  EXPECT_EQ(Token::read(folder.write("longer", std::string(4097, 'x'))).error().code(),
            Code::invalid_argument);
}

Outgoing numbered(FrameType type, std::uint64_t owner = 0) {
  static constexpr std::byte kPayload[3] = {};
  Outgoing frame;
  frame.header.type = type;
  frame.payload = kPayload;
  frame.owner = owner;
  return frame;
}

TEST(TcpResend, WhatIsNotAcknowledgedIsTakenAgainInOrder) {
  ResendQueue queue;
  for (int i = 0; i < 5; ++i)
    queue.push(numbered(FrameType::message));
  for (std::uint64_t sequence = 1; sequence <= 4; ++sequence)
    ASSERT_EQ(queue.take()->header.sequence, sequence);
  queue.written();
  ASSERT_TRUE(queue.acknowledge(2));
  EXPECT_EQ(queue.take()->header.sequence, 5U);
  EXPECT_EQ(queue.take(), nullptr);
  queue.rewind();
  for (std::uint64_t sequence = 3; sequence <= 5; ++sequence)
    ASSERT_EQ(queue.take()->header.sequence, sequence);
  EXPECT_FALSE(queue.acknowledge(6));  // never sent
  EXPECT_TRUE(queue.acknowledge(5));
  EXPECT_TRUE(queue.acknowledge(1));  // an old one says nothing new
  EXPECT_TRUE(queue.is_empty());
}

TEST(TcpResend, PayloadThatIsTakenBackLeavesItsNumberWithoutItsBytes) {
  ResendQueue queue;
  queue.push(numbered(FrameType::data, 7));
  queue.push(numbered(FrameType::message, 7));
  queue.push(numbered(FrameType::data, 8));
  EXPECT_FALSE(queue.take_back(0));
  ASSERT_NE(queue.take(), nullptr);
  queue.written();
  EXPECT_FALSE(queue.take_back(7));  // written, or not begun
  queue.rewind();
  const Outgoing* frame = queue.take();
  EXPECT_EQ(frame->header.type, FrameType::failed);
  EXPECT_EQ(frame->header.sequence, 1U);
  EXPECT_TRUE(frame->payload.empty());
  EXPECT_EQ(queue.take()->header.type, FrameType::nothing);
  frame = queue.take();
  EXPECT_EQ(frame->payload.size(), 3U);
  EXPECT_TRUE(queue.take_back(8));  // begun, and not written
}

}  // namespace
}  // namespace luna::tcp
