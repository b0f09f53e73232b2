// A worker that speaks the protocol and computes nothing, so that tests decide when it dies.
#pragma once

#include "core/cluster/kv_messages.hpp"
#include "unit/cluster/cluster_rig.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <unistd.h>

namespace luna::cluster {

/// Joins and answers as if all went well, until it is asked for one thing: then its connection ends
/// as that of a killed process does.
class FakeWorker {
 public:
  FakeWorker(const TestWorkerOptions& options, Join join, FrameType dies_at)
      : join_(std::move(join)), dies_at_(dies_at) {
    auto token = Token::read(*options.token_file);
    EXPECT_TRUE(token) << token.error().message();
    token_ = std::move(*token);
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(options.port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    thread_ = std::thread([this] { serve(); });
  }
  FakeWorker(const FakeWorker&) = delete;
  FakeWorker& operator=(const FakeWorker&) = delete;
  ~FakeWorker() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }

  /// What it says to a copy.
  struct Lie {
    FrameType type = FrameType::kv_given;
    Bytes payload;
  };
  using Liar = std::function<Lie(const KvOrder& order, std::size_t n_bytes)>;
  /// KV that it says its shards hold. Before it is asked to load any.
  void answer_binds_with(const luna_kv_layout& layout, std::uint64_t block_bytes) {
    const std::lock_guard lock(mutex_);
    kv_ = layout;
    block_bytes_ = block_bytes;
  }
  void answer_copies_with(Liar liar) {
    const std::lock_guard lock(mutex_);
    liar_ = std::move(liar);
  }

 private:
  void serve() {
    GreetingDialer greeting(token_, join_.name);
    const auto hello = greeting.begin();
    send(hello->type, 0, hello->payload);
    while (read_more()) {
      for (;;) {
        const auto frame = reader_.next();
        ASSERT_TRUE(frame) << frame.error().message();
        if (!*frame) break;
        if ((*frame)->type == dies_at_) {
          ::shutdown(socket_, SHUT_RDWR);
          return;
        }
        if (greeting.terms())
          obey(**frame);
        else
          greet(greeting, **frame);
      }
    }
  }
  void greet(GreetingDialer& greeting, const Frame& frame) {
    const auto reply = greeting.take(frame);
    ASSERT_TRUE(reply) << reply.error().message();
    if (*reply) return send((*reply)->type, 0, (*reply)->payload);
    auto seals = greeting.seals();
    ASSERT_TRUE(seals && *seals);
    reader_.trust(std::move((*seals)->incoming));
    seal_ = std::move((*seals)->outgoing);
    send(FrameType::join, 0, encode_join(join_));
  }
  void obey(const Frame& frame) {
    if (frame.type == FrameType::ping) return send(FrameType::ping, 0, {});
    switch (frame.type) {
      case FrameType::survey:
      case FrameType::plan:
      case FrameType::pack:
      case FrameType::bind:
        return answer(frame.subject);
      case FrameType::kv_export:
        return lie(frame);
      default:
        return;
    }
  }
  void lie(const Frame& frame) {
    const std::lock_guard lock(mutex_);
    const auto order = parse_kv_order(frame.payload);
    ASSERT_TRUE(order && liar_);
    const Lie lie =
        liar_(*order, order->blocks.size() * order->n_layers * (block_bytes_ / kv_->n_layers));
    send(lie.type, frame.subject, lie.payload);
  }
  void answer(std::uint64_t subject) {
    Answer answer;
    answer.layers = {0, 4};
    answer.memory.weights = 1 << 20;
    const std::lock_guard lock(mutex_);
    answer.memory.kv_block = block_bytes_;
    answer.kv = kv_;
    send(FrameType::answer, subject, encode_answer(answer));
  }
  void send(FrameType type, std::uint64_t subject, const Bytes& payload) {
    const FrameHead head = encode_head(type, subject, payload.size());
    Bytes bytes(head.begin(), head.end());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    if (seal_) {
      const std::span<const std::byte> whole(bytes);
      const auto tag = seal_->next(std::span(&whole, 1));
      ASSERT_TRUE(tag);
      bytes.insert(bytes.end(), tag->begin(), tag->end());
    }
    ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  bool read_more() {
    const auto room = reader_.room();
    const ssize_t n = ::recv(socket_, room.data(), room.size(), 0);
    if (n <= 0) return false;
    reader_.add(static_cast<std::size_t>(n));
    return true;
  }

  const Join join_;
  const FrameType dies_at_;
  Token token_ = Token::none();
  int socket_ = -1;
  std::mutex mutex_;  // guards what follows
  std::optional<luna_kv_layout> kv_;
  std::uint64_t block_bytes_ = 4096;
  Liar liar_;

  FrameReader reader_;
  std::optional<FrameSeal> seal_;
  std::thread thread_;
};

}  // namespace luna::cluster
