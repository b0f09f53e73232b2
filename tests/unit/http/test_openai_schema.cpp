#include "core/http/openai_schema.hpp"

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <gtest/gtest.h>

#include <string>
#include <variant>

namespace luna::http {
namespace {

using pipeline::Endpoint;

ParsedBody accepted(Endpoint endpoint, const std::string& text) {
  auto parsed = parse_body(endpoint, text, "main");
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << text << ": " << error->message;
    return {};
  }
  return std::get<ParsedBody>(std::move(parsed));
}

ApiError refused(Endpoint endpoint, const std::string& text) {
  auto parsed = parse_body(endpoint, text, "main");
  if (std::holds_alternative<ParsedBody>(parsed)) {
    ADD_FAILURE() << "accepted: " << text;
    return {};
  }
  return std::get<ApiError>(parsed);
}

std::string chat_with(const std::string& field) {
  return R"({"messages":[{"role":"user","content":"x"}],)" + field + "}";
}

TEST(OpenaiSchema, ChatFieldsReachTheRequest) {
  const ParsedBody body =
      accepted(Endpoint::chat, chat_with(R"("temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,
      "seed":7,"n":3,"stop":["a","b"],"max_completion_tokens":9,"logit_bias":{"5":-1.5},"stream":true,
      "stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":2,"priority":3,
      "cache_salt":"mine")"));
  ASSERT_EQ(body.requests.size(), 1U);
  const pipeline::Request& request = body.requests[0];
  EXPECT_EQ(request.model, "main");
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(request.sampling.top_p, 0.9F);
  EXPECT_EQ(request.sampling.top_k, 40U);
  EXPECT_EQ(request.sampling.seed, 7U);
  EXPECT_TRUE(request.has_seed);
  EXPECT_EQ(request.n_choices, 3U);
  EXPECT_EQ(request.stop.stop_strings, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.n_generated_max, 9U);
  EXPECT_EQ(request.sampling.logit_bias.at(0), std::make_pair(5U, -1.5F));
  EXPECT_TRUE(body.streaming);
  EXPECT_TRUE(body.include_usage);
  EXPECT_EQ(request.logprobs.n_top, 2U);
  EXPECT_EQ(request.priority, 3);
  EXPECT_EQ(request.cache_salt, "mine");
}

TEST(OpenaiSchema, SaltsThatAreEmptyOrTooLongAreRefused) {
  for (const std::size_t n : {0U, 129U}) {
    const ApiError error =
        refused(Endpoint::chat, chat_with("\"cache_salt\":\"" + std::string(n, 's') + "\""));
    EXPECT_EQ(error.param, "cache_salt");
  }
}

TEST(OpenaiSchema, NullIsTheSameAsAbsent) {
  const ParsedBody body = accepted(
      Endpoint::chat,
      chat_with(
          R"("stop":null,"n":null,"logit_bias":null,"seed":null,"tools":null,"tool_choice":null,
      "response_format":null,"stream":null,"stream_options":null,"logprobs":null,"top_p":null,"max_tokens":null)"));
  EXPECT_FALSE(body.requests.at(0).n_generated_max.has_value());
  EXPECT_FALSE(body.requests.at(0).has_seed);
}

TEST(OpenaiSchema, TheNewerLimitWinsOverTheOlder) {
  const ParsedBody body =
      accepted(Endpoint::chat, chat_with(R"("max_tokens":50,"max_completion_tokens":6)"));
  EXPECT_EQ(body.requests.at(0).n_generated_max, 6U);
}

TEST(OpenaiSchema, EveryWrongFieldIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("temperature":-1)", "temperature"},
      {R"("temperature":2.5)", "temperature"},
      {R"("temperature":"hot")", "temperature"},
      {R"("top_p":1.5)", "top_p"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":1.5)", "max_tokens"},
      {R"("n":0)", "n"},
      {R"("n":17)", "n"},
      {R"("stop":5)", "stop"},
      {R"("stop":[1])", "stop"},
      {R"("stop":[""])", "stop"},
      {R"("logit_bias":[1])", "logit_bias"},
      {R"("logit_bias":{"x":1})", "logit_bias"},
      {R"("logit_bias":{"-1":1})", "logit_bias"},
      {R"("logit_bias":{"1.5":1})", "logit_bias"},
      {R"("logit_bias":{"":1})", "logit_bias"},
      {R"("logit_bias":{"18446744073709551616":1})", "logit_bias"},
      {R"("logit_bias":{"5":101})", "logit_bias"},
      {R"("logit_bias":{"5":"big"})", "logit_bias"},
      {R"("stream":"yes")", "stream"},
      {R"("seed":"abc")", "seed"},
      {R"("tools":{})", "tools"},
      {R"("tools":[{}])", "tools[0]"},
      {R"("top_logprobs":2)", "top_logprobs"},
      {R"("response_format":{"type":"nope"})", "response_format.type"},
      {R"("presence_penalty":9)", "presence_penalty"},
  };
  for (const auto& [field, param] : cases) {
    const ApiError error = refused(Endpoint::chat, chat_with(field));
    EXPECT_EQ(error.status, 400U) << field;
    EXPECT_EQ(error.param, param) << field;
    EXPECT_FALSE(error.message.empty()) << field;
  }
}

TEST(OpenaiSchema, WhatIsNotBuiltIsRefusedByName) {
  for (const char* field : {R"("response_format":{"type":"json_object"})",
                            R"("tool_choice":"required")",
                            R"("tool_choice":{"type":"function","function":{"name":"f"}})",
                            R"("guided_json":{})",
                            R"("functions":[])",
                            R"("best_of":2)"})
    EXPECT_EQ(refused(Endpoint::chat, chat_with(field)).code, "unsupported_parameter") << field;
}

TEST(OpenaiSchema, BrokenMessagesAreRefusedWithTheirPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "messages"},
      {R"({"messages":null})", "messages"},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":"hi"})", "messages"},
      {R"({"messages":[1]})", "messages[0]"},
      {R"({"messages":[{"content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content"},
      {R"({"messages":[{"role":"king","content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"user","content":5}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:x"}}]}]})",
       "messages[0].content[0].type"},
  };
  for (const auto& [text, param] : cases)
    EXPECT_EQ(refused(Endpoint::chat, text).param, param) << text;
}

