// A worker and a controller believe each other when they know one token, and never otherwise.
#include "core/cluster/greeting.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace luna::cluster {
namespace {

Token token_of(const std::string& text) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "cluster.token";
  std::ofstream(path) << text << "\n";
  auto token = Token::read(path);
  std::filesystem::remove(path);
  EXPECT_TRUE(token) << token.error().message();
  return std::move(*token);
}

Terms some_terms() {
  return {"run-1", std::chrono::milliseconds(200), std::chrono::milliseconds(1000)};
}

Frame frame_of(const Reply& reply) {
  return {reply.type, 0, reply.payload};
}

/// What either side says at the end of a whole conversation.
struct Outcome {
  Result<void> acceptor;
  Result<void> dialer;
  std::optional<Terms> terms;
};

Outcome greet(const Token& workers, const Token& controllers) {
  GreetingDialer dialer(workers, "w0");
  GreetingAcceptor acceptor(controllers, some_terms());
  Outcome outcome;
  const auto hello = dialer.begin();
  const auto challenge = acceptor.take(frame_of(*hello));
  EXPECT_TRUE(challenge) << challenge.error().message();
  const auto proof = dialer.take(frame_of(*challenge));
  EXPECT_TRUE(proof && *proof) << proof.error().message();
  const auto accept = acceptor.take(frame_of(**proof));
  if (!accept) {
    outcome.acceptor = accept.error();
    return outcome;
  }
  EXPECT_TRUE(acceptor.is_over());
  const auto end = dialer.take(frame_of(*accept));
  if (!end) outcome.dialer = end.error();
  outcome.terms = dialer.terms();
  return outcome;
}

TEST(ClusterGreeting, EqualTokensGiveTheTerms) {
  for (const Token& token : {token_of("a token of twenty-six bytes"), Token::none()}) {
    const Outcome outcome = greet(token, token);
    ASSERT_TRUE(outcome.acceptor && outcome.dialer);
    ASSERT_TRUE(outcome.terms);
    EXPECT_EQ(outcome.terms->run, "run-1");
    EXPECT_EQ(outcome.terms->timeout, std::chrono::milliseconds(1000));
  }
}

TEST(ClusterGreeting, AnotherTokenIsRefused) {
  const Outcome outcome =
      greet(token_of("a token of twenty-six bytes"), token_of("another token of many bytes"));
  ASSERT_FALSE(outcome.acceptor);
  EXPECT_EQ(outcome.acceptor.error().message(), "the token is another one");
  EXPECT_FALSE(outcome.terms);
}

TEST(ClusterGreeting, AControllerMustKnowTheTokenToo) {
  const Token token = token_of("a token of twenty-six bytes");
  GreetingDialer dialer(token, "w0");
  GreetingAcceptor impostor(Token::none(), some_terms());
  const auto hello = dialer.begin();
  const auto challenge = impostor.take(frame_of(*hello));
  const auto proof = dialer.take(frame_of(*challenge));
  ASSERT_TRUE(proof && *proof);
  // It cannot make an accept of its own, nor send back the proof that it was given.
  Reply accept{FrameType::accept, (*proof)->payload};
  const Bytes terms(64);
  accept.payload.insert(accept.payload.end(), terms.begin(), terms.end());
  EXPECT_FALSE(dialer.take(frame_of(accept)));
  EXPECT_FALSE(dialer.terms());
}

TEST(ClusterGreeting, AProofIsGoodForOneChallengeOnly) {
  const Token token = token_of("a token of twenty-six bytes");
  GreetingDialer dialer(token, "w0");
  const auto hello = dialer.begin();
  GreetingAcceptor first(token, some_terms());
  const auto proof = dialer.take(frame_of(*first.take(frame_of(*hello))));
  GreetingAcceptor second(token, some_terms());
  ASSERT_TRUE(second.take(frame_of(*hello)));
  const auto again = second.take(frame_of(**proof));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().message(), "the token is another one");
}

/// Both ends of a greeting that went well.
struct Greeted {
  std::optional<FrameSeals> worker;
  std::optional<FrameSeals> controller;
};
Greeted greeted(const Token& token) {
  GreetingDialer dialer(token, "w0");
  GreetingAcceptor acceptor(token, some_terms());
  const auto challenge = acceptor.take(frame_of(*dialer.begin()));
  const auto proof = dialer.take(frame_of(*challenge));
  const auto accept = acceptor.take(frame_of(**proof));
  EXPECT_TRUE(dialer.take(frame_of(*accept)));
  return {std::move(*dialer.seals()), std::move(*acceptor.seals())};
}

FrameSeal::Tag tag_of(FrameSeal& seal) {
  return *seal.next({});
}

TEST(ClusterGreeting, BothEndsSealAlikeAndEachDirectionOtherwise) {
  const Token token = token_of("a token of twenty-six bytes");
  Greeted first = greeted(token);
  ASSERT_TRUE(first.worker && first.controller);
  const auto to_controller = tag_of(first.worker->outgoing);
  const auto to_worker = tag_of(first.controller->outgoing);
  EXPECT_EQ(to_controller, tag_of(first.controller->incoming));
  EXPECT_EQ(to_worker, tag_of(first.worker->incoming));
  EXPECT_NE(to_controller, to_worker);
  // Another connection of the same two has other keys.
  Greeted second = greeted(token);
  EXPECT_NE(tag_of(second.worker->outgoing), to_controller);
}

TEST(ClusterGreeting, WithoutATokenNothingIsSealed) {
  const Greeted greeted_ends = greeted(Token::none());
  EXPECT_FALSE(greeted_ends.worker);
  EXPECT_FALSE(greeted_ends.controller);
}

TEST(ClusterGreeting, NothingComesOutOfTurn) {
  const Token token = Token::none();
  for (const FrameType type : {FrameType::challenge, FrameType::proof, FrameType::accept}) {
    GreetingAcceptor acceptor(token, some_terms());
    EXPECT_FALSE(acceptor.take({type, 0, {}}));
  }
  GreetingDialer dialer(token, "w0");
  ASSERT_TRUE(dialer.begin());
  EXPECT_FALSE(dialer.take({FrameType::accept, 0, {}}));
  const auto refused = dialer.take({FrameType::refuse, 0, encode_refusal("not\ntoday")});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(), "refused: not?today");
}

TEST(ClusterGreeting, ShortTokensAreNoTokens) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "short.token";
  std::ofstream(path) << "  too short\n";
  const auto token = Token::read(path);
  std::filesystem::remove(path);
  ASSERT_FALSE(token);
  EXPECT_THAT(token.error().message(), ::testing::HasSubstr("has 9 bytes: must be between 16"));
}

}  // namespace
}  // namespace luna::cluster
