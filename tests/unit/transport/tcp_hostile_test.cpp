// Who connects to an endpoint of transport tcp without being a peer, and peers that break rules.
#include "unit/transport/tcp_fixture.hpp"
#include "unit/transport/tcp_raw.hpp"

#include <algorithm>
#include <atomic>
#include <list>
#include <string>
#include <thread>

namespace luna::test {
namespace {

constexpr std::string_view kSecret = "the token of these tests";

class TcpHostile : public Tcp {
 protected:
  void SetUp() override {
    Tcp::SetUp();
    token_file_ = folder_.write("token", std::string(kSecret));
    endpoint_ = make(settings());
    address_ = address_of(endpoint_->address());
  }
  [[nodiscard]] SettingValues settings() const {
    return quick() + SettingValues{{"token_file", token_file_}};
  }
  [[nodiscard]] std::unique_ptr<RawStream> dial() const {
    return std::make_unique<RawStream>(connect_to(address_.port));
  }
  /// The endpoint still takes peers.
  void expect_alive() {
    const auto friendly = make(settings());
    std::uint32_t peer = 0;
    EXPECT_EQ(friendly->connect_at_last(endpoint_->address(), peer), LUNA_OK);
  }
  static tcp::Header a_hello() {
    tcp::Header header;
    header.type = tcp::FrameType::hello;
    header.epoch = 1;
    return header;
  }

  std::string token_file_;
  std::unique_ptr<Endpoint> endpoint_;
  tcp::Address address_;
};

TEST_F(TcpHostile, WhoSaysNothingIsCutOff) {
  const auto stranger = dial();
  EXPECT_TRUE(stranger->receive_to_the_end().empty());
  expect_alive();
}

TEST_F(TcpHostile, WrongMagicLengthTypeAndOrderAreCutOffWithoutAnAnswer) {
  tcp::Header oversized = a_hello();
  oversized.n_bytes = tcp::kHandshakeBytesMax + 1;
  tcp::Header data;
  data.type = tcp::FrameType::data;
  data.sequence = 1;
  data.n_bytes = 1U << 30U;
  tcp::Header proof = a_hello();
  proof.type = tcp::FrameType::proof;
  proof.n_bytes = 32;
  for (const tcp::HeaderBytes& bytes : {tcp::HeaderBytes{},
                                        tcp::encode_header(oversized),
                                        tcp::encode_header(data),
                                        tcp::encode_header(proof)}) {
    const auto stranger = dial();
    stranger->send(bytes);
    EXPECT_TRUE(stranger->receive_to_the_end().empty());
  }
  expect_alive();
}

TEST_F(TcpHostile, AnotherVersionIsToldWhichOneIsSpokenHere) {
  tcp::HeaderBytes bytes = tcp::encode_header(a_hello());
  bytes[4] = std::byte{2};
  const auto stranger = dial();
  stranger->send(bytes);
  const auto answer = stranger->receive_frame();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.type, tcp::FrameType::refuse);
  EXPECT_EQ(answer->header.argument, static_cast<std::uint64_t>(tcp::Refusal::version));
  expect_alive();
}

TEST_F(TcpHostile, TruncatedFramesAreCutOff) {
  tcp::Hello hello;
  hello.target = address_.endpoint;
  hello.from = {4711, 1, "127.0.0.1"};
  const Bytes payload = tcp::encode_hello(hello);
  tcp::Header header = a_hello();
  header.n_bytes = payload.size();
  const tcp::HeaderBytes head = tcp::encode_header(header);
  Bytes whole(head.begin(), head.end());
  whole.insert(whole.end(), payload.begin(), payload.end());
  for (std::size_t n = 1; n < whole.size(); n += 13) {
    const auto stranger = dial();
    stranger->send(std::span(whole).first(n));
    stranger->end_sending();
    EXPECT_TRUE(stranger->receive_to_the_end().empty()) << n << " bytes";
  }
  expect_alive();
}

TEST_F(TcpHostile, AFloodOfStrangersNeitherStaysNorKeepsPeersOut) {
  std::list<std::unique_ptr<RawStream>> strangers;
  for (int i = 0; i < 200; ++i)
    strangers.push_back(dial());
  expect_alive();
  for (const auto& stranger : strangers)
    EXPECT_TRUE(stranger->receive_to_the_end().empty());
}

TEST_F(TcpHostile, AnotherTokenIsRefusedAndTheReasonTold) {
  const std::string file = folder_.write("other", "another token of good length");
  const auto other = make(quick() + SettingValues{{"token_file", file}});
  std::uint32_t peer = 0;
  EXPECT_EQ(other->connect_at_last(endpoint_->address(), peer), LUNA_INVALID_ARGUMENT);
  EXPECT_NE(other->reason().find("token"), std::string::npos) << other->reason();
  EXPECT_EQ(endpoint_->connect_at_last(other->address(), peer), LUNA_INVALID_ARGUMENT);
  const auto without = make(quick());  // a random one of the process
  EXPECT_EQ(without->connect_at_last(endpoint_->address(), peer), LUNA_INVALID_ARGUMENT);
  expect_alive();
}

/// Accepts one dialer, answers with a challenge and a proof that is none; keeps what it heard.
Bytes impersonate(RawListener& listener) {
  RawStream stream(listener.accept());
  Bytes heard;
  const auto keep = [&](const std::optional<RawStream::Frame>& frame) {
    if (!frame) return;
    const tcp::HeaderBytes head = tcp::encode_header(frame->header);
    heard.insert(heard.end(), head.begin(), head.end());
    heard.insert(heard.end(), frame->payload.begin(), frame->payload.end());
  };
  const auto hello = stream.receive_frame();
  keep(hello);
  tcp::Header header;
  header.epoch = hello ? hello->header.epoch : 0;
  header.type = tcp::FrameType::challenge;
  stream.send(header, Bytes(32, std::byte{7}));
  keep(stream.receive_frame());
  header.type = tcp::FrameType::accept;
  stream.send(header, Bytes(32, std::byte{8}));
  stream.receive_to_the_end();
  return heard;
}

TEST_F(TcpHostile, WhoAnswersWithoutTheTokenIsNoPeerAndLearnsNothing) {
  RawListener listener;
  Bytes heard;
  std::thread impostor([&] { heard = impersonate(listener); });
  // The endpoint is asked for behind the impostor's port.
  const auto victim = make(settings());
  std::uint32_t peer = 0;
  EXPECT_EQ(victim->connect_at_last(by_port(endpoint_->address(), listener.port()), peer),
            LUNA_INVALID_ARGUMENT);
  EXPECT_NE(victim->reason().find("token"), std::string::npos) << victim->reason();
  victim->close();
  impostor.join();
  const auto secret = std::as_bytes(std::span(kSecret));
  EXPECT_EQ(std::search(heard.begin(), heard.end(), secret.begin(), secret.end()), heard.end());
  // What it heard does not open the real endpoint's door.
  const auto replay = dial();
  replay->send(heard);
  const auto challenge = replay->receive_frame();
  ASSERT_TRUE(challenge);
  EXPECT_EQ(challenge->header.type, tcp::FrameType::challenge);
  const auto answer = replay->receive_frame();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.type, tcp::FrameType::refuse);
  EXPECT_EQ(answer->header.argument, static_cast<std::uint64_t>(tcp::Refusal::token));
}

