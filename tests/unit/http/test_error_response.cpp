#include "core/http/error_response.hpp"

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <gtest/gtest.h>

namespace luna::http {
namespace {

TEST(ErrorResponse, EveryCodeHasAStatusAndBusyAnswersSayWhenToComeAgain) {
  for (int code = LUNA_INTERNAL; code <= LUNA_INVALID_ARGUMENT; ++code) {
    const ApiError error = to_api_error(Error{static_cast<Code>(code), "why"});
    EXPECT_GE(error.status, 400U);
    EXPECT_FALSE(error.type.empty());
    EXPECT_EQ(error.retry_after.has_value(), error.status == 429 || error.status == 503);
  }
}

TEST(ErrorResponse, RetryAfterIsTheQueuesTimeInWholeSecondsUpToAMinute) {
  using std::chrono::milliseconds;
  const auto seconds = [](milliseconds wait) {
    return to_api_error(Error{Code::exhausted, "full"}, wait).retry_after->count();
  };
  EXPECT_EQ(seconds(milliseconds(0)), 1);
  EXPECT_EQ(seconds(milliseconds(1000)), 1);
  EXPECT_EQ(seconds(milliseconds(1001)), 2);
  EXPECT_EQ(seconds(milliseconds(7300)), 8);
  EXPECT_EQ(seconds(milliseconds(3'600'000)), 60);
}

TEST(ErrorResponse, TheReasonOfAnErrorIsItsCode) {
  EXPECT_EQ(to_api_error(Error{Code::invalid_argument, "m", "context_length_exceeded"}).code,
            "context_length_exceeded");
}

TEST(ErrorResponse, BodyIsTheOpenaiObject) {
  const auto error = boost::json::parse(error_body(invalid_request("n", "bad \"n\""))).at("error");
  EXPECT_EQ(error.at("message").as_string(), "bad \"n\"");
  EXPECT_EQ(error.at("param").as_string(), "n");
  EXPECT_TRUE(error.at("code").is_null());
}

TEST(ErrorResponse, LongMessagesAreCutBetweenCharacters) {
  std::string name;
  for (int i = 0; i < 5000; ++i)
    name += "\u20ac";
  const auto error =
      boost::json::parse(error_body(invalid_request("model", "no model '" + name + "'")))
          .at("error");
  EXPECT_LT(error.at("message").as_string().size(), 2100U);
}

}  // namespace
}  // namespace luna::http
