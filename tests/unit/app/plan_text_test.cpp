// What a recording of plans says of its origin is read back as it was.
#include "core/app/plan_text.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace luna::app {
namespace {

using config::RawSetting;
using config::RawValue;

RawSetting setting(std::string key, RawValue value) {
  return {.key = std::move(key), .value = std::move(value), .key_at = {}, .value_at = {}};
}

TEST(PlanText, EveryKindOfSettingComesBack) {
  PlanText text;
  text.model = "a \"quoted\" \\ name";
  text.policy = "flowsplit";
  text.plugin_version = "0.1.0";
  text.settings.rows = {
      setting("flag", RawValue(true)),
      setting("number", RawValue(std::int64_t{-7})),
      setting("share", RawValue(0.1)),
      setting("whole", RawValue(3.0)),
      setting("tiny", RawValue(1e-300)),
      setting("text", RawValue(std::string("tab\tand \x01"))),
      setting("list", RawValue(std::vector<std::string>{"a", "b\"c"})),
      setting("map",
              RawValue(std::vector<std::pair<std::string, std::string>>{{"k", "v"}, {"k 2", ""}})),
  };
  const std::string printed = print_plan_text(text);
  const auto read = parse_plan_text(printed, "x.plans");
  ASSERT_TRUE(read.has_value()) << read.error().message() << printed;
  EXPECT_EQ(read->model, text.model);
  EXPECT_EQ(read->policy, text.policy);
  EXPECT_EQ(read->plugin_version, text.plugin_version);
  ASSERT_EQ(read->settings.rows.size(), text.settings.rows.size());
  for (std::size_t i = 0; i < text.settings.rows.size(); ++i) {
    EXPECT_EQ(read->settings.rows[i].key, text.settings.rows[i].key);
    EXPECT_EQ(read->settings.rows[i].value, text.settings.rows[i].value) << i;
  }
}

TEST(PlanText, WhatNamesNoPolicyIsRefused) {
  for (const char* text : {"", "model = 1", "policy = 5", "not toml", "policy = \"\""})
    EXPECT_FALSE(parse_plan_text(text, "x.plans").has_value()) << text;
  EXPECT_FALSE(
      parse_plan_text("policy = \"a\"\n[settings]\nx = 1979-05-27", "x.plans").has_value());
}

}  // namespace
}  // namespace luna::app