TEST_F(TcpHostile, PeersThatBreakRulesAreCutOffAndTheEndpointLivesOn) {
  const auto token = tcp::Token::read(token_file_);
  ASSERT_TRUE(token);
  constexpr std::uint64_t kEpoch = 99;
  const auto numbered = [](tcp::FrameType type, std::uint64_t sequence) {
    tcp::Header header;
    header.type = type;
    header.epoch = kEpoch;
    header.sequence = sequence;
    return header;
  };
  const auto expect_cut_off = [&](const char* what, const std::vector<tcp::Header>& frames) {
    SCOPED_TRACE(what);
    const auto peer = dial();
    ASSERT_TRUE(greet_by_hand(*peer, *token, address_, kEpoch));
    for (const tcp::Header& frame : frames)
      peer->send(tcp::encode_header(frame));
    peer->receive_to_the_end();
  };
  tcp::Header other_epoch = numbered(tcp::FrameType::nothing, 1);
  other_epoch.epoch = kEpoch + 1;
  expect_cut_off("another epoch", {other_epoch});
  expect_cut_off("a gap", {numbered(tcp::FrameType::nothing, 2)});
  tcp::Header acknowledges = numbered(tcp::FrameType::nothing, 1);
  acknowledges.ack = 1000;
  expect_cut_off("an acknowledgement of what was not sent", {acknowledges});
  expect_cut_off("a handshake frame", {a_hello()});
  tcp::Header endless = numbered(tcp::FrameType::data, 1);
  endless.n_bytes = (std::uint64_t{1} << 30U) + 1;
  expect_cut_off("a payload above the bound", {endless});
  std::vector<tcp::Header> readies;
  for (std::uint64_t i = 1; i <= 4097; ++i) {
    readies.push_back(numbered(tcp::FrameType::ready, i));
    readies.back().argument = i;
  }
  expect_cut_off("receives without end", readies);
  std::vector<tcp::Header> joins;
  const auto peer = dial();
  ASSERT_TRUE(greet_by_hand(*peer, *token, address_, kEpoch));
  for (std::uint64_t i = 1; i <= 1025; ++i) {
    tcp::Header join = numbered(tcp::FrameType::join, i);
    join.argument = i;
    peer->send(join, Bytes(tcp::kGroupShapeBytes));
  }
  peer->receive_to_the_end();
  expect_alive();
}

