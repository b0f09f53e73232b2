// Requests that draw in every way there is, and whether two engines answered them alike.
#pragma once

#include "support/engine_fixture.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

namespace luna::test {

/// Every way of drawing that a draft might disturb.
inline std::unique_ptr<SequenceRequest> varied_request(std::uint32_t i) {
  auto request = EngineRig::request(some_prompt(3 + i * 11 % 70, i), 40);
  request->sampling.seed = i;
  switch (i % 8) {
    case 0:
      request->logprobs = {.enabled = true, .n_top = 5};
      break;
    case 1:
      request->sampling.temperature = 1.0F;
      request->logprobs = {.enabled = true, .n_top = 40};
      break;
    case 2:
      request->sampling.temperature = 0.7F;
      request->sampling.top_p = 0.9F;
      request->sampling.repetition_penalty = 1.2F;
      request->sampling.frequency_penalty = 0.5F;
      break;
    case 3:
      request->sampling.temperature = 0.7F;
      request->sampling.top_k = 10;
      request->sampling.typical_p = 0.9F;
      request->stop.stop_strings = {"a", "zz"};
      break;
    case 4:  // the end token is likely, and must not come before its time
      request->sampling.logit_bias = {{kEndToken, 6.0F}};
      request->stop.n_generated_min = 7;
      request->logprobs = {.enabled = true, .n_top = 2};
      break;
    case 5:
      request->sampling.logit_bias = {{kTheToken, 5.0F}};
      request->stop.stop_strings = {"the the the", "e t x"};
      break;
    case 6:
      request->sampling.allowed_tokens = {'a', 'b', 'c', kTheToken};
      request->sampling.temperature = 2.0F;
      request->stop.stop_strings = {"ab ", "ccc"};
      break;
    default:
      request->stop.ignore_eos = true;
      request->sampling.presence_penalty = -0.5F;
      break;
  }
  return request;
}

struct Answers {
  std::vector<Asked> asked;
  std::vector<std::vector<TokenId>> texts;
};

inline Answers ask_all(EngineRig& rig,
                       std::uint32_t n,
                       engine::Drafts drafts = engine::Drafts::as_they_pay) {
  Answers answers;
  for (std::uint32_t i = 0; i < n; ++i) {
    auto request = varied_request(i);
    request->drafts = drafts;
    std::vector<TokenId> prompt = request->prompt;
    answers.asked.push_back(rig.submit(std::move(request), 1 + i % 3));
    answers.texts.push_back(std::move(prompt));
  }
  rig.run();
  std::vector<std::vector<TokenId>> texts;
  for (std::uint32_t i = 0; i < n; ++i) {
    for (std::size_t c = 0; c < answers.asked[i].streams.size(); ++c) {
      texts.push_back(answers.texts[i]);
      const auto tokens = answers.asked[i].tokens(c);
      texts.back().insert(texts.back().end(), tokens.begin(), tokens.end());
    }
  }
  answers.texts = std::move(texts);
  return answers;
}

inline void expect_same(const Asked& a, const Asked& b) {
  for (std::size_t c = 0; c < a.streams.size(); ++c) {
    EXPECT_EQ(a.tokens(c), b.tokens(c));
    EXPECT_EQ(a.text(c), b.text(c));
    EXPECT_EQ(a.end(c).reason, b.end(c).reason);
    const auto x = a.streams[c]->view();
    const auto y = b.streams[c]->view();
    ASSERT_EQ(x.tokens.size(), y.tokens.size());
    for (std::size_t i = 0; i < x.tokens.size(); ++i)
      EXPECT_EQ(x.tokens[i].logprob, y.tokens[i].logprob);
    ASSERT_EQ(x.top.size(), y.top.size());
    for (std::size_t i = 0; i < x.top.size(); ++i) {
      EXPECT_EQ(x.top[i].token_id, y.top[i].token_id);
      EXPECT_EQ(x.top[i].logprob, y.top[i].logprob);
    }
  }
}

}  // namespace luna::test
