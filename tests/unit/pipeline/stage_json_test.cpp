#include "core/pipeline/stage_json.hpp"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luna::test {
namespace {

using pipeline::ModelWish;
using pipeline::StageUpdates;
using ::testing::HasSubstr;

TEST(StageUpdates, LengthIsOnlyEverLowered) {
  StageUpdates updates;
  EXPECT_EQ(updates.settle_length(100), 100U);
  ASSERT_TRUE(updates.merge(R"({"max_tokens": 50})"));
  ASSERT_TRUE(updates.merge(R"({"max_tokens": 70})"));
  EXPECT_EQ(updates.settle_length(100), 50U);
  EXPECT_EQ(updates.settle_length(20), 20U);
}

TEST(StageUpdates, SamplingIsReplacedAndOtherKeysAreKept) {
  StageUpdates updates;
  ASSERT_TRUE(updates.merge(R"({"temperature": 0.5, "top_k": 3, "intent": "a", "x": 1})"));
  ASSERT_TRUE(updates.merge(R"({"intent": "b\"", "y": true})"));
  pipeline::SamplingParams sampling;
  updates.overrides().apply(sampling);
  EXPECT_EQ(sampling.temperature, 0.5F);
  EXPECT_EQ(sampling.top_k, 3U);
  EXPECT_EQ(sampling.top_p, 1.0F);
  EXPECT_EQ(updates.note("intent"), "b\"");
  EXPECT_EQ(updates.note("x"), "");
  EXPECT_EQ(updates.notes().size(), 3U);
}

TEST(StageUpdates, WrongUpdatesAreRefusedByKey) {
  for (const char* json : {"",
                           "{",
                           "[]",
                           "3",
                           R"({"max_tokens": 0})",
                           R"({"max_tokens": -1})",
                           R"({"max_tokens": 1.5})",
                           R"({"max_tokens": "5"})",
                           R"({"temperature": -1})",
                           R"({"temperature": 1e999})",
                           R"({"top_p": 2})",
                           R"({"messages": []})",
                           R"({"n": 3})",
                           R"({"id": "x"})",
                           R"({"x": {}})",
                           R"({"x": null})"}) {
    StageUpdates updates;
    EXPECT_FALSE(updates.merge(json)) << json;
  }
  StageUpdates updates;
  EXPECT_THAT(updates.merge(R"({"stop": "x"})").error().message(), HasSubstr("stop cannot be"));
  std::string many = "{";
  for (int i = 0; i < 100; ++i)
    many += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":1";
  EXPECT_FALSE(updates.merge(many + "}"));
}

TEST(ModelWish, EmptyObjectIsTheClientsOwnPrompt) {
  const auto wish = ModelWish::parse("{}");
  ASSERT_TRUE(wish);
  EXPECT_TRUE(wish->is_clients_prompt());
}

TEST(ModelWish, WrongWishesAreRefused) {
  for (const char* json :
       {"",
        "[]",
        R"({"prompt": 3, "max_tokens": 1})",
        R"({"prompt": "x"})",
        R"({"messages": "x", "max_tokens": 1})",
        R"({"messages": [], "prompt": "x", "max_tokens": 1})",
        R"({"allowed_text": []})",
        R"({"allowed_text": [1]})",
        R"({"stop": "x"})",
        R"({"seed": 3})",
        R"({"stop": ["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"]})"}) {
    EXPECT_FALSE(ModelWish::parse(json)) << json;
  }
}

TEST(RequestItem, SaysWhatTheHeaderOfTheSdkSays) {
  pipeline::Request request;
  request.id = "c1";
  boost::json::object message;
  message["role"] = "user";
  message["content"] = "a\"b";
  request.template_variables["messages"] = boost::json::array{message};
  request.stop.stop_strings = {"X"};
  request.stop.n_generated_max = 9;
  request.n_choices = 2;
  StageUpdates updates;
  ASSERT_TRUE(updates.merge(R"({"max_tokens": 5, "temperature": 0.25, "intent": "code"})"));
  const pipeline::RequestItemWriter writer(request);
  const auto json = boost::json::parse(writer.write({1, 1}, request, updates));
  EXPECT_EQ(json, boost::json::parse(R"({
      "id": "c1", "endpoint": "chat", "n": 2, "stop": ["X"], "stage": 1, "choice": 1,
      "messages": [{"role": "user", "content": "a\"b"}], "max_tokens": 5, "temperature": 0.25,
      "top_p": 1.0, "min_p": 0.0, "top_k": 0, "intent": "code"})"));
}

}  // namespace
}  // namespace luna::test