TEST_F(TcpHostile, FramesOfUnknownThingsAreDropped) {
  const auto token = tcp::Token::read(token_file_);
  ASSERT_TRUE(token);
  const auto peer = dial();
  ASSERT_TRUE(greet_by_hand(*peer, *token, address_, 5));
  std::uint64_t sequence = 0;
  for (const tcp::FrameType type : {tcp::FrameType::data,
                                    tcp::FrameType::message,
                                    tcp::FrameType::credit,
                                    tcp::FrameType::taken,
                                    tcp::FrameType::failed,
                                    tcp::FrameType::withdraw,
                                    tcp::FrameType::leave,
                                    tcp::FrameType::abort}) {
    tcp::Header header;
    header.type = type;
    header.epoch = 5;
    header.sequence = ++sequence;
    header.argument = 123;
    header.lane = 0xFFFFFFFF;
    const bool has_payload = type == tcp::FrameType::data || type == tcp::FrameType::message;
    peer->send(header, Bytes(has_payload ? 100000 : 0));
  }
  tcp::Header ping;
  ping.type = tcp::FrameType::ping;
  ping.epoch = 5;
  ping.argument = 77;
  peer->send(ping);
  for (;;) {
    const auto frame = peer->receive_frame();
    ASSERT_TRUE(frame);
    if (frame->header.type != tcp::FrameType::pong) continue;
    EXPECT_EQ(frame->header.argument, 77U);
    EXPECT_EQ(frame->header.ack, sequence);
    break;
  }
}

TEST_F(TcpHostile, CertificatesOfAnotherAuthorityAreNoPeers) {
  Authority ours(folder_, "ours"), theirs(folder_, "theirs");
  const auto endpoint = make(quick() + ours.settings("a", ours));
  const auto stranger = make(quick() + theirs.settings("b", theirs));
  const auto forger = make(quick() + theirs.settings("c", ours));
  const auto plain = make(settings());
  std::uint32_t peer = 0;
  EXPECT_EQ(stranger->connect_at_last(endpoint->address(), peer), LUNA_INVALID_ARGUMENT);
  EXPECT_NE(stranger->reason().find("TLS"), std::string::npos) << stranger->reason();
  EXPECT_EQ(forger->connect(endpoint->address(), peer), LUNA_AGAIN);
  EXPECT_EQ(plain->connect(endpoint->address(), peer), LUNA_AGAIN);
  EXPECT_EQ(endpoint->connect(plain->address(), peer), LUNA_AGAIN);
  const auto friendly = make(quick() + ours.settings("d", ours));
  EXPECT_EQ(friendly->connect_at_last(endpoint->address(), peer), LUNA_OK) << friendly->reason();
  // Refused, or cut off before the reason could be read.
  EXPECT_NE(forger->connect(endpoint->address(), peer), LUNA_OK);
  EXPECT_NE(plain->connect(endpoint->address(), peer), LUNA_OK);
  EXPECT_NE(endpoint->connect(plain->address(), peer), LUNA_OK);
}

TEST_F(TcpHostile, SettingsThatWouldLetStrangersInOrContradictAreRefused) {
  const auto refused = [&](const SettingValues& values) {
    const auto made = make_instance(*table_, host_, values);
    if (made) table_->head.destroy(*made);
    return made ? std::string("accepted") : std::string(made.error().message());
  };
  EXPECT_NE(refused({{"host", "0.0.0.0"}}).find("loopback"), std::string::npos);
  EXPECT_NE(refused({{"host", "0.0.0.0"}, {"token_file", token_file_}}).find("advertised_host"),
            std::string::npos);
  EXPECT_NE(refused({{"host", "localhost"}}).find("IP address"), std::string::npos);
  EXPECT_NE(refused({{"token_file", folder_.file("none")}}).find("cannot read"), std::string::npos);
  EXPECT_NE(refused({{"tls_key", "x"}}).find("belong together"), std::string::npos);
  EXPECT_NE(refused({{"tls_key", "x"}, {"tls_certificate", "y"}, {"tls_ca", "z"}})
                .find("tls_certificate = \"y\""),
            std::string::npos);
  EXPECT_NE(refused({{"heartbeat_timeout_ms", std::int64_t{300}}}).find("twice"),
            std::string::npos);
  const std::int64_t taken = address_.port;
  EXPECT_NE(refused({{"port", taken}}).find("cannot listen"), std::string::npos);
}

}  // namespace
}  // namespace luna::test
