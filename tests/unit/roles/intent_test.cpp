#include "support/role_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luna::test {
namespace {

using Items = std::vector<OwnedItem>;
using List = std::vector<std::string>;
using ::testing::HasSubstr;

const char* const kFile = "role_intent";

std::string chat(const std::string& content_json) {
  return R"({"id":"x","messages":[{"role":"system","content":"code"},{"role":"user","content":)" +
         content_json + "}]}";
}

SettingValues by_regex() {
  return {{"labels", List{"code", "chat", "other"}},
          {"method", std::string("regex")},
          {"patterns", List{"code", "(?i)\\b(bug|compile)", "chat", "^hello"}},
          {"updates", List{"code", R"({"max_tokens": 256, "temperature": 0.2})"}}};
}

SettingValues by_model() {
  return {{"labels", List{"code", "chat", "other"}},
          {"prompt", std::string("one of {labels}: {text}")}};
}

TEST(RoleIntent, FirstMatchingPatternDecidesAndSaysSoToLaterStages) {
  RoleUnderTest role(kFile, by_regex());
  EXPECT_EQ(
      role.run({{1, ItemKind::request, chat(R"("hello, does this COMPILE?")")},
                {1, ItemKind::end, "stop"}}),
      (Items{{1, ItemKind::update, R"({"max_tokens":256,"temperature":2E-1,"intent":"code"})"},
             {1, ItemKind::end, "stop"}}));
  EXPECT_EQ(role.run({{2, ItemKind::request, chat(R"([{"type":"text","text":"hello"}])")}}),
            (Items{{2, ItemKind::update, R"({"intent":"chat"})"}, {2, ItemKind::end, "stop"}}));
  EXPECT_TRUE(role.choices().empty());
}

TEST(RoleIntent, RequestThatCannotBeClassifiedGetsTheDefaultLabel) {
  RoleUnderTest role(kFile, by_regex());
  for (const std::string& request : {chat(R"("nothing of that")"),
                                     chat("7"),
                                     chat("null"),
                                     chat("\"\""),
                                     std::string("{}"),
                                     std::string(""),
                                     std::string("[1"),
                                     std::string(R"({"messages":[]})"),
                                     std::string(R"({"messages":[3,{"role":"user"}]})"),
                                     std::string(R"({"messages":"x"})")}) {
    EXPECT_EQ(role.run({{3, ItemKind::request, request}}),
              (Items{{3, ItemKind::update, R"({"intent":"other"})"}, {3, ItemKind::end, "stop"}}))
        << request;
  }
}

TEST(RoleIntent, ModelIsAskedForOneOfTheLabelsAndItsChoiceDecides) {
  RoleUnderTest role(kFile, by_model());
  EXPECT_EQ(role.run({{1, ItemKind::request, chat(R"("say {labels} \"now\"")")}}),
            (Items{{1,
                    ItemKind::model_request,
                    R"({"max_tokens":1,"temperature":0,"allowed_text":["code","chat","other"],)"
                    R"("messages":[{"role":"user",)"
                    R"("content":"one of code, chat, other: say {labels} \"now\""}]})"}}));
  EXPECT_TRUE(role.run({{1, ItemKind::end, "stop"}, {1, ItemKind::model_text, "cha"}}).empty());
  EXPECT_EQ(role.run({{1, ItemKind::model_text, "t"}, {1, ItemKind::model_end, "length"}}),
            (Items{{1, ItemKind::update, R"({"intent":"chat"})"}, {1, ItemKind::end, "stop"}}));
  EXPECT_EQ(role.choices(), std::string("code\0chat\0other\0", 16));
}

TEST(RoleIntent, ModelRunThatFailsGivesTheDefaultLabel) {
  SettingValues settings = by_model();
  settings["default_label"] = std::string("chat");
  RoleUnderTest role(kFile, settings);
  EXPECT_EQ(role.run({{1, ItemKind::model_end, "failed: no room"}}),
            (Items{{1, ItemKind::update, R"({"intent":"chat"})"}, {1, ItemKind::end, "stop"}}));
}

TEST(RoleIntent, OnlyTheBeginningOfAHugeRequestIsLookedAt) {
  SettingValues settings = by_model();
  settings["text_bytes_max"] = std::int64_t{5};
  RoleUnderTest role(kFile, settings);
  std::string huge;
  while (huge.size() < (4U << 20U))
    huge += "\u00e9\u00e9";
  const Items out = role.run({{1, ItemKind::request, chat('"' + huge + '"')}});
  ASSERT_EQ(out.size(), 1U);
  EXPECT_THAT(out[0].text, HasSubstr("other: \u00e9\u00e9\"}"));  // no half character
}

TEST(RoleIntent, DroppedRequestIsForgottenAtEveryPoint) {
  RoleUnderTest role(kFile, by_model());
  const Items steps = {{1, ItemKind::request, chat("\"x\"")},
                       {1, ItemKind::end, "stop"},
                       {1, ItemKind::model_text, "code"},
                       {1, ItemKind::model_end, "length"}};
  for (std::size_t n = 0; n <= steps.size(); ++n) {
    for (std::size_t i = 0; i < n; ++i)
      role.run({steps[i]});
    role.drop(1);
    role.run({steps[0]});
    role.run({{1, ItemKind::model_text, "chat"}});
    EXPECT_EQ(role.run({steps[3]})[0].text, R"({"intent":"chat"})");
    role.drop(1);
  }
}

TEST(RoleIntent, NestedRequestIsNoStackOverflow) {
  RoleUnderTest role(kFile, by_regex());
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_EQ(role.run({{1, ItemKind::request, R"({"messages":)" + deep + "}"}})[0].text,
            R"({"intent":"other"})");
}

TEST(RoleIntent, WrongSettingsAreRefusedByKeyAndLabel) {
  const auto refusal = [](const char* key, SettingValue value, bool regex) {
    SettingValues settings = regex ? by_regex() : by_model();
    settings[key] = std::move(value);
    return RoleUnderTest::refusal(kFile, settings);
  };
  EXPECT_THAT(refusal("labels", List{"code"}, false), HasSubstr("there are 1, must be 2..64"));
  EXPECT_THAT(refusal("labels", List{"a", "b", "a"}, false), HasSubstr("'a' is there twice"));
  EXPECT_THAT(refusal("labels", List{"a", ""}, false), HasSubstr("is empty"));
  EXPECT_THAT(refusal("default_label", std::string("c"), false), HasSubstr("default_label"));
  EXPECT_THAT(refusal("patterns", List{"chat", "("}, true), HasSubstr("at byte 1"));
  EXPECT_THAT(refusal("patterns", List{"poem", "x"}, true), HasSubstr("'poem' is not among"));
  EXPECT_THAT(refusal("patterns", List{"chat", "x"}, false), HasSubstr("only for method"));
  EXPECT_THAT(refusal("patterns", List{}, true), HasSubstr("needs at least one"));
  EXPECT_THAT(refusal("updates", List{"chat", "{"}, false), HasSubstr("must have a JSON object"));
  EXPECT_THAT(refusal("updates", List{"chat", R"({"stop":[]})"}, false), HasSubstr("'stop'"));
}

}  // namespace
}  // namespace luna::test
