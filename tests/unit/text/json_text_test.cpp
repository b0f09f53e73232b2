#include "core/text/json_text.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <gtest/gtest.h>

#include <string>

namespace luna::text {
namespace {

std::string json_of(std::string_view text) {
  std::string out = "before";
  append_json_string(out, text);
  EXPECT_TRUE(out.starts_with("before"));
  return out.substr(6);
}

TEST(JsonString, EveryAsciiCharacterComesBack) {
  std::string all;
  for (int c = 0; c < 128; ++c) {
    const std::string one(1, static_cast<char>(c));
    EXPECT_EQ(boost::json::parse(json_of(one)).as_string(), one) << c;
    all += one;
  }
  EXPECT_EQ(boost::json::parse(json_of(all)).as_string(), all);
}

TEST(JsonString, WhatNeedsNoEscapeStaysAsItIs) {
  EXPECT_EQ(json_of(""), R"("")");
  EXPECT_EQ(json_of("a/\x7f\u20ac\U0001F999"), "\"a/\x7f\u20ac\U0001F999\"");
  EXPECT_EQ(json_of("\"\\\b\f\n\r\t\x01\x1f"), R"("\"\\\b\f\n\r\t\u0001\u001f")");
}

}  // namespace
}  // namespace luna::text
