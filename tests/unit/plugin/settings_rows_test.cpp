#include "core/plugin/settings_rows.hpp"

#include <luna/plugin.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace luna::plugin {
namespace {

using config::RawValue;
using testing::ElementsAre;
using testing::HasSubstr;
using Map = std::vector<std::pair<std::string, std::string>>;

luna_if head_of(std::span<const luna_param> params) {
  luna_if head{};
  head.struct_size = sizeof(head);
  head.n_params = static_cast<std::uint32_t>(params.size());
  head.params = params.data();
  return head;
}

config::RawGroup group(std::vector<config::RawSetting> rows = {}) {
  return {"t.toml", "x", {1, 1}, std::move(rows), {"role", "model"}};
}

CheckedRows check_one(const luna_param& param, const RawValue& value) {
  return check_rows(head_of({&param, 1}), group({{param.key, value, {2, 1}, {2, 5}}}));
}

TEST(SettingsRows, DefaultsOfEveryTypeAreFilledIn) {
  const luna_param params[] = {
      param(LUNA_TYPE_BOOL, "flag", "true", nullptr, nullptr, nullptr, ""),
      param(LUNA_TYPE_INT, "count", "-3", nullptr, nullptr, nullptr, ""),
      param(LUNA_TYPE_FLOAT, "share", "0.25", nullptr, nullptr, nullptr, ""),
      param(LUNA_TYPE_STRING, "word", "w", nullptr, nullptr, nullptr, ""),
      param(LUNA_TYPE_STRING_LIST, "list", "a|b c", nullptr, nullptr, nullptr, ""),
      param(LUNA_TYPE_STRING_MAP, "map", "k=v|l=w", nullptr, nullptr, nullptr, ""),
      param(LUNA_TYPE_STRING_LIST, "nothing", "", nullptr, nullptr, nullptr, ""),
  };
  const CheckedRows checked = check_rows(head_of(params), group());
  ASSERT_TRUE(checked.errors.empty());
  const auto rows = checked.rows.rows();
  const Settings settings(rows.data(), static_cast<std::uint32_t>(rows.size()));
  EXPECT_TRUE(settings.flag("flag"));
  EXPECT_EQ(settings.integer("count"), -3);
  EXPECT_EQ(settings.number("share"), 0.25);
  EXPECT_EQ(settings.text("word"), "w");
  EXPECT_THAT(settings.list("list"), ElementsAre("a", "b c"));
  EXPECT_THAT(settings.list("map"), ElementsAre("k", "v", "l", "w"));
  EXPECT_TRUE(settings.list("nothing").empty());
}

TEST(SettingsRows, WrongValuesAreRefused) {
  const luna_param flag = param(LUNA_TYPE_BOOL, "k", "true", nullptr, nullptr, nullptr, "");
  const luna_param integer = param(LUNA_TYPE_INT, "k", "1", "1", "9", nullptr, "");
  const luna_param number = param(LUNA_TYPE_FLOAT, "k", "1", "0.5", "2", nullptr, "");
  const luna_param word = param(LUNA_TYPE_STRING, "k", "a", nullptr, nullptr, "a|b", "");
  const luna_param list = param(LUNA_TYPE_STRING_LIST, "k", "", nullptr, nullptr, "a|b", "");
  const luna_param map = param(LUNA_TYPE_STRING_MAP, "k", "", nullptr, nullptr, nullptr, "");
  const std::string zero("a\0b", 3);
  const std::pair<const luna_param*, RawValue> wrong[] = {
      {&flag, std::int64_t{1}},
      {&flag, std::string("true")},
      {&integer, std::int64_t{0}},
      {&integer, std::int64_t{10}},
      {&integer, 1.0},
      {&number, 0.4},
      {&number, std::int64_t{3}},
      {&number, NAN},
      {&number, INFINITY},
      {&word, std::string("c")},
      {&word, std::vector<std::string>{"a"}},
      {&list, std::vector<std::string>{"a", "c"}},
      {&list, std::vector<std::string>{zero}},
      {&list, std::string("a")},
      {&map, Map{{zero, "v"}}},
      {&map, std::vector<std::string>{}},
  };
  for (const auto& [declared, value] : wrong) {
    const CheckedRows checked = check_one(*declared, value);
    ASSERT_EQ(checked.errors.size(), 1u);
    EXPECT_THAT(checked.errors[0].message(), HasSubstr("x.k = "));
    EXPECT_THAT(checked.errors[0].message(),
                HasSubstr(": must be " + describe_param(*declared) + " (t.toml:2:5)"));
  }
}

TEST(SettingsRows, WholeNumberServesWhereANumberIsWanted) {
  const luna_param number = param(LUNA_TYPE_FLOAT, "k", "1", nullptr, nullptr, nullptr, "");
  const CheckedRows checked = check_one(number, std::int64_t{3});
  ASSERT_TRUE(checked.errors.empty());
  EXPECT_EQ(checked.rows.rows()[0].f, 3.0);
}

TEST(SettingsRows, RequiredSettingThatIsMissingIsNamed) {
  const luna_param required = param(LUNA_TYPE_INT, "k", nullptr, "1", nullptr, nullptr, "");
  const CheckedRows checked = check_rows(head_of({&required, 1}), group());
  ASSERT_EQ(checked.errors.size(), 1u);
  EXPECT_EQ(checked.errors[0].message(),
            "x.k is missing: must be a whole number of at least 1 (t.toml:1:1)");
}

TEST(SettingsRows, MisspeltKeyOfCoreIsExplainedToo) {
  const luna_param known = param(LUNA_TYPE_INT, "count", "1", nullptr, nullptr, nullptr, "");
  const CheckedRows checked =
      check_rows(head_of({&known, 1}), group({{"modle", std::string("main"), {3, 1}, {3, 9}}}));
  ASSERT_EQ(checked.errors.size(), 1u);
  EXPECT_EQ(checked.errors[0].message(),
            "unknown key 'modle' in x; the nearest known one is 'model' (t.toml:3:1)");
}

TEST(SettingsRows, DefaultThatItsOwnPluginForbidsIsThePluginsFault) {
  const luna_param broken = param(LUNA_TYPE_INT, "k", "many", nullptr, nullptr, nullptr, "");
  const CheckedRows checked = check_rows(head_of({&broken, 1}), group());
  ASSERT_EQ(checked.errors.size(), 1u);
  EXPECT_EQ(checked.errors[0].code(), Code::corrupt);
}

TEST(SettingsRows, ParametersOfANewerSdkAreReadWithTheirStride) {
  struct NewerParam {
    luna_param known;
    const char* added;
  };
  NewerParam params[2] = {
      {param(LUNA_TYPE_INT, "a", "1", nullptr, nullptr, nullptr, ""), "?"},
      {param(LUNA_TYPE_INT, "b", "2", nullptr, nullptr, nullptr, ""), "?"},
  };
  for (NewerParam& p : params)
    p.known.struct_size = sizeof(NewerParam);
  luna_if head = head_of({});
  head.n_params = 2;
  head.params = &params[0].known;
  const auto found = params_of(head);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_STREQ(found[1]->key, "b");
}

}  // namespace
}  // namespace luna::plugin
