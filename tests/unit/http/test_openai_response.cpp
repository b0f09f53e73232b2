#include "core/http/openai_response.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <gtest/gtest.h>

#include <limits>

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

TEST(OpenaiResponse, ChunksAreJsonWithTheSameHead) {
  const OpenaiResponse response = make(pipeline::Endpoint::chat, false, true);
  for (const std::string& text : {response.role_chunk(0),
                                  response.text_chunk(1, "a\"\n\u20ac", {}),
                                  response.finish_chunk(1, pipeline::FinishReason::length)}) {
    const json::value chunk = json::parse(text);
    EXPECT_EQ(chunk.at("id").as_string(), "id-1");
    EXPECT_EQ(chunk.at("model").as_string(), "ma\"in");
    EXPECT_EQ(chunk.at("object").as_string(), "chat.completion.chunk");
    EXPECT_TRUE(chunk.at("usage").is_null());
    EXPECT_TRUE(chunk.at("choices").at(0).as_object().contains("finish_reason"));
  }
  EXPECT_EQ(json::parse(response.text_chunk(0, "a\"", {}))
                .at("choices")
                .at(0)
                .at("delta")
                .at("content")
                .as_string(),
            "a\"");
}

TEST(OpenaiResponse, UsageChunkHasNoChoicesAndOneUsage) {
  const json::value chunk =
      json::parse(make(pipeline::Endpoint::chat, false, true).usage_chunk({3, 1, 2}));
  EXPECT_TRUE(chunk.at("choices").as_array().empty());
  EXPECT_EQ(chunk.at("usage").at("total_tokens").as_int64(), 5);
  EXPECT_EQ(chunk.at("usage").at("prompt_tokens_details").at("cached_tokens").as_int64(), 1);
}

TEST(OpenaiResponse, LogprobBytesAreTheTokensOwn) {
  const OpenaiResponse response = make(pipeline::Endpoint::chat, true, false);
  const pipeline::OutputToken token{
      1, -0.5F, {{1, -0.5F}, {2, -std::numeric_limits<float>::infinity()}}};
  const json::value entry = json::parse(response.text_chunk(0, "", {token}))
                                .at("choices")
                                .at(0)
                                .at("logprobs")
                                .at("content")
                                .at(0);
  EXPECT_EQ(entry.at("bytes"), json::value({0xE2, 0x82}));
  EXPECT_EQ(entry.at("token").as_string(), "\xEF\xBF\xBD");
  EXPECT_EQ(entry.at("top_logprobs").at(1).at("logprob").to_number<double>(), -9999.0);
}

TEST(OpenaiResponse, BrokenUtf8IsReplacedPartByPart) {
  EXPECT_EQ(replace_invalid_utf8("h\xC3\xA9"), "h\xC3\xA9");
  EXPECT_EQ(replace_invalid_utf8("a\xE2\x82"), "a\xEF\xBF\xBD");
  EXPECT_EQ(replace_invalid_utf8("\x80\xFF!"), "\xEF\xBF\xBD\xEF\xBF\xBD!");
}

TEST(OpenaiResponse, WholeAnswersHaveEveryKey) {
  const json::value chat =
      json::parse(make(pipeline::Endpoint::chat, false, false).whole({{"hi", {}, {}}}, {1, 0, 1}));
  EXPECT_EQ(chat.at("choices").at(0).at("message").at("content").as_string(), "hi");
  EXPECT_TRUE(chat.at("choices").at(0).at("logprobs").is_null());
  const json::value text = json::parse(
      make(pipeline::Endpoint::completion, false, false).whole({{"hi", {}, {}}}, {1, 0, 1}));
  EXPECT_EQ(text.at("choices").at(0).at("text").as_string(), "hi");
  EXPECT_EQ(text.at("object").as_string(), "text_completion");
}

}  // namespace
}  // namespace luna::http
