// A program that speaks the wire protocol of transport tcp by hand, rightly or wrongly.
#pragma once

#include "plugins/transport_tcp/frame.hpp"
#include "plugins/transport_tcp/handshake.hpp"
#include "unit/transport/tcp_relay.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace luna::test {

using Bytes = std::vector<std::byte>;

/// One connected socket; blocking.
class RawStream {
 public:
  explicit RawStream(int fd) : fd_(fd) {}
  ~RawStream() { ::close(fd_); }
  RawStream(const RawStream&) = delete;
  RawStream& operator=(const RawStream&) = delete;

  void send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;  // the other side has closed, which the test sees by reading
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
  }
  void send(tcp::Header header, std::span<const std::byte> payload = {}) {
    header.n_bytes = payload.size();
    send(tcp::encode_header(header));
    send(payload);
  }
  void end_sending() { ::shutdown(fd_, SHUT_WR); }
  /// Fewer bytes: the other side has closed.
  Bytes receive(std::size_t n) {
    Bytes bytes(n);
    std::size_t n_done = 0;
    while (n_done < n) {
      const ssize_t got = ::recv(fd_, bytes.data() + n_done, n - n_done, 0);
      if (got <= 0) break;
      n_done += static_cast<std::size_t>(got);
    }
    bytes.resize(n_done);
    return bytes;
  }
  /// Waits until the other side closes. Returns what it said before.
  Bytes receive_to_the_end() {
    constexpr std::size_t kStep = 65536;
    Bytes all;
    for (;;) {
      const Bytes some = receive(kStep);
      all.insert(all.end(), some.begin(), some.end());
      if (some.size() < kStep) return all;
    }
  }
  struct Frame {
    tcp::Header header;
    Bytes payload;
  };
  std::optional<Frame> receive_frame() {
    const Bytes head = receive(tcp::kHeaderBytes);
    if (head.size() != tcp::kHeaderBytes) return std::nullopt;
    const auto header = tcp::parse_header(
        std::span<const std::byte, tcp::kHeaderBytes>(head.data(), head.size()), 1U << 30U);
    EXPECT_TRUE(header);
    if (!header) return std::nullopt;
    return Frame{*header, receive(header->n_bytes)};
  }

 private:
  int fd_;
};

/// A socket that listens.
class RawListener {
 public:
  RawListener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in at = loopback(0);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
    EXPECT_EQ(::listen(fd_, 8), 0);
    sockaddr_in bound{};
    socklen_t n = sizeof(bound);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&bound), &n), 0);
    port_ = ntohs(bound.sin_port);
  }
  ~RawListener() { ::close(fd_); }
  RawListener(const RawListener&) = delete;
  RawListener& operator=(const RawListener&) = delete;
  [[nodiscard]] std::uint16_t port() const { return port_; }
  int accept() { return ::accept(fd_, nullptr, nullptr); }

 private:
  int fd_;
  std::uint16_t port_ = 0;
};

/// Dials an endpoint and proves to know the token. True: it was accepted.
inline bool greet_by_hand(RawStream& stream,
                          const tcp::Token& token,
                          const tcp::Address& to,
                          std::uint64_t epoch) {
  tcp::Hello hello;
  hello.target = to.endpoint;
  hello.nonce.fill(std::byte{1});
  hello.from = {4711, 1, "127.0.0.1"};
  const Bytes hello_bytes = tcp::encode_hello(hello);
  tcp::Header header;
  header.epoch = epoch;
  header.type = tcp::FrameType::hello;
  stream.send(header, hello_bytes);
  const auto challenge = stream.receive_frame();
  if (!challenge || challenge->header.type != tcp::FrameType::challenge) return false;
  const auto proof =
      tcp::prove(token, tcp::Side::dialer, {epoch, hello_bytes, challenge->payload, 0});
  header.type = tcp::FrameType::proof;
  stream.send(header, *proof);
  const auto answer = stream.receive_frame();
  return answer && answer->header.type == tcp::FrameType::accept;
}

}  // namespace luna::test
