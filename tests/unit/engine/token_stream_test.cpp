#include "core/pipeline/token_stream.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace luna::pipeline {
namespace {

TEST(TokenStream, NothingIsSeenBeforeItIsPublished) {
  TokenStream stream(4, 64, 2);
  const TokenLogprob top[] = {{7, -0.5F}, {8, -1.0F}};
  stream.append(7, -0.5F, top, "ab");
  EXPECT_TRUE(stream.view().tokens.empty());
  EXPECT_TRUE(stream.view().text.empty());
  stream.publish();
  const TokenStream::View view = stream.view();
  ASSERT_EQ(view.tokens.size(), 1U);
  EXPECT_EQ(view.tokens[0].text_end, 2U);
  EXPECT_EQ(view.text, "ab");
  ASSERT_EQ(view.top.size(), 2U);
  EXPECT_EQ(view.top[1].token_id, 8U);
  EXPECT_FALSE(view.end);
}

TEST(TokenStream, EndComesWithTheLastText) {
  TokenStream stream(2, 64, 0);
  stream.append(1, 0.0F, {}, "x");
  stream.publish();
  stream.append(2, 0.0F, {}, "y");
  stream.append_text("z");
  stream.finish({.reason = FinishReason::length, .n_cached = 3});
  EXPECT_FALSE(stream.view().end);
  stream.publish();
  const TokenStream::View view = stream.view();
  EXPECT_EQ(view.text, "xyz");
  ASSERT_TRUE(view.end);
  EXPECT_EQ(view.end->reason, FinishReason::length);
  EXPECT_EQ(view.end->n_cached, 3U);
}

TEST(TokenStream, TruncateTakesBackWhatWasNotPublished) {
  TokenStream stream(4, 64, 0);
  stream.append(1, 0.0F, {}, "a");
  stream.publish();
  stream.append(2, 0.0F, {}, "b");
  stream.append(3, 0.0F, {}, "");
  stream.truncate(1);
  stream.publish();
  EXPECT_EQ(stream.view().tokens.size(), 1U);
  EXPECT_EQ(stream.view().text, "ab");
}

TEST(TokenStream, EveryViewIsOneMoment) {
  constexpr std::uint32_t kTokens = 20'000;
  TokenStream stream(kTokens, kTokens * 3, 1);
  std::thread producer([&] {
    for (std::uint32_t i = 0; i < kTokens; ++i) {
      const TokenLogprob top{i, -1.0F};
      stream.append(i, 0.0F, std::span(&top, 1), "abc");
      if (i + 1 == kTokens) stream.finish({});
      stream.publish();
    }
  });
  std::size_t n_seen = 0;
  for (bool ended = false; !ended;) {
    const TokenStream::View view = stream.view();
    ASSERT_GE(view.tokens.size(), n_seen);
    ASSERT_EQ(view.text.size(), view.tokens.size() * 3);
    if (!view.tokens.empty()) {
      ASSERT_EQ(view.tokens.back().token_id, view.tokens.size() - 1);
      ASSERT_EQ(view.top.back().token_id, view.tokens.size() - 1);
    }
    n_seen = view.tokens.size();
    ended = view.end.has_value();
  }
  EXPECT_EQ(n_seen, kTokens);
  producer.join();
}

}  // namespace
}  // namespace luna::pipeline
