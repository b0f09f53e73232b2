#include "core/http/openai_response.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <boost/json/value_to.hpp>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace luna::http {
namespace {

namespace json = boost::json;

OpenaiResponse make(pipeline::Endpoint endpoint, bool logprobs, bool include_usage) {
  OpenaiResponse::Options options;
  options.id = "id-1";
  options.model = "ma\"in";
  options.created_s = 5;
  options.endpoint = endpoint;
  options.logprobs = logprobs;
  options.include_usage = include_usage;
  options.token_bytes = [](pipeline::TokenId id) {
    return id == 1 ? std::string("\xE2\x82") : std::string("t");
  };
  return OpenaiResponse(std::move(options));
}

using pipeline::Endpoint;
using pipeline::OutputToken;

std::string role(const OpenaiResponse& response) {
  std::string out;
  response.role_chunk(out, 0);
  return out;
}
std::string text(OpenaiResponse& response,
                 std::uint32_t choice,
                 std::string_view text,
                 const std::vector<OutputToken>& tokens = {}) {
  std::string out;
  response.text_chunk(out, choice, text, tokens);
  return out;
}
std::string finish(const OpenaiResponse& response, pipeline::FinishReason reason) {
  std::string out;
  response.finish_chunk(out, 1, reason);
  return out;
}
const json::value& choice_of(const json::value& chunk) {
  return chunk.at("choices").at(0);
}

TEST(OpenaiResponse, ChunksAreJsonWithTheSameHead) {
  OpenaiResponse response = make(Endpoint::chat, false, true);
  for (const std::string& written : {role(response),
                                     text(response, 1, "a\"\n\u20ac"),
                                     finish(response, pipeline::FinishReason::length)}) {
    const json::value chunk = json::parse(written);
    EXPECT_EQ(chunk.at("id").as_string(), "id-1");
    EXPECT_EQ(chunk.at("model").as_string(), "ma\"in");
    EXPECT_EQ(chunk.at("object").as_string(), "chat.completion.chunk");
    EXPECT_TRUE(chunk.at("usage").is_null());
    EXPECT_TRUE(choice_of(chunk).as_object().contains("finish_reason"));
  }
  const json::value chunk = json::parse(text(response, 4000000000U, "a\"\n\u20ac"));
  EXPECT_EQ(choice_of(chunk).at("index").to_number<std::uint32_t>(), 4000000000U);
  EXPECT_EQ(choice_of(chunk).at("delta").at("content").as_string(), "a\"\n\u20ac");
}

TEST(OpenaiResponse, ChunksOfCompletionsHaveTheirText) {
  OpenaiResponse response = make(Endpoint::completion, false, false);
  const json::value chunk = json::parse(text(response, 0, "t"));
  EXPECT_EQ(choice_of(chunk).at("text").as_string(), "t");
  EXPECT_FALSE(chunk.as_object().contains("usage"));
  const json::value last = json::parse(finish(response, pipeline::FinishReason::failed));
  EXPECT_EQ(choice_of(last).at("text").as_string(), "");
  EXPECT_EQ(choice_of(last).at("finish_reason").as_string(), "length");
}

TEST(OpenaiResponse, UsageChunkHasNoChoicesAndOneUsage) {
  std::string written;
  make(Endpoint::chat, false, true).usage_chunk(written, {3, 1, 2});
  const json::value chunk = json::parse(written);
  EXPECT_TRUE(chunk.at("choices").as_array().empty());
  EXPECT_EQ(chunk.at("usage").at("total_tokens").as_int64(), 5);
  EXPECT_EQ(chunk.at("usage").at("prompt_tokens_details").at("cached_tokens").as_int64(), 1);
}

TEST(OpenaiResponse, LogprobBytesAreTheTokensOwn) {
  OpenaiResponse response = make(Endpoint::chat, true, false);
  const OutputToken token{1, -0.5F, {{1, -0.5F}, {2, -std::numeric_limits<float>::infinity()}}, 0};
  const json::value chunk = json::parse(text(response, 0, "", {token}));
  const json::value& entry = choice_of(chunk).at("logprobs").at("content").at(0);
  EXPECT_EQ(entry.at("bytes"), json::value({0xE2, 0x82}));
  EXPECT_EQ(entry.at("token").as_string(), "\xEF\xBF\xBD");
  EXPECT_EQ(entry.at("top_logprobs").at(1).at("logprob").to_number<double>(), -9999.0);
}

std::vector<std::int64_t> offsets(const std::string& written) {
  const json::value chunk = json::parse(written);
  return json::value_to<std::vector<std::int64_t>>(
      choice_of(chunk).at("logprobs").at("text_offset"));
}

TEST(OpenaiResponse, TextOffsetsGoOnFromChunkToChunkOfAChoice) {
  OpenaiResponse response = make(Endpoint::completion, true, false);
  const OutputToken word{2, -1.0F, {}, 5};
  EXPECT_EQ(offsets(text(response, 0, "hello", {word})), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(offsets(text(response, 1, "other", {word})), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(offsets(text(response, 0, "again", {word})), (std::vector<std::int64_t>{5}));
}

TEST(OpenaiResponse, TextOffsetOfTokensInsideACharacterIsThatCharacters) {
  OpenaiResponse response = make(Endpoint::completion, true, false);
  const std::vector<OutputToken> tokens = {
      {2, -1.0F, {}, 1}, {1, -1.0F, {}, 0}, {1, -1.0F, {}, 1}, {2, -1.0F, {}, 1}};
  EXPECT_EQ(offsets(text(response, 0, "a\u20acb", tokens)),
            (std::vector<std::int64_t>{0, 1, 1, 2}));
}

TEST(OpenaiResponse, TextOffsetsCountTheEchoedPrompt) {
  OpenaiResponse response = make(Endpoint::completion, true, false);
  std::string written;
  response.echo_chunk(written, 0, "\u20ac and");
  EXPECT_EQ(choice_of(json::parse(written)).at("text").as_string(), "\u20ac and");
  EXPECT_EQ(offsets(text(response, 0, "x", {{2, -1.0F, {}, 1}})), (std::vector<std::int64_t>{5}));
  const std::string whole = response.whole(
      {{"\u20ac and more", {{2, -1.0F, {}, 5}}, 5, pipeline::FinishReason::stop}}, {});
  EXPECT_EQ(offsets(whole), (std::vector<std::int64_t>{5}));
}

TEST(OpenaiResponse, BrokenUtf8IsReplacedPartByPart) {
  EXPECT_EQ(replace_invalid_utf8("h\xC3\xA9"), "h\xC3\xA9");
  EXPECT_EQ(replace_invalid_utf8("a\xE2\x82"), "a\xEF\xBF\xBD");
  EXPECT_EQ(replace_invalid_utf8("\x80\xFF!"), "\xEF\xBF\xBD\xEF\xBF\xBD!");
}

TEST(OpenaiResponse, WholeAnswersHaveEveryKey) {
  const json::value chat = json::parse(
      make(pipeline::Endpoint::chat, false, false).whole({{"hi", {}, 0, {}}}, {1, 0, 1}));
  EXPECT_EQ(chat.at("choices").at(0).at("message").at("content").as_string(), "hi");
  EXPECT_TRUE(chat.at("choices").at(0).at("logprobs").is_null());
  const json::value text = json::parse(
      make(pipeline::Endpoint::completion, false, false).whole({{"hi", {}, 0, {}}}, {1, 0, 1}));
  EXPECT_EQ(text.at("choices").at(0).at("text").as_string(), "hi");
  EXPECT_EQ(text.at("object").as_string(), "text_completion");
}

}  // namespace
}  // namespace luna::http