TEST(OpenaiSchema, BodiesThatAreNotObjectsAreRefused) {
  for (const char* text : {"", "{", "[]", "null", "\"x\"", "{}x", "{\"a\":}", "\xff"})
    EXPECT_EQ(refused(Endpoint::chat, text).status, 400U) << text;
}

TEST(OpenaiSchema, DeepNestingIsRefused) {
  const std::string deep =
      R"({"messages":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_EQ(refused(Endpoint::chat, deep).code, "invalid_json");
}

TEST(OpenaiSchema, TextPartsBecomeOneTextAndDeveloperBecomesSystem) {
  const ParsedBody body =
      accepted(Endpoint::chat, R"({"messages":[{"role":"developer","content":"s"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]})");
  const auto& messages = body.requests.at(0).template_variables.at("messages").as_array();
  EXPECT_EQ(messages.at(0).as_object().at("role").as_string(), "system");
  EXPECT_EQ(messages.at(1).as_object().at("content").as_string(), "a\nb");
}

TEST(OpenaiSchema, ToolArgumentsBecomeObjectsWhereTheyParse) {
  const ParsedBody body =
      accepted(Endpoint::chat, R"({"messages":[{"role":"assistant","content":null,"tool_calls":[
      {"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},
      {"id":"2","type":"function","function":{"name":"f","arguments":"{bad"}}]}]})");
  const auto& calls =
      body.requests.at(0).template_variables.at("messages").at(0).at("tool_calls").as_array();
  EXPECT_TRUE(calls.at(0).at("function").at("arguments").is_object());
  EXPECT_TRUE(calls.at(1).at("function").at("arguments").is_string());
}

TEST(OpenaiSchema, ToolsAreHiddenWhenTheChoiceIsNone) {
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  EXPECT_TRUE(accepted(Endpoint::chat, chat_with(tools))
                  .requests.at(0)
                  .template_variables.contains("tools"));
  EXPECT_FALSE(accepted(Endpoint::chat, chat_with(tools + R"(,"tool_choice":"none")"))
                   .requests.at(0)
                   .template_variables.contains("tools"));
}

TEST(OpenaiSchema, PromptsComeAsTextTextsIdsAndListsOfIds) {
  EXPECT_EQ(accepted(Endpoint::completion, R"({"prompt":"a"})").requests.at(0).prompt_text, "a");
  EXPECT_EQ(accepted(Endpoint::completion, R"({"prompt":["a","b"]})").requests.size(), 2U);
  EXPECT_EQ(
      accepted(Endpoint::completion, R"({"prompt":[1,2,3]})").requests.at(0).prompt_ids.size(), 3U);
  EXPECT_EQ(
      accepted(Endpoint::completion, R"({"prompt":[[1],[2,3]]})").requests.at(1).prompt_ids.size(),
      2U);
  for (const char* text : {R"({"prompt":""})",
                           R"({"prompt":[]})",
                           R"({"prompt":[[]]})",
                           R"({"prompt":["a",""]})",
                           R"({"prompt":[-1]})",
                           R"({"prompt":[1.5]})",
                           R"({"prompt":[1000000000000]})",
                           R"({})",
                           R"({"prompt":{"a":1}})",
                           R"({"prompt":["a",1]})"})
    EXPECT_EQ(refused(Endpoint::completion, text).param, "prompt") << text;
}

TEST(OpenaiSchema, ZeroTokensNeedEcho) {
  EXPECT_TRUE(
      accepted(Endpoint::completion, R"({"prompt":"a","max_tokens":0,"echo":true})").prompt_only);
  EXPECT_EQ(refused(Endpoint::completion, R"({"prompt":"a","max_tokens":0})").param, "max_tokens");
}

}  // namespace
}  // namespace luna::http
